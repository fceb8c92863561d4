"""Applies verdicts in Slurm: decides which nodes a run drains and which it resumes. A drain for another reason than
``gpuval:RUN:CLASS`` is left alone. The folder of run RUN says which stages the node must still pass before it is
resumed; if that folder is gone, the node must pass a whole run."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import files
from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..runs import failed_checks
from ..runs import folder as run_folder
from ..runs.failed_checks import FAIL, PASS
from ..watch.scheduler import NodeVerdicts
from .commands import Slurm, SlurmError
from .nodes import DRAINED

DRAIN, RESUME, KEEP, FOREIGN = "DRAIN", "RESUME", "KEEP", "FOREIGN"
#: Slurm's states of nodes that are out of service for other reasons than a drain.
OUT = frozenset({"DOWN", "FAIL", "FAILING", "ERROR"})
REASON = re.compile(r"gpuval:(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,62}):[A-Za-z0-9._-]+")
#: Time limit to drain and resume all nodes of a run together.
ALL_SECONDS = 120.0
NODES_AT_ONCE = 200
FILE = "drains.json"


@dataclass(frozen=True)
class SlurmNode:
    states: frozenset[str]
    reason: str = ""

    @property
    def run_id(self) -> str:
        """Id of the run that drained the node; empty if gpuval did not drain it."""
        match = REASON.fullmatch(self.reason)
        return match["run"] if match and self.is_away else ""

    @property
    def is_away(self) -> bool:
        return bool(self.states & OUT.union(DRAINED))

    @property
    def text(self) -> str:
        return f"{'+'.join(sorted(self.states))} {self.reason}\n"


@dataclass(frozen=True)
class Drain:
    """What to do with a node. ``state``: DRAIN or RESUME changes the node, KEEP leaves it drained, FOREIGN: drained by
    others, empty: nothing. ``open``: checks that the node has to pass before it is resumed."""

    state: str
    reason: str = ""
    open: frozenset[str] = frozenset()


def decide(
    node: SlurmNode,
    judged: Mapping[str, Any],
    run: Mapping[str, Any],
    open_before: frozenset[str] | None,
    *,
    incomplete: bool = False,
) -> Drain:
    """Decide whether the run's verdict drains or resumes a node. ``judged``: the node in the report; ``open_before``:
    checks it had to pass until now, None if unknown; ``incomplete``: drain for INCOMPLETE too if the node itself is
    implicated."""
    verdict = judged["verdict"]
    drains = verdict == FAIL or (incomplete and verdict != PASS and failed_checks.is_about(judged))
    if node.is_away and not node.run_id:
        return Drain(FOREIGN if drains else "", node.reason)
    drained = bool(node.run_id)
    decision = failed_checks.decide(open_before, judged, failed=drained, full=failed_checks.is_whole(run, judged))
    if drains and not (drained and verdict != FAIL):
        word = re.sub(r"[^A-Za-z0-9._-]", "_", str(judged.get("class") or verdict))[:64]
        reason = f"gpuval:{run['run_id']}:{word}"
        still = decision.open | failed_checks.of_node(judged)
        return Drain(KEEP if node.reason == reason and drained else DRAIN, reason, still)
    if drained:
        if not decision.stays and node.states & OUT:  # to resume a node that is down would put it into service
            return Drain(FOREIGN, node.reason)
        return Drain(KEEP if decision.stays else RESUME, node.reason, decision.open)
    return Drain("")


def mark(
    results: Path, report: Mapping[str, Any], chosen: Collection[str] = (), *, incomplete: bool, trial: bool
) -> NodeVerdicts:
    """Drain and resume nodes by a report's verdicts; ``chosen``: only these. Raises SlurmError if Slurm is away."""
    slurm = Slurm()
    run, verdicts, node_by_name = report["run"], NodeVerdicts(), read(slurm)
    drain_by_name: dict[str, Drain] = {}
    opened: dict[str, dict[str, frozenset[str]]] = {}
    shared = Counter(judged["name"].partition(".")[0] for judged in report["nodes"])
    for judged in report["nodes"]:
        name, short = judged["name"], judged["name"].partition(".")[0]
        if name not in node_by_name and shared[short] == 1:  # the short name is unique
            name = short
        if chosen and judged["name"] not in chosen:
            continue
        if name not in node_by_name:
            verdicts.missing.append(judged["name"])
            continue
        node = node_by_name[name]
        earlier = open_of(results, node.run_id)
        if node.run_id and earlier["finished_at"] > (run["finished_at"] or ""):
            continue  # a later run drained it
        drain = decide(node, judged, run, earlier["nodes"].get(name), incomplete=incomplete)
        if drain.state == FOREIGN:
            verdicts.foreign.append(f"{name} ({one_line(drain.reason, 80) or 'no reason'})")
        elif drain.state == KEEP and judged["verdict"] != FAIL:
            verdicts.still[name] = drain.open
        elif drain.state in (DRAIN, RESUME):
            drain_by_name[name] = drain
            verdicts.changes[name] = (node.text, f"{drain.state} {drain.reason if drain.state == DRAIN else ''}\n")
        if drain.state in (DRAIN, KEEP):
            opened.setdefault(drain.reason.split(":")[1], {})[name] = drain.open
    if not trial:
        for run_id, nodes in opened.items():
            _keep_open(results, run_id, run["finished_at"] or "", nodes)
        _apply(slurm, drain_by_name, verdicts)
    return verdicts


