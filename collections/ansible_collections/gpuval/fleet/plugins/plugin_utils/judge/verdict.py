"""The verdict on a run, from the expected nodes, the evidence and the criteria. Pure.

Per node: the launch, the end of every stage it was asked to run, one machine listed once, the accelerator and the SKU
it claims to have, the versions its owner declares, and every criterion that applies, some of them between nodes. A
required check that failed makes the node FAIL; else required evidence that is missing makes it INCOMPLETE; only a node
of which some work is proven and nothing required is open is PASS. Taking evidence (a launch, a record, a metric, a
part) away from a node never makes that node PASS, nor the run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import (
    agreement,
    baseline,
    coverage,
    fleet_outliers,
    order_check,
    sku_catalogue,
    versions,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.agreement import Agreement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import fleet, properties
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.checks import (
    FACTS,
    GPU_VENDORS,
    Entry,
    Subject,
    gang_of,
    hold,
    own_entry,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check, Criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_history import Stood
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import Evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.states import FAILED_STATES

STARTED = ("started", "finished")
IMAGE = "image"
#: What the image stage says in its environment (`fault`) when the store, the registry or the archive is to blame.
DELIVERY = "delivery"
#: Faults of the node that say more than which stage met them first.
_STAGE_CLASSES = frozenset({"no_engine", "disk_full", "read_only"})
#: No last record came of these, so that a lost contact with the node explains them.
_OPEN_STATES = ("missing", "pending", "running")
MAX_GPUS_SHOWN = 64

#: Other nodes that are the same machine, each with what says so.
Twins = Mapping[str, Sequence[str]]
SAME = "has the same "

_USELESS_IDENTITY = frozenset(
    """
    0|none|null|n/a|[n/a]|na|nil|unknown|default|default string|empty|invalid|unspecified|uninitialized
    |not specified|not available|not applicable|not provided|not settable|no asset tag|no asset information
    |to be filled by o.e.m.|to be filled by oem|o.e.m.|oem|serial number|system serial number|chassis serial number
    |base board serial number|0123456789|123456789|1234567890
    """.strip()
    .replace("\n", "")
    .replace("    ", "")
    .split("|")
)

#: Checks of what a search found of one node.
FOUND = ("fabric_suspect", "fabric_untested", "fabric_bad_links")

_AGAIN = "then validate again with --limit {node}"
_LATE = "raise gpuval_deadline_seconds, " + _AGAIN
_NOT_DELIVERED = f"see that the image is right and can be had: mend what the message names, {_AGAIN}"
_OF_GANG = (
    "mend what the message and the search for the bad node or link name, then validate again with others of its kind: "
    "with --limit alone a node is in no gang"
)
_STATE_REMEDY = {
    "failure": f"read nodes/{{node}}/{{stage}}.log, mend what the message names, {_AGAIN}",
    "crash": f"read the end of nodes/{{node}}/{{stage}}.log and the kernel log of the node, {_AGAIN}",
    "timeout": "see in nodes/{node}/{stage}.log where it stopped; a healthy but slow node needs a longer time limit",
    "skipped": f"mend the stage that it waited for, {_AGAIN}",
    "cancelled": "validate again with --limit {node}",
    "pending": f"the run ended before the stage began: {_LATE}",
    "running": f"the run ended before the stage did: {_LATE}",
    "missing": f"check that the node is up and reaches the store, {_AGAIN}",
}


def judge(
    run: Mapping[str, Any],
    evidence: Evidence,
    criteria: Sequence[Check],
    *,
    judged_at: str,
    held_against: baseline.Baseline | None = None,
    stood: Stood | None = None,
) -> dict[str, Any]:
    """The report (``gpuval.report/1``) on ``run``, a document of ``gpuval.run/1``; ``judged_at`` is RFC 3339 UTC.

    ``held_against`` is the baseline that checks of that kind use, ``stood`` where nodes lay when they were judged
    before, to which is added where they lie now.
    """
    twins = find_twins(run, evidence)
    names = sorted(run["nodes"], key=natural_order)
    subjects = {name: subject_of(run, name, evidence) for name in names}
    stages = {name: run["nodes"][name]["stages"] for name in names}
    agreed = agreement.between_nodes(subjects, stages, criteria)
    fleet_outliers.between_nodes(subjects, stages, criteria, agreed, stood)
    nodes = [
        judge_node(
            run, name, evidence, criteria, twins=twins, agreed=agreed, held_against=held_against, subject=subjects[name]
        )
        for name in names
    ]
    counted = Counter(node["verdict"] for node in nodes)
    report: dict[str, Any] = {
        "schema": "gpuval.report/1",
        "run": {
            "run_id": run["run_id"],
            "folder": run["folder"],
            "bucket": run["bucket"],
            "profile": run["profile"],
            "created_at": run["created_at"],
            "finished_at": run["finished_at"],
            "judged_at": judged_at,
            "narrowed_by": sorted(set(run["narrowed_by"])),
        },
        "verdict": run_verdict((node["verdict"] for node in nodes), narrowed=bool(run["narrowed_by"])),
        "counts": {
            "expected": len(nodes),
            "PASS": counted["PASS"],
            "FAIL": counted["FAIL"],
            "INCOMPLETE": counted["INCOMPLETE"],
            "flaky": sum(node["flaky"] for node in nodes),
        },
        "summary": [],  # the lines come with the forms of the report
        "nodes": nodes,
        "fleet": {"checks": agreed.fleet, "problems": _problems(run, evidence)},
    }
    for check in agreed.fleet:
        check["reason"] = one_line(check["reason"], 600)
    informational = criteria.informational if isinstance(criteria, Criteria) else ()
    gaps = coverage.of_report(nodes, criteria, informational)
    if not gaps.complete:
        report["fleet"]["coverage"] = gaps.document()
    analysis = fleet.analyse(
        nodes, [properties.of_node(node["labels"], subjects[node["name"]].records.get(FACTS)) for node in nodes]
    )
    if analysis is not None:
        report["fleet"]["analysis"] = analysis
    return report


def run_verdict(nodes: Iterable[str], *, narrowed: bool) -> str:
    """FAIL before INCOMPLETE before PASS; no nodes is INCOMPLETE; a narrowed PASS is PARTIAL."""
    verdicts = set(nodes)
    if "FAIL" in verdicts:
        return "FAIL"
    if verdicts != {"PASS"}:
        return "INCOMPLETE"
    return "PARTIAL" if narrowed else "PASS"


def node_verdict(checks: Sequence[Entry]) -> str:
    """The verdict on a node from its checks; one without any required work that passed is INCOMPLETE."""
    required = [check for check in checks if check["severity"] == "required"]
    if any(check["verdict"] == "fail" for check in required):
        return "FAIL"
    proven = any(check["verdict"] == "pass" and check["kind"] not in ("launch", "identity") for check in required)
    if not proven or any(check["verdict"] == "missing" for check in required):
        return "INCOMPLETE"
    return "PASS"


def node_class(checks: Sequence[Entry], contacts: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({})) -> str:
    """One word for what decided against a node: the launch's class, a stage and its end, or the name of the check.

    ``contacts``: by stage why the node could not be asked for its record.
    """
    check = headline({"checks": checks})
    if check is None:
        return "nothing_proven"
    if check["kind"] == "launch":
        return check["value"]
    if check["kind"] == "state" and check["stage"]:
        told = launch_errors.classify("", check["reason"]).name if check["verdict"] == "fail" else ""
        if told in _STAGE_CLASSES:
            return told
        contact = contacts.get(check["stage"])
        lost = contact and check["verdict"] == "missing" and _explains(contact, check["value"])
        return one_line(contact["class"], 40) if lost else f"{check['stage']}_{check['value']}"
    return "same_machine_twice" if check["name"] == "identity" else check["name"]


def headline(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The check that decided against the node: the first required one that failed, else the first that is missing.

    Of those that are missing what a search found of this very node comes before what all members of its gang share.
    """
    required = [check for check in node["checks"] if check["severity"] == "required"]
    failed = [check for check in required if check["verdict"] == "fail"]
    missing = [check for check in required if check["verdict"] == "missing"]
    found = [check for check in missing if check["name"] in FOUND and check["value"] is not None]
    return next(iter([*failed, *found, *missing]), None)


