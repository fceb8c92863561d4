# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put together what the nodes say of each other, write the matrix, and name what is odd; no node is contacted."""

from __future__ import annotations

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.escape import one_line
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.network import answers, findings, matrix
from ..plugin_utils.runs import folder as run_folder

FOLDER = "network"


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        fleet = self._fleet(options, task_vars["hostvars"])
        found = findings.find(fleet)
        folders = self._folders(options)
        text = matrix.lines(fleet, found, [] if self.check_mode else folders)
        whole = matrix.document(
            fleet, found, run_id=options["run_id"] or None, uncovered=options["plan"].get("uncovered", [])
        )
        if not self.check_mode:
            for folder in folders:
                matrix.write(folder, whole, matrix.table(fleet))
        self._display.display(*text)
        failed = [finding for finding in found if finding.level == "fail"]
        return {
            "changed": False,
            "findings": [finding.to_json() for finding in found],
            "wrong": {
                node: "; ".join(finding.message for finding in failed if node in finding.failed)
                for node in {node for finding in failed for node in finding.failed}
            },
            "files": [str(folder / "matrix.json") for folder in folders],
            "summary": text,
            "msg": text[0],
        }

    @staticmethod
    def _fleet(options, hostvars):
        known, reasons, rejected = {}, {}, {}
        plan = options["plan"]
        for name, peers in plan["peers"].items():
            probed = hostvars[name].get("network_probed") or {}
            listened = hostvars[name].get("network_listened") or {}
            facts = probed.get("measured")
            known[name] = None
            if facts is not None:
                asked_for = [peer["name"] for peer in peers]
                try:
                    known[name] = answers.take_in(
                        facts, name, asked_for, options["endpoints"], listened.get("not_listening")
                    )
                except answers.Rejected as error:
                    rejected[name] = str(error)
            else:
                applied = hostvars[name].get("network_applied") or {}
                reason = probed.get("msg") or applied.get("msg") or "it was not asked, since an earlier task failed"
                reasons[name] = one_line(str(reason), 200)
        owners = {peer["address"]: peer["name"] for peers in plan["peers"].values() for peer in peers}
        return findings.Fleet(known, reasons, plan["zones"], tuple(options["ports"]), rejected, owners)

    @staticmethod
    def _folders(options):
        """The folder of the latest matrix, and the run's own where there is a run."""
        results = project_path(options["results_dir"])
        folders = [results / FOLDER]
        if options["run_id"] and options["run_id"] != run_folder.NEW:
            run = run_folder.resolve(results, options["run_id"]).path
            if run.is_dir():
                folders.append(run / FOLDER)
        return folders
