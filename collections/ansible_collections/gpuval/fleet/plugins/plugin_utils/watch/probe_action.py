"""What the actions that probe have in common: findings are recorded with the run, told, and may have to be good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import findings as ssh_findings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.launching import PROBE_FILE


class ProbeAction(RunAction):
    def conclude(
        self,
        folder: run_folder.RunFolder | None,
        findings: Mapping[str, ssh_findings.Finding],
        seconds: float,
        lines: Sequence[str],
        wrong: str | None,
    ) -> dict[str, Any]:
        """Write the findings into the run's folder (gpuval.probe/1), tell the lines, and return what both RETURN.

        Raises AnsibleActionFail with the words `wrong` when a node is not reachable; never without such words.
        """
        nodes = {name: finding.document() for name, finding in findings.items()}
        if folder and not self.check_mode:
            document = {
                "schema": "gpuval.probe/1",
                "at": run_folder.now(),
                "seconds": round(seconds, 3),
                "nodes": nodes,
            }
            run_folder.write_json(folder.state / PROBE_FILE, document)
        for line in lines:
            self._display.display(line)
        away = [name for name, finding in findings.items() if finding.state != ssh_findings.REACHABLE]
        if away and wrong:
            raise AnsibleActionFail(f"{len(away)} of {len(nodes)} node(s) {wrong}: {some_of(away, ssh_findings.SHOWN)}")
        return {"nodes": nodes, "away": away, "seconds": round(seconds, 3), "msg": lines[0]}
