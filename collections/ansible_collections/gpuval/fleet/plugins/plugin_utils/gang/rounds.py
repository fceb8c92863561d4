"""Rounds of multi-node tests: their run.json and ids, and what their records mean to the search for a bad node."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.escape import one_line
from ..core.text import first_lines, some_of
from ..records.documents import Record
from ..runs.folder import RunError, known_runs
from . import fabrics
from .document import AGAIN, BAD, FABRIC, GANGS, SEARCH, stage_of
from .forming import LEAST
from .search.pair_noise import GroupResult

MAX_RUN_ID = 63
#: Limits of a search's sentences in a node's record: lines, characters of a line and of all, names.
MAX_LINES, MAX_LINE, MAX_SHOWN, MAX_NAMES = 4, 200, 1000, 3
#: Limits of the problems that a node's host checks found: their number, and characters of each.
MAX_PROBLEMS, MAX_PROBLEM = 3, 200
#: Least number of nodes that can be compared by speed.
COMPARED = 3
#: Maximum number of fault figures in a node's record of a search.
MAX_FIGURES = 1024
#: Figures by which groups of a search are compared, over the network and over NVLink.
BUS, LATENCY = "gang_all_reduce_bus_bytes_per_second", "gang_all_reduce_latency_seconds"
NVLINK_BUS, NVLINK_LATENCY = "gang_nvlink_all_reduce_bus_bytes_per_second", "gang_nvlink_all_reduce_latency_seconds"
ERRORS = "gang_collective_error_count"
OTHER_NETWORK = "gang_network_unexpected_count"
#: Metric with the message size of a group's measurements in bytes, which its device with the least memory limits.
LARGEST = "gang_collective_largest_bytes"
#: Matches messages about device memory or a port that another process occupies, not about a killed process.
OCCUPIED = re.compile(
    r"OutOfMemoryError|ran out of device memory|(CUDA|HIP)( error| failure)?( \d+)?:? (error: )?'?out of memory|"
    r"EADDRINUSE|address already in use",
    re.IGNORECASE,
)
#: Metrics of faults: the node's record has the worst value of all rounds of a search.
FAULTS = (
    "gpu_xid_critical_count",
    "kernel_xid_critical_count",
    "gpu_ecc_uncorrected_new_count",
    "gpu_lost_count",
    "gpu_row_remap_new_count",
    "topology_changed_count",
    "kernel_sxid_count",
    "kernel_ras_count",
)
#: New errors on the links of a GPU, which show the part of a bad node.
LINK_ERRORS = "gpu_link_error_new_count"
#: States of a stage without any measurement.
NOTHING_RAN = ("pending", "running", "skipped", "cancelled")
HEALTHY, SUSPECT, UNTESTED = "healthy", "suspect", "untested"


def run_id_of(run_id: str, name: str) -> str:
    """The run id of the round ``name`` of a run, short enough for names of folders, containers and pods on nodes."""
    full_id = f"{run_id}.{name}"
    if len(full_id) <= MAX_RUN_ID:
        return full_id
    digest = hashlib.sha256(full_id.encode()).hexdigest()[:8]
    return f"{run_id[: MAX_RUN_ID - 9 - 1 - len(name[:20])]}-{digest}.{name[:20]}"


def round_run(
    run: Mapping[str, Any],
    name: str,
    gangs: Mapping[str, Sequence[Mapping[str, Any]]],
    stages: Sequence[str],
    *,
    port: int,
    ssh_port: int,
    seconds: float,
    created_at: str,
    address: Callable[[str, Mapping[str, Any]], str] = lambda _run_id, member: member["address"],
) -> dict[str, Any]:
    """The run.json (``gpuval.run/1``) of a round of at most ``seconds``. ``gangs``: ``{name: members}``, each with
    node, address, slots, vendor. ``address``: returns a member's address, which may depend on the round's run id."""
    run_id = run_id_of(run["run_id"], name)
    nodes: dict[str, Any] = {}
    listed: dict[str, Any] = {}
    for gang, members in gangs.items():
        copied = ("node", "slots", "labels", "clique")
        stages_by_node = fabrics.stages_in(members, stages)
        described = [
            {**{key: member[key] for key in copied if key in member}, "address": address(run_id, member)}
            for member in members
        ]
        listed[gang] = {"members": described, "port": port, "ssh_port": ssh_port}
        for index, member in enumerate(members):
            nodes[member["node"]] = {
                "stages": stages_by_node[member["node"]],
                "sku": member["vendor"],
                "gpu_count": 0 if member["vendor"] == "cpu" else member["slots"],
                "gang": {"name": gang, "index": index},
            }
    return {
        "schema": "gpuval.run/1",
        "bucket": run["bucket"],
        "profile": run["profile"],
        **({"workloads": run["workloads"]} if "workloads" in run else {}),
        "run_id": run_id,
        "folder": f"{run['folder']}/gangs/{name}",
        "created_at": created_at,
        "finished_at": None,
        "deadline_seconds": seconds,
        "narrowed_by": [],
        "gangs": listed,
        "nodes": nodes,
    }


def name_of(kind: str, number: int, gangs: Sequence[str]) -> str:
    """The name of a round: that of its only gang, else its kind; a search's has a ``number``. Names must be unique: a
    gang named like a round of a search does not give its name to a round."""
    if kind == SEARCH:
        return f"{SEARCH}-{number:02}"
    base = gangs[0] if len(gangs) == 1 and not re.fullmatch(rf"{SEARCH}-\d+", gangs[0]) else GANGS
    return base if kind == GANGS else f"{base}-{AGAIN}"


def size_of(members: Sequence[str], records: Mapping[str, Mapping[str, Any] | None]) -> float | None:
    """The message size in bytes at which a group was measured; None if no member reports it. ``records``: by node."""
    sizes = (figure(record, LARGEST) for node in members if (record := records.get(node)) is not None)
    return min((size for size in sizes if size), default=None)


def usual_size(sizes: Iterable[float | None]) -> float | None:
    """The most frequent message size in bytes, the larger of two that are equally frequent; None if none is known."""
    counted = Counter(size for size in sizes if size)
    return max(counted, key=lambda size: (counted[size], size), default=None)


def result_of(
    members: Sequence[str], records: Mapping[str, Mapping[str, Any] | None], usual_bytes: float | None = None
) -> GroupResult:
    """The result of one group of a search, from its members' ``{node: record}``. It is ``missing`` if a record is, if
    the work did not start (an occupied port, other software, occupied device memory, a late launch), which shows
    nothing about the hardware, or if the message size is not that of most groups (``usual_bytes``)."""
    by_node = {node: records.get(node) for node in members}
    if any(record is None or record["state"] in NOTHING_RAN for record in by_node.values()):
        silent = [node for node, record in by_node.items() if record is None or record["finished_at"] is None]
        reason = f"no result from {', '.join(silent)}" if silent else "it did not finish"
        return GroupResult("missing", message=reason)
    reported = {node: record for node, record in by_node.items() if record is not None}
    states = {record["state"] for record in reported.values()}
    message = next((record["message"] for record in reported.values() if record["state"] != "success"), "")
    if any(figure(record, ERRORS) for record in reported.values()):
        return GroupResult("wrong", message=message)
    if states == {"success"}:
        unchecked = [node for node, record in reported.items() if figure(record, ERRORS) is None]
        if unchecked:
            message = f"{', '.join(unchecked)} did not report whether the elements are right"
            return GroupResult("missing", message=message)
        size = size_of(members, records)
        if size and usual_bytes and size != usual_bytes:
            message = f"measured at {size:.0f} bytes, most groups at {usual_bytes:.0f}"
            message += ": free device memory differs; end the processes that occupy it"
            return GroupResult("missing", message=message)
        buses = [figure(record, BUS, NVLINK_BUS) for record in reported.values()]
        waits = [figure(record, LATENCY, NVLINK_LATENCY) for record in reported.values()]
        return GroupResult(
            "ok",
            bus_bytes_per_second=min((bus for bus in buses if bus), default=None),
            latency_seconds=max((wait for wait in waits if wait), default=None),
        )
    # Members that failed before all members had joined with the same software and the ranks had started.
    absent = [
        node
        for node, record in reported.items()
        if record["state"] != "success" and _part_of(record, "gang").get("joined") is not True
    ]
    if absent:
        where = f" on {', '.join(absent)}" if len(absent) < len(members) else ""
        return GroupResult("missing", message=f"the work did not begin{where}: {message}")
    if any(OCCUPIED.search(record["message"]) for record in reported.values()):
        return GroupResult("missing", message=message)
    return GroupResult("timeout" if "timeout" in states else "crash", message=message)


def lost(record: Mapping[str, Any]) -> bool:
    """Whether the member reports that another member no longer answered."""
    return bool(_part_of(record, "gang").get("lost"))


def _part_of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping ``name`` in a record's environment; empty if the node wrote something else."""
    part = record["environment"].get(name)
    return part if isinstance(part, Mapping) else {}


