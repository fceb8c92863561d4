"""Functions that Ansible actions on gangs share: settings, nodes of the inventory, judging, publishing, aborting."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.store import StoreError
from ..core.escape import one_line
from ..judge import baseline, judging, subjects
from ..judge.check import FACTS, Check
from ..records import environment
from ..records.documents import EvidenceProblem
from ..runs import applied_criteria
from ..runs import folder as run_folder
from ..runs.folder import RunError, RunFolder
from ..store.backend import StoreBackend
from . import document as gang_document
from . import evidence, fabrics
from .judging import read_inputs, report_on
from .orchestrate import MISSING, GangNode, GangSettings

#: Settings of a round: all members work at the same time, so no node waits, and no single node is retried.
LIMITS: dict[str, Any] = {"retries": 0, "max_nodes_at_once": 0, "wait_for_node": 0.0}
MAX_MESSAGE = 240


def ensure_valid(settings: GangSettings) -> None:
    """Check the settings of gangs. Raises RunError for unusable values."""
    if settings.size < 0 or settings.size == 1:
        raise RunError(f"gpuval_gang_size {settings.size}: use 2 or more, or 0 for all nodes that are alike")
    port, ssh_port = settings.port, settings.ssh_port
    if not 1 <= port <= 65534 or not 1 <= ssh_port <= 65535 or ssh_port in (port, port + 1):
        raise RunError(
            f"gpuval_gang_port {port}, gpuval_gang_ssh_port {ssh_port}: members use the first, the one after it and "
            "the second; set three different ports of 1 to 65535"
        )
    seconds = {name: getattr(settings, name) for name in ("round_seconds", "search_seconds", "search_round_seconds")}
    wrong = [f"{name} {value:g}" for name, value in seconds.items() if not value > 0]
    if wrong:
        raise RunError(f"{', '.join(wrong)}: set more than 0 seconds")
    short = run_folder.search_too_short(settings.search_seconds, settings.search_round_seconds)
    if short and settings.search:
        raise RunError(short)
    for name in ("expected_bytes_per_second", "nvlink_expected_bytes_per_second"):
        if not 0 <= (expected := getattr(settings, name)) < float("inf"):
            raise RunError(f"gpuval_gang_{name} {expected:g}: set a speed in bytes/s, or 0 if unknown")


def begin(folder: RunFolder, settings: GangSettings) -> None:
    """Record the time limit of a search for other commands, and remove problems of an aborted earlier attempt."""
    run_folder.write_json(folder.gang_limits_file, {"search_seconds": settings.search_seconds})
    if folder.read_problems():
        run_folder.write_json(folder.problems_file, _lasting_problems(folder))


def _lasting_problems(folder: RunFolder) -> list[EvidenceProblem]:
    """The run's problems without those of an aborted attempt."""
    return [one for one in folder.read_problems() if not one["reason"].startswith(gang_document.ABORTED)]


def abort(folder: RunFolder, message: str) -> str:
    """Record the error that ended the gangs as the reason of every stage without a record. Returns this reason."""
    reason = f"{gang_document.ABORTED}: {one_line(message, MAX_MESSAGE)}"
    run = folder.read_run()
    try:
        document = gang_document.read(folder)
    except RunError:
        document = None
    run = evidence.expected(run, document)
    last = evidence.last_rounds(document) if document else {}
    spared = {*document["left_out"], *document["alone"]} if document else set()
    problems = [{"node": None, "stage": None, "reason": reason}]
    for name, node in run["nodes"].items():
        for stage in () if name in spared else node.get("gang_stages", ()):
            final = last.get(name)
            if final is None or not gang_document.round_folder(folder, final).evidence_file(name, stage).exists():
                problems.append({"node": name, "stage": stage, "reason": reason})
    run_folder.write_json(folder.problems_file, [*problems, *_lasting_problems(folder)])
    return reason


def placed(nodes: Mapping[str, Any], hosts: Collection[str], hostvars: Mapping[str, Any]) -> dict[str, GangNode]:
    """For each node the address that other members use, and its processes if it has no GPUs. Nodes that are not among
    the play's ``hosts`` are omitted: those that left the inventory have no hostvars. Raises RunError."""
    members, host_names = {}, set(hosts)
    for name in filter(host_names.__contains__, nodes):
        values = hostvars[name]
        in_cluster = (values.get("kubernetes_node") or {}).get("addresses") or {}  # the node's name may not resolve
        in_slurm = (values.get("slurm_node") or {}).get("address")
        address = in_cluster.get("InternalIP") or in_slurm or values.get("ansible_host") or name
        addresses = values.get("ssh_keys_addresses") or [address]
        first = addresses if isinstance(addresses, str) else addresses[0]
        slots = values.get("gpuval_gang_slots") or 1
        try:
            members[name] = GangNode(str(values.get("gpuval_gang_address") or first), int(slots))
        except (TypeError, ValueError):
            raise RunError(f"{name}: gpuval_gang_slots {slots!r} is not a whole number") from None
    return members


def properties(folder: RunFolder, run: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """``{node: {component: version}}`` by the facts, also with packages that multi-node stages need and lack."""
    versions = {}
    by_node = judging.read_evidence(folder, run).records
    for name in run["nodes"]:
        records = by_node.get(name, {})
        missing = {text for one in records.values() for text in environment.texts(one["environment"], MISSING)}
        missing_text = {MISSING: one_line(" ".join(sorted(missing)), MAX_MESSAGE)} if missing else {}
        facts = records.get(FACTS)
        clique = {fabrics.CLIQUE: fabrics.clique_of(facts)}
        versions[name] = {**subjects.properties_of_node({}, facts), **missing_text, **clique}
    return versions


def judge_of(
    folder: RunFolder, checks: Sequence[Check], criteria_files: Sequence[str], baseline_file: str
) -> Callable[[Mapping[str, Any] | None], dict[str, Any]]:
    """Make the function that judges the run's evidence so far."""
    _files, baseline_text, _remarks = applied_criteria.judged_by(folder, criteria_files, baseline_file)
    baseline_read = baseline.read(Path(baseline_text), folder.path.name) if baseline_text else None

    def judge(gangs: Mapping[str, Any] | None) -> dict[str, Any]:
        run, with_gangs = folder.read_run(), gangs is not None
        inputs = read_inputs(folder, run, checks, gangs=gangs, with_gangs=with_gangs, baseline=baseline_read)
        return report_on(inputs, for_report=False)

    return judge


def publisher_of(folder: RunFolder, access: StoreBackend, display: Any) -> Callable[[Mapping[str, Any]], None]:
    """Make the function that puts the gang document into the store."""

    def publish(document: Mapping[str, Any]) -> None:
        try:
            access.store().put(
                gang_document.key_of(folder.read_run()), json.dumps(document).encode(), "application/json"
            )
        except StoreError as error:
            display.warning(f"gangs.json is not in the store yet: {error}")

    return publish


def summary(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The task's result: the state of the run's gangs."""
    if document is None:
        return {"gangs": {}, "left_out": {}, "rounds": [], "msg": "no gangs"}
    return {
        "gangs": {name: [member["node"] for member in members] for name, members in document["gangs"].items()},
        "left_out": document["left_out"],
        "rounds": [item["name"] for item in document["rounds"]],
        "msg": f"{len(document['gangs'])} gang(s), {len(document['rounds'])} round(s)",
    }