def judge_node(
    run: Mapping[str, Any],
    name: str,
    evidence: Evidence,
    criteria: Sequence[Check],
    *,
    twins: Mapping[str, Twins] | None = None,
    agreed: Agreement | None = None,
    held_against: baseline.Baseline | None = None,
    subject: Subject | None = None,
) -> dict[str, Any]:
    """The report's entry of one node; ``twins`` (find_twins) is what tells one machine listed twice.

    Without ``agreed``, the checks between nodes, a node is judged by what it reported itself.
    """
    expected = run["nodes"][name]
    subject = subject or subject_of(run, name, evidence)
    records, facts = subject.records, subject.records.get(FACTS)
    problems = _problems_of(name, expected["stages"], evidence)
    launch = evidence.launches.get(name)
    contacts = {stage: evidence.contact_of(name, stage) for stage in expected["stages"]}
    checks = [_launch_check(name, launch, records), *_identity_checks(facts, (twins or {}).get(name, {}))]
    if not expected["stages"]:
        checks.append(_no_stage_check())
    if FACTS not in expected["stages"]:
        checks.append(_accelerator_check(subject, facts))
    for stage in expected["stages"]:
        of_gang = stage in expected.get("gang_stages", ())
        checks.append(_state_check(name, stage, records.get(stage), problems, contacts[stage], of_gang=of_gang))
        if stage == FACTS:
            checks += [
                _accelerator_check(subject, facts),
                *order_check.checks(subject, facts is not None, _models(facts)),
            ]
            checks += versions.checks(expected.get("versions", {}), facts, FACTS)
        for check in criteria:
            if check.stage == stage:
                checks.extend(_held(check, subject, agreed, held_against))
    checks += [_exempt_check(stage, reason) for stage, reason in expected.get("exempt", {}).items()]
    _withhold(checks, criteria)
    for check in checks:
        check["reason"] = one_line(check["reason"], 600)
    failed = {check["stage"] for check in checks if check["severity"] == "required" and check["verdict"] == "fail"}
    stages = [_stage(stage, records.get(stage), failed=stage in failed) for stage in expected["stages"]]
    verdict = node_verdict(checks)
    return {
        "name": name,
        "id": expected.get("id"),
        "labels": dict(expected.get("labels", {})),
        "verdict": verdict,
        "class": None if verdict == "PASS" else node_class(checks, contacts),
        "flaky": any(stage["flaky"] for stage in stages),
        "sku": expected["sku"],
        "catalogue_sku": subject.catalogue_sku,
        "accelerator": subject.accelerator,
        "identity": _identity(facts),
        "stages": stages,
        "checks": checks,
        "metrics": {stage: list(record["metrics"]) for stage, record in records.items()},
        "problems": problems,
    }


