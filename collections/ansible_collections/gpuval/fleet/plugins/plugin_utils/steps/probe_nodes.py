"""Probe the nodes of the play, all at once, before anything else touches them."""

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ..core.text import some_of
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..ssh import findings as ssh_findings
from ..watch.launch_inputs import PROBE_FILE
from ..watch.scheduler import scheduler_of


class ProbeNodesOptions(RunOptions):
    placement: str = "ssh"
    state_dir: Path = Path(".gpuval")
    timeout_seconds: float = 4.0
    accept_new_host_keys: bool = True
    fast_kex: bool = True
    record: bool = False
    required: bool = False


def probe_nodes(action: RunAction, options: ProbeNodesOptions) -> dict[str, Any]:
    folder = action.folder(options) if options.record else None
    if folder and not action.check_mode:
        folder.advance(run_state.PREPARING)
    scheduler = scheduler_of(options.placement)
    probed = scheduler(action, options).probe()
    findings, seconds = probed.findings, round(probed.seconds, 3)
    nodes = {name: finding.document() for name, finding in findings.items()}
    if folder and not action.check_mode:
        document = {"schema": "gpuval.probe/1", "at": run_folder.now(), "seconds": seconds, "nodes": nodes}
        run_folder.write_json(folder.state / PROBE_FILE, document)
    action.display.display(*probed.lines)
    away = [name for name, finding in findings.items() if finding.state != ssh_findings.REACHABLE]
    if away and options.required:
        failure, names = "not reachable" if scheduler.over_ssh else "cannot run work", some_of(away, ssh_findings.SHOWN)
        raise AnsibleActionFail(f"{len(away)} of {len(nodes)} node(s) {failure}: {names}")
    return {"changed": False, "nodes": nodes, "away": away, "seconds": seconds, "msg": probed.lines[0], **probed.more}