def figure(record: Mapping[str, Any], *names: str) -> float | None:
    return next((item["value"] for item in record["metrics"] if item["name"] in names), None)


def of_other_network(nodes: Mapping[str, str], groups: Iterable[tuple[Sequence[str], Mapping[str, str]]]) -> list[str]:
    """A line about the nodes that used another network than expected in a search; none without such nodes. ``nodes``:
    classes; ``groups``: members, and messages by node. A group with a node that is not healthy is ignored."""
    messages: dict[str, str] = {}
    for members, reported in groups:
        if all(nodes.get(node) == HEALTHY for node in members):
            messages |= reported
    named = [node for node in nodes if node in messages]
    if not named:
        return []
    names = some_of(named, MAX_NAMES)
    return [f"not over the expected network: {names}: {one_line(messages[named[0]], MAX_LINE)}"[:MAX_LINE]]


def members_to_rerun(
    members: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    condemned: Collection[str] = (),
    *,
    once_more: bool = False,
) -> list[Mapping[str, Any]]:
    """The members that run again after its searches; none if these do not explain why the gang failed. These are the
    healthy nodes without a failure of their own (``condemned``), if no link, boundary or fault of the whole gang was
    found. All members if none is implicated and the failed measurement may be repeated (``once_more``)."""
    states = [(node, state) for finding in findings for node, state in finding["nodes"].items()]
    implicated = {*condemned, *(node for node, state in states if state != HEALTHY)}
    healthy = [member for member in members if member["node"] not in implicated]
    explained = len(healthy) < len(members) or once_more
    unclean = any(finding["bad_links"] or finding["suspect_links"] or of_all(finding) for finding in findings)
    return healthy if explained and not unclean and len(healthy) >= LEAST else []