def subject_of(run: Mapping[str, Any], name: str, evidence: Evidence) -> Subject:
    """A node as its criteria see it."""
    expected = run["nodes"][name]
    records = evidence.records.get(name, {})
    records = {stage: records[stage] for stage in expected["stages"] if stage in records}
    facts = records.get(FACTS)
    accelerator = _accelerator(expected["sku"], facts)
    models = _models(facts)
    sku = sku_catalogue.of_models(models)
    found = sku.name if sku else None
    if accelerator == sku_catalogue.CPU:
        found = sku_catalogue.CPU
    return Subject(
        name=name,
        profile=run["profile"],
        sku=_declared(expected["sku"]),
        accelerator=accelerator,
        declared_gpus=expected["gpu_count"],
        detected_gpus=_count(facts, "gpu_count"),
        records=records,
        catalogue_sku=found,
        kind=found or ", ".join(sorted(set(models))) or expected["sku"],
    )


def _declared(sku: str) -> str:
    """The catalogue's name of a declared SKU, whichever way it is spelled."""
    known = sku_catalogue.named(sku)
    return known.name if known else sku


def _held(
    check: Check, subject: Subject, agreed: Agreement | None, held_against: baseline.Baseline | None
) -> list[Entry]:
    if check.catalogue_sku is not None and check.catalogue_sku not in subject.skus:
        return []
    if check.kind == "baseline":
        return baseline.hold(check, subject, held_against)
    if check.kind not in ("same", "outlier") or (check.kind == "outlier" and check.peers == "node"):
        return hold(check, subject)
    if check.peers == "node":
        return agreement.within_node(check, subject)
    return agreed.of(subject.name, check) if agreed else []


