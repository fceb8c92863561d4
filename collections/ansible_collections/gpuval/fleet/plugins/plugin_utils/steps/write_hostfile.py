"""Write MPI hostfiles with the nodes of a run that passed and may work together."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.paths import project_path
from ..core.step_options import PathText
from ..core.text import some_of
from ..gang import document as gang_document
from ..gang import forming, hostfiles, orchestrate, session
from ..judge import criteria
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions

BAD = "the search for the bad node found it"


class WriteHostfileOptions(RunOptions):
    baseline: PathText = ""
    path: PathText = ""
    criteria: Sequence[PathText] = ()
    size: int = 0
    group_by: Sequence[str] = ("sku",)


def write_hostfile(action: RunAction, options: WriteHostfileOptions) -> dict[str, Any]:
    folder = action.folder(options)
    run = folder.read_run()
    checks = criteria.beside_shipped(options.criteria)
    document = gang_document.read(folder)
    report = session.judge_of(folder, checks, options.criteria, options.baseline)(document)
    for remark in unsettled(run, document, report["nodes"]):
        action.display.warning(f"run {run['run_id']} {remark}")
    placed = session.placed(run["nodes"], action.task_vars["ansible_play_hosts_all"], action.task_vars["hostvars"])
    node_properties = session.properties(folder, run)
    bad = gang_document.bad_nodes(document)
    barred = {
        node["name"]: BAD if node["name"] in bad else f"its verdict is {node['verdict']}: {node['class']}"
        for node in report["nodes"]
        if node["name"] in bad or node["verdict"] != "PASS"
    }
    barred |= {name: forming.NOT_HERE for name in run["nodes"] if name not in placed and name not in barred}
    candidates = [
        orchestrate.candidate(node, placed[node["name"]], node_properties[node["name"]])
        for node in report["nodes"]
        if node["name"] not in barred
    ]
    formation = forming.form(candidates, options.size, options.group_by)
    formation.left_out |= barred
    for node, reason in formation.left_out.items():
        action.display.warning(f"{node} is left out: {reason}")
    results = folder.results
    target = project_path(options.path) if options.path else folder.path / "hostfile"
    if not formation.gangs:
        message = "no two nodes of the run may work together: see the warnings above"
        stale_files = hostfiles.stale(results, target)
        if stale_files and not action.check_mode:
            hostfiles.write(results, {}, stale_files)
            message += f"; removed, since they are of earlier gangs: {', '.join(map(str, stale_files))}"
        raise run_folder.RunError(message)
    written = {}
    for gang, members in formation.gangs.items():
        path = hostfiles.path_of(target, gang, len(formation.gangs))
        written[path] = "".join(f"{member.address} slots={member.slots}\n" for member in members)
    changed = [path for path, text in written.items() if not hostfiles.same(path, text)]
    stale_files = hostfiles.stale(results, target, written)
    for path in stale_files:
        action.display.warning(f"{path} is of an earlier gang{'' if action.check_mode else ': it is removed'}")
    if not action.check_mode:
        hostfiles.write(results, written, stale_files)
    lines = [f"{path}: {text.count(chr(10))} nodes" for path, text in written.items()]
    action.display.display(*lines)
    return {
        "changed": bool(changed or stale_files),
        "paths": [str(path) for path in written],
        "removed": [str(path) for path in stale_files],
        "left_out": formation.left_out,
        "msg": "; ".join(lines),
    }


def unsettled(
    run: Mapping[str, Any], document: Mapping[str, Any] | None, nodes: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Remarks on a run whose passed nodes are not accepted. `document`: gangs.json; `nodes`: of the report."""
    remarks = []
    if run["narrowed_by"]:
        remarks.append(f"was narrowed ({', '.join(run['narrowed_by'])}): its nodes are not accepted by it")
    unproven = [node["name"] for node in nodes if node["verdict"] == "PASS" and node.get("unproven")]
    if unproven:
        remarks.append(f"proves less than an acceptance needs: {some_of(unproven)} are not accepted by it")
    has_gang_stages = any(node.get("gang_stages") for node in run["nodes"].values())
    if has_gang_stages and (document is None or document["ended_at"] is None):
        remarks.append("has not finished its gangs: what they say of its nodes is not known yet")
    elif run["finished_at"] is None:
        remarks.append("is not finished: its nodes may still fail")
    if not has_gang_stages:
        remarks.append("had no stages of gangs: it is unknown whether its nodes can work together")
    return remarks