def of_all(finding: Mapping[str, Any]) -> list[str]:
    """Lines on a search's findings about no single node or link: racks, switches, the whole gang, an early stop."""
    lines = []
    for state in ("bad", "suspect"):
        for boundary in finding[f"{state}_boundaries"]:
            name = name_of_boundary(boundary)
            lines.append(": ".join(filter(None, (f"{name} is {state}", "; ".join(finding["evidence"].get(name, ()))))))
    lines += finding["gang"]
    if finding["stopped"]:
        lines.append(f"the search is incomplete: it stopped at {finding['stopped']}")
    return [line[:MAX_LINE] for line in first_lines(lines, MAX_LINES)]


def name_of_boundary(boundary: Any) -> str:
    """The name of a boundary in the evidence (``rack r1 - r2 (between)``)."""
    if not isinstance(boundary, Mapping):
        return str(boundary)
    return f"{boundary['kind']} {' - '.join(boundary['names'])} ({boundary['scope']})"


def unknown_speed(finding: Mapping[str, Any]) -> str:
    """A warning that all nodes may be slow: they are only compared with each other; empty if a speed is expected."""
    if finding.get("expected_bytes_per_second"):
        return ""
    count, bus = len(finding["nodes"]), finding.get("centre_bytes_per_second")
    compared = "have no third node to compare with" if count < COMPARED else "were compared with each other only"
    reached = f"they reach {bus / 1e9:.3g} GB/s on the bus" if bus else "their speed was not measured"
    setting = f"gpuval_gang{'' if stage_of(finding) == FABRIC else '_nvlink'}_expected_bytes_per_second"
    return f"{count} nodes {compared}: {reached}; whether that is slow is unknown: set {setting}"


def sentence(node: str, finding: Mapping[str, Any]) -> str:
    """The search's sentences about a node, its links and boundaries."""
    lines = [*finding["evidence"].get(node, [])]
    for name, reasons in finding["evidence"].items():
        if name != node and node in name and node in name.split():  # the first test is quick: there may be thousands
            lines += [f"link {name}: {line}" for line in reasons]
    return "; ".join(lines)


def fabric_record(run: Mapping[str, Any], node: str, finding: Mapping[str, Any], at: str) -> Record:
    """The record (``gpuval.record/1``) of a search's findings on a node, from the controller at the time ``at``."""
    state, stage = finding["nodes"].get(node, UNTESTED), stage_of(finding)
    bad_links = [link for link in finding["bad_links"] if node in link]
    suspect_links = [link for link in finding["suspect_links"] if node in link]
    gang_lines = of_all(finding)
    faults = finding.get("faults", {}).get(node, {"figures": [], "absent": {}, "rounds": []})
    speed = unknown_speed(finding) if state == HEALTHY else ""
    lines = [sentence(node, finding)[:MAX_SHOWN], *gang_lines, speed]
    problems = faults.get("host_checks")
    if problems and (state != HEALTHY or bad_links or suspect_links):
        lines.insert(1, f"its host checks: {'; '.join(problems)}")
    if faults["rounds"]:
        lines.append(f"faults in {some_of(faults['rounds'], MAX_LINES)}")
    counts = {
        "fabric_bad_count": int(state == BAD),
        "fabric_suspect_count": int(state == SUSPECT),
        "fabric_untested_count": int(state == UNTESTED),
        "fabric_bad_link_count": len(bad_links),
        "fabric_suspect_link_count": len(suspect_links),
        "fabric_unclean_count": int(bool(gang_lines or suspect_links)),
        "fabric_speed_unknown_count": int(bool(speed)),
        "fabric_search_rounds_count": finding["rounds"],
    }
    figures = [*((name, "node", value) for name, value in counts.items()), *faults["figures"]]
    return {
        "schema": "gpuval.record/1", "run_id": run["run_id"], "node": node, "stage": stage, "workload": stage,
        "attempt": 1, "state": "success",
        "message": ": ".join(filter(None, (state, "; ".join(filter(None, lines))))),
        "started_at": finding["began_at"], "updated_at": at, "finished_at": at,
        "duration_seconds": float(finding["seconds"]),
        "command": [], "image": None, "exit_code": None, "signal": None,
        "metrics": [{"name": name, "value": value, "unit": "count", "scope": scope} for name, scope, value in figures],
        "fingerprints": {},
        "environment": {
            "gang": {"name": finding["name"]},
            "links": [" - ".join(link) for link in bad_links],
            **({"telemetry": {"absent": faults["absent"]}} if faults["absent"] else {}),
        },
        "artifacts": [], "attempts": [],
    }  # fmt: skip