def _withhold(checks: Sequence[Entry], criteria: Sequence[Check]) -> None:
    """A check whose requirement failed, or lacks evidence, is not judged: seven GPUs may be faster than eight."""
    open_checks = {check["name"] for check in checks if check["verdict"] in ("fail", "warn", "missing")}
    known = {check["name"] for check in checks}
    requiring = {check.name: check.requires for check in criteria if check.requires}
    for entry in checks:
        lacking = [name for name in requiring.get(entry["name"], ()) if name in open_checks or name not in known]
        if lacking and entry["verdict"] != "skipped":
            entry["verdict"] = "missing"
            entry["reason"] = f"judged only when {' and '.join(lacking)} passes; {entry['reason']}"


def failed_criteria(node: Mapping[str, Any], criteria: Sequence[Check]) -> list[Check]:
    """The required criteria that a judged node failed: what decides whether a stage may be measured again."""
    failed = {check["name"] for check in node["checks"] if check["verdict"] == "fail"}
    stages = {stage["name"] for stage in node["stages"]}
    return [check for check in criteria if check.name in failed and check.stage in stages]


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which node-9 stands before node-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts)] + [(1, name)]


def find_twins(run: Mapping[str, Any], evidence: Evidence) -> dict[str, Twins]:
    """Node -> the other nodes of the run that are the same machine, each with what says so."""
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, expected in run["nodes"].items():
        facts = evidence.records.get(name, {}).get(FACTS) if FACTS in expected["stages"] else None
        for key in _identity_values(facts):
            owners[key].append(name)
    twins: dict[str, Twins] = defaultdict(lambda: defaultdict(list))
    for (what, value), names in owners.items():
        for name in names if len(names) > 1 else ():
            for other in names:
                if other != name:
                    twins[name][other].append(f"{SAME}{what} {value}")
    for name, launch in evidence.launches.items():
        other = launch.get("twin")
        # A machine that worked under both names is told by its facts; here one of the two names has nothing else.
        if not isinstance(other, str) or other == name or not {other, name} <= run["nodes"].keys():
            continue
        if _began(run, name, evidence):
            continue
        for one, its_twin in ((name, other), (other, name)):
            twins[one][its_twin].append(f"is the same machine: it was in the run as {other} when launched as {name}")
    return twins


def _began(run: Mapping[str, Any], name: str, evidence: Evidence) -> bool:
    records = evidence.records.get(name, {})
    return any(records[stage]["started_at"] is not None for stage in run["nodes"][name]["stages"] if stage in records)