def release(run_ids: Collection[str], chosen: Collection[str] = (), *, trial: bool) -> NodeVerdicts:
    """Resume the nodes that these runs drained, without ``run_ids`` that any run drained; ``chosen``: only these nodes.
    Raises SlurmError if Slurm is away."""
    slurm, verdicts = Slurm(), NodeVerdicts()
    node_by_name = read(slurm)
    chosen = {name if name in node_by_name else name.partition(".")[0] for name in chosen}
    for name, node in node_by_name.items():
        if not node.run_id or (run_ids and node.run_id not in run_ids) or (chosen and name not in chosen):
            continue
        if node.states & OUT:
            verdicts.foreign.append(f"{name} ({'+'.join(sorted(node.states))})")
        else:
            verdicts.changes[name] = (node.text, f"{RESUME}\n")
    if not trial:
        _apply(slurm, dict.fromkeys(verdicts.changes, Drain(RESUME)), verdicts)
    return verdicts


def read(slurm: Slurm) -> dict[str, SlurmNode]:
    """All nodes of the cluster, by name. Raises SlurmError."""
    return {node["name"]: SlurmNode(frozenset(node["state"]), node["reason"]) for node in slurm.nodes()}


def _apply(slurm: Slurm, drain_by_name: Mapping[str, Drain], verdicts: NodeVerdicts) -> None:
    """Drain and resume nodes, all nodes with the same reason by one command. Removes failed changes from
    ``verdicts``."""
    groups = values_by_key(
        ((drain.state, drain.reason if drain.state == DRAIN else ""), name) for name, drain in drain_by_name.items()
    )
    until = time.monotonic() + ALL_SECONDS
    problems: list[str] = []
    for (state, reason), names in groups.items():
        for begin in range(0, len(names), NODES_AT_ONCE):
            chosen = names[begin : begin + NODES_AT_ONCE]
            words = [f"NodeName={','.join(chosen)}", f"State={state}", *([f"Reason={reason}"] if reason else [])]
            problem = "no time left: run it again"
            if time.monotonic() <= until:
                try:
                    slurm.run("scontrol", "update", *words)
                    continue
                except SlurmError as error:
                    problem = str(error)
            problems.append(f"{one_line(','.join(chosen), 200)}: {problem}")
            verdicts.changes = {name: change for name, change in verdicts.changes.items() if name not in chosen}
    verdicts.problem = "; ".join(problems)


def open_of(results: Path, run_id: str) -> dict[str, Any]:
    """Checks that nodes drained by a run have yet to pass: ``nodes``, {node: checks}, and ``finished_at``, the end of
    the run; empty if its folder in ``results`` has none."""
    try:
        document = run_folder.read_json(_file(results, run_id))
        nodes = {str(name): frozenset(map(str, checks)) for name, checks in document["nodes"].items()}
        return {"finished_at": str(document["finished_at"]), "nodes": nodes}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"finished_at": "", "nodes": {}}


def _keep_open(results: Path, run_id: str, finished_at: str, nodes: Mapping[str, Iterable[str]]) -> None:
    """Add the checks that these nodes have yet to pass to the run's drains.json, unless the run's folder is gone."""
    path = _file(results, run_id)
    if not path.parent.is_dir():
        return
    before = open_of(results, run_id)
    merged = {name: sorted(checks) for name, checks in sorted({**before["nodes"], **nodes}.items())}
    document = {"finished_at": before["finished_at"] or finished_at, "nodes": merged}
    files.replace(path, run_folder.json_bytes(document), 0o600)


def _file(results: Path, run_id: str) -> Path:
    return run_folder.find(results, run_id).state / FILE