def worst_faults(records: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The worst figure of each fault and scope in one node's records of a search (round, record). ``figures``: name,
    scope and value, None if it is no number. A figure that a round lacks is omitted, unless another round shows a
    fault. ``absent``: reasons for missing figures; ``rounds``: those with faults; ``host_checks``: problems from the
    last round that had any."""
    by_figure: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    absent: dict[str, str] = {}
    rounds: list[str] = []
    ran: set[str] = set()
    problems: list[str] = []
    for round_name, record in records:
        problems = problems_of(record) or problems
        faults = [item for item in record["metrics"] if item["name"] in FAULTS]
        for item in faults:
            by_figure.setdefault((item["name"], item["scope"]), []).append((round_name, item["value"]))
        if any(item["value"] for item in faults):
            rounds.append(round_name)
        if record["state"] in NOTHING_RAN:  # figures may be missing; a fault still counts
            continue
        ran.add(round_name)
        reasons = _part_of(record, "telemetry").get("absent")
        for fault, why in reasons.items() if isinstance(reasons, Mapping) else ():
            if fault == "kernel_log" or fault in FAULTS:
                absent[fault] = str(why)[:MAX_LINE]
    figures = []
    for (name, scope), values in by_figure.items():
        numbers = [value for _, value in values if value is not None]
        if any(numbers) or ran <= dict(values).keys():
            figures.append([name, scope, max(numbers) if any(numbers) or len(numbers) == len(values) else None])
    figures.sort(key=lambda figure: figure[2] == 0)  # faults first: the end of a long list is cut off
    return {"figures": figures[:MAX_FIGURES], "absent": absent, "rounds": rounds, "host_checks": problems}


def problems_of(record: Mapping[str, Any]) -> list[str]:
    """New errors on links of GPUs, then the problems that a record's host checks found; shortened."""
    links = (item for item in record["metrics"] if item["name"] == LINK_ERRORS and item["value"])
    found = [f"{item['scope']} has {item['value']:g} new link errors" for item in links]
    problems = _part_of(record, "host_checks").get("problems")
    found += map(str, problems[:MAX_PROBLEMS]) if isinstance(problems, list) else ()
    return [one_line(text, MAX_PROBLEM) for text in found[:MAX_PROBLEMS]]


ROUND_NAME = re.compile(r"[a-z0-9-]+")


def check_run_id(results: Path, run: Mapping[str, Any]) -> None:
    """Raise RunError for a new run whose id equals that of a possible round of a known run, or the reverse."""
    run_id = run["run_id"]
    has_gangs = _has_gangs(run)
    for folder in known_runs(results, imported=True):
        rival = folder.path.name
        problem = ""
        if rival != run_id and has_gangs and _is_round_of(rival, run_id):
            problem = f": a gang round would have the id of run {rival}"
        elif rival != run_id and _is_round_of(run_id, rival):
            with suppress(RunError):  # an unreadable run may have rounds
                problem = f" is also the id of a gang round of run {rival}"
                problem = problem if _has_gangs(folder.read_run()) else ""
        if problem:
            raise RunError(f"gpuval_run_id {run_id!r}{problem} on nodes and in the cluster: choose another one")


def _is_round_of(run_id: str, run: str) -> bool:
    """Whether a round of `run` may have this id."""
    name = run_id.rpartition(".")[2]
    return bool(name and name != run_id and ROUND_NAME.fullmatch(name)) and run_id_of(run, name) == run_id


def _has_gangs(run: Mapping[str, Any]) -> bool:
    return any(node.get("gang_stages") for node in run["nodes"].values())