def _launch_check(name: str, launch: Mapping[str, Any] | None, records: Mapping[str, Mapping[str, Any]]) -> Entry:
    """A record of work that began proves the launch, whatever became of the connection that made it."""
    state = str(launch.get("state", "unknown")) if launch else "never started"
    began = any(record["started_at"] is not None for record in records.values())
    message = one_line(launch.get("message") or "", 400) if launch else ""
    if state in STARTED or began:
        said = f"{state}: {message}" if message else state
        return own_entry("launch", "", "launch", "pass", value=state, expected="started", reason=said)
    known = launch_errors.described(launch or {"state": "unknown"})
    word = one_line(known["class"], 40)
    said = state if word in (state, "not_started", "launch_failed", "plan_refused") else f"{state} ({word})"
    if known["message"]:
        said += f": {one_line(known['message'], 400)}"
    remedy = one_line(known["remedy"], 400).replace("{node}", name)
    if "validate again" not in remedy:  # a probe's remedy is its own
        remedy = f"{remedy}, {_AGAIN.format(node=name)}"
    return own_entry("launch", "", "launch", "missing", value=word, expected="started", reason=said, remedy=remedy)


def _no_stage_check() -> Entry:
    return own_entry(
        "stages", "", "state", "missing", expected="at least one stage", reason="the node was asked to run no stage",
        remedy="choose a profile or tags that leave at least one stage",
    )  # fmt: skip


def _exempt_check(stage: str, reason: str) -> Entry:
    """A stage of gangs that nothing is expected of, told where else it would have vanished."""
    return own_entry(f"{stage}_state", stage, "state", "skipped", expected=f"nothing: {reason}", reason=reason)


def _state_check(
    name: str,
    stage: str,
    record: Mapping[str, Any] | None,
    problems: Sequence[Mapping[str, Any]],
    contact: Mapping[str, Any] | None = None,
    *,
    of_gang: bool = False,
) -> Entry:
    """The end of a stage; `contact` says why the node could not be asked for its records, if it could not.

    ``of_gang``: the stage is one that nodes carry out together; its bad end accuses none of them.
    """
    state = record["state"] if record else "missing"
    if record is None:
        refused = [problem["reason"] for problem in problems if problem["stage"] == stage]
        reason = refused[0] if refused else "no record"
    else:
        message = one_line(record["message"])
        reason = message if state == "success" else f"{state}: {message}" if message else state
    verdict = "pass" if state == "success" else "fail" if state in FAILED_STATES else "missing"
    remedy = "" if verdict == "pass" else _STATE_REMEDY[state].format(node=name, stage=stage)
    if verdict == "fail" and of_gang:  # the first to break off is often innocent: the search says who is not
        verdict, reason = "missing", f"{gang_of(record) or 'a gang'}: {reason}"
    if verdict == "missing" and of_gang:
        remedy = _OF_GANG
    if stage == IMAGE and state == "crash" and record["environment"].get("fault") == DELIVERY:
        verdict, remedy = "missing", _NOT_DELIVERED.format(node=name)  # says nothing about the node
    if contact and _explains(contact, state):
        told = "its pod ended" if contact.get("pod") else "the node could not be asked"
        reason += f"; {told} ({contact['class']}): {contact['message']}"
        remedy = str(contact["remedy"]).replace("{node}", name)
    return own_entry(
        f"{stage}_state", stage, "state", verdict, value=state, expected="success", reason=reason, remedy=remedy
    )


def _explains(contact: Mapping[str, Any], state: str) -> bool:
    """Whether a lost contact tells why a stage has no better end; in a pod that is ended it says `cancelled`."""
    return state in _OPEN_STATES or (state == "cancelled" and bool(contact.get("pod")))


