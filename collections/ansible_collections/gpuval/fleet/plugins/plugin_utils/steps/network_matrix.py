"""Write the matrix of links between nodes, and list bad nodes and links; no node is contacted."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.escape import one_line
from ..network import answers, findings, matrix
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions

FOLDER = "network"


def network_matrix(
    action: RunAction,
    options: RunOptions,
    plan: Mapping[str, Any],
    ports: Sequence[int] = (),
    endpoints: Sequence[str] = (),
) -> dict[str, Any]:
    """`plan` is what the step plan_peers returned; the run's folder, where there is a run, gets a copy. Reads
    network_applied, network_listened and network_probed of each host, which the role `network` registers."""
    fleet = read_fleet(plan, ports, endpoints, action.task_vars["hostvars"])
    faults = findings.find(fleet)
    folders = [options.results_dir / FOLDER]
    if options.run_id not in ("", run_folder.NEW):
        run = run_folder.resolve(options.results_dir, options.run_id).path
        folders += [run / FOLDER] if run.is_dir() else []
    lines = matrix.lines(fleet, faults, [] if action.check_mode else folders)
    document = matrix.document(fleet, faults, run_id=options.run_id or None, uncovered=plan.get("uncovered", []))
    for folder in [] if action.check_mode else folders:
        matrix.write(folder, document, matrix.table(fleet))
    action.display.display(*lines)
    failed = [finding for finding in faults if finding.level == "fail"]
    return {
        "changed": False,
        "findings": [finding.to_json() for finding in faults],
        "wrong": {
            node: "; ".join(finding.message for finding in failed if node in finding.failed)
            for node in {node for finding in failed for node in finding.failed}
        },
        "files": [str(folder / "matrix.json") for folder in folders],
        "summary": lines,
        "msg": lines[0],
    }


def read_fleet(
    plan: Mapping[str, Any], ports: Sequence[int], endpoints: Sequence[str], hostvars: Mapping[str, Any]
) -> findings.Fleet:
    """The nodes' answers about the network, and for each other node the reason why it has none."""
    answered: dict[str, answers.Answers] = {}
    for name, peers in plan["peers"].items():
        applied, listened, probed = (
            hostvars[name].get(f"network_{task}") or {} for task in ("applied", "listened", "probed")
        )
        facts, names = probed.get("measured"), [peer["name"] for peer in peers]
        if facts is None:
            reason = probed.get("msg") or applied.get("msg") or "it was not asked, since an earlier task failed"
            answered[name] = answers.Answers(reason=one_line(str(reason), 200) or "no answer")
            continue
        try:
            answered[name] = answers.take_in(facts, name, names, endpoints, listened.get("not_listening"))
        except answers.RejectedAnswerError as error:
            answered[name] = answers.Answers(reason=str(error), is_rejected=True)
    owners = {peer["address"]: peer["name"] for peers in plan["peers"].values() for peer in peers}
    return findings.Fleet(answered, plan["zones"], tuple(ports), owners)