def _accelerator_check(subject: Subject, facts: Mapping[str, Any] | None) -> Entry:
    """A CPU stands in for a GPU only where the inventory says cpu, or where there is no GPU hardware at all."""
    declared = f"sku {subject.sku}"
    if subject.sku != "auto" and subject.declared_gpus:
        declared += f" with {subject.declared_gpus} GPUs"
    fields: dict[str, Any] = {"value": subject.accelerator, "expected": declared, "remedy": ""}
    install = (
        "install or repair the GPU driver and look for the devices with lspci; a node meant as CPU is declared sku: cpu"
    )
    if subject.sku == "cpu":
        return own_entry("accelerator", FACTS, "identity", "pass", reason="declared cpu", **fields)
    if subject.accelerator == "unknown":
        fields["remedy"] = "let the facts stage run and succeed, or declare sku: cpu"
        return own_entry("accelerator", FACTS, "identity", "missing", reason="no facts say what the node has", **fields)
    if subject.accelerator in GPU_VENDORS:
        return own_entry("accelerator", FACTS, "identity", "pass", reason=f"{subject.accelerator} found", **fields)
    fields["remedy"] = install
    if subject.sku != "auto" or subject.declared_gpus:
        reason = f"{declared} is declared, but no usable GPU was found: a CPU never stands in for a GPU"
        return own_entry("accelerator", FACTS, "identity", "fail", reason=reason, **fields)
    hardware = _count(facts, "gpu_hardware_count")
    if hardware is None:
        reason = "taken for a CPU node, but gpu_hardware_count does not say that it has no GPU hardware"
        return own_entry("accelerator", FACTS, "identity", "missing", reason=reason, **fields)
    if hardware > 0:
        reason = f"{units.number_text(hardware)} GPU devices on the PCI bus, none of them usable"
        return own_entry("accelerator", FACTS, "identity", "fail", reason=reason, **fields)
    fields["remedy"] = ""
    return own_entry("accelerator", FACTS, "identity", "pass", reason="a CPU node: no GPU hardware", **fields)


def _identity_checks(facts: Mapping[str, Any] | None, twins: Twins) -> list[Entry]:
    if not twins and not _identity_values(facts):
        if facts is None:
            return []
        return [
            own_entry(
                "identity", FACTS, "identity", "missing", severity="advisory", expected="unique in the run",
                reason="no machine id, serial or GPU UUID is known",
                remedy="make sure that /etc/machine-id is not empty and that the facts may read it",
            )
        ]  # fmt: skip
    if not twins:
        return [
            own_entry("identity", FACTS, "identity", "pass", expected="unique in the run", reason="unique in the run")
        ]
    others = sorted(twins, key=natural_order)
    first, *more = sorted(twins[others[0]])[:3]
    same = one_line(", ".join([first, *(told.removeprefix(SAME) for told in more)]), 240)
    named = some_of(others)
    more_names = named.removeprefix(others[0]).removeprefix(", ")
    first_name = f"{others[0]} (and {more_names})" if more_names else others[0]
    return [
        own_entry(
            "identity", FACTS, "identity", "fail", value=named, expected="unique in the run",
            reason=f"one machine listed twice: {first_name} {same}",
            remedy="give every machine one name in the inventory, and correct an address that is another's; cloned "
            "disks need a machine id of their own",
        )
    ]  # fmt: skip


def _identity_values(facts: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    identity = _identity(facts)
    pairs = [("machine id", identity.get("machine_id")), ("serial", identity.get("serial"))]
    pairs += [("GPU UUID", uuid) for uuid in identity.get("gpu_uuids", [])]
    known = [(what, " ".join(value.lower().split())) for what, value in pairs if isinstance(value, str)]
    return list(dict.fromkeys((what, value) for what, value in known if not is_useless(value)))


def is_useless(value: str) -> bool:
    """Whether an identity, in lower case, is a filler that many machines share."""
    return value in _USELESS_IDENTITY or len(set(value.replace("-", ""))) <= 1  # 00000000-0000-..., xxxxxxxx


def _identity(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """What tells the machine and its GPUs apart, from the environment of the facts, whose form nothing guarantees."""
    if facts is None:
        return {}
    environment = facts["environment"]
    found = environment.get("identity")
    identity: dict[str, Any] = {}
    if isinstance(found, dict):
        for key in ("machine_id", "serial"):
            if isinstance(found.get(key), str):
                identity[key] = one_line(found[key], 128)
        uuids = found.get("gpu_uuids")
        if isinstance(uuids, list):
            identity["gpu_uuids"] = [one_line(uuid, 128) for uuid in uuids[:MAX_GPUS_SHOWN] if isinstance(uuid, str)]
    gpus = environment.get("gpus")
    if isinstance(gpus, list):
        identity["gpus"] = [
            _gpu(index, gpu) for index, gpu in enumerate(gpus[:MAX_GPUS_SHOWN]) if isinstance(gpu, dict)
        ]
    return identity


def _gpu(position: int, gpu: Mapping[str, Any]) -> dict[str, Any]:
    index = gpu.get("index")
    shown: dict[str, Any] = {"index": index if type(index) is int else position}
    for key, names in (
        ("model", ("model", "name")),
        ("serial", ("serial",)),
        ("pci", ("pci_address", "pci", "bus_id")),
    ):
        text = next((gpu[name] for name in names if isinstance(gpu.get(name), str)), "")
        if text and text.lower() not in _USELESS_IDENTITY:
            shown[key] = one_line(text, 96)
    return shown


def _models(facts: Mapping[str, Any] | None) -> list[str]:
    """What the GPUs of the node are called, one for each that the facts list with a name."""
    return [gpu["model"] for gpu in _identity(facts).get("gpus", []) if "model" in gpu]


def _accelerator(sku: str, facts: Mapping[str, Any] | None) -> str:
    if sku == "cpu":
        return "cpu"
    accelerator = facts["environment"].get("accelerator") if facts else None
    vendor = accelerator.get("vendor") if isinstance(accelerator, dict) else None
    return vendor if vendor == "cpu" or vendor in GPU_VENDORS else "unknown"


def _count(record: Mapping[str, Any] | None, name: str) -> int | float | None:
    """A count that the node reported; None when it reported none, or several that disagree."""
    metrics = record["metrics"] if record else []
    values = {metric["value"] for metric in metrics if metric["name"] == name and metric["scope"] == "node"}
    return values.pop() if len(values) == 1 else None


def _stage(name: str, record: Mapping[str, Any] | None, *, failed: bool) -> dict[str, Any]:
    if record is None:
        return {
            "name": name, "workload": None, "state": "missing", "message": "", "attempt": None, "flaky": False,
            "started_at": None, "finished_at": None, "duration_seconds": None,
        }  # fmt: skip
    retried = any(
        attempt["state"] not in ("pending", "skipped", "cancelled") and not attempt.get("regrouped")
        for attempt in record["attempts"]
    )
    return {
        "name": name,
        "workload": one_line(record["workload"], 64),
        "state": record["state"],
        "message": one_line(record["message"], 1000),
        "attempt": record["attempt"],
        "flaky": record["state"] == "success" and retried and not failed,
        "started_at": record["started_at"],
        "finished_at": record["finished_at"],
        "duration_seconds": record["duration_seconds"],
    }


def _problems_of(name: str, stages: Sequence[str], evidence: Evidence) -> list[dict[str, Any]]:
    problems = [_problem(problem) for problem in evidence.problems if problem["node"] == name]
    for stage in evidence.records.get(name, {}):
        if stage not in stages:
            reason = "a record of a stage that the node was not asked to run"
            problems.append({"node": name, "stage": one_line(stage, 40), "reason": reason})
    return problems


def _problems(run: Mapping[str, Any], evidence: Evidence) -> list[dict[str, Any]]:
    problems = [_problem(problem) for problem in evidence.problems]
    for name in sorted(evidence.records.keys() - run["nodes"].keys()):
        problems.append(
            {"node": None, "stage": None, "reason": f"records of {one_line(name, 80)!r}, not a node of the run"}
        )
    for name, expected in run["nodes"].items():
        for stage in sorted(evidence.records.get(name, {}).keys() - set(expected["stages"])):
            reason = "a record of a stage that the node was not asked to run"
            problems.append({"node": name, "stage": one_line(stage, 40), "reason": reason})
    return sorted(problems, key=lambda one: (one["node"] or "", one["stage"] or "", one["reason"]))


def _problem(problem: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node": one_line(problem["node"], 253) if problem["node"] else None,
        "stage": one_line(problem["stage"], 40) if problem["stage"] else None,
        "reason": one_line(problem["reason"]),
    }
