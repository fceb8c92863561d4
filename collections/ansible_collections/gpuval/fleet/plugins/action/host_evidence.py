# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's archive into the results. A node that gives none is named, not failed."""

from __future__ import annotations

import base64
import binascii
import hashlib

from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import log_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

GZIP = b"\x1f\x8b"

DOCUMENTATION = r"""
extends_documentation_fragment:
  - gpuval.fleet.run
options:
  directory:
    description: Base folder of gpuval on the node.
    type: str
    default: ''
  seconds:
    description: Time limit of all commands together.
    type: float
    default: 120
  limit_bytes:
    description: Size limit of the archive.
    type: int
    default: 8000000
  bug_report:
    description: Whether to run C(nvidia-bug-report.sh) too.
    type: bool
    default: false
"""


class ActionModule(ControllerAction):
    _requires_connection = True

    def work(self, options, task_vars):
        node = task_vars["inventory_hostname"]
        folder = log_bundle.run_folder_of(project_path(options["results_dir"]), options["run_id"])
        if self.check_mode:
            return {"changed": False, "evidence": {}, "msg": "check mode: nothing is gathered"}
        # What stands here when the task is cut off: an answer of an earlier day is none of today.
        run_folder.write_json(
            log_bundle.state_file(folder, node), _nothing("silent", "the node did not answer in time")
        )
        told, data = self._ask(folder.name, node, options, task_vars)
        if data is not None:
            run_folder.write_bytes(log_bundle.archive_file(folder, node), data)
            told = {**told, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        run_folder.write_json(log_bundle.state_file(folder, node), told)
        if told["state"] != log_bundle.GATHERED:
            self._display.warning(f"{node}: no evidence ({told['state']}): {told['message']}")
        return {"changed": data is not None, "evidence": told, "msg": told["message"]}

    def _ask(self, run_id, node, options, task_vars):
        arguments = {name: options[name] for name in ("directory", "seconds", "limit_bytes", "bug_report")}
        arguments |= {"run_id": run_id, "node": node}
        try:
            answer = self._execute_module(
                module_name="gpuval.fleet.host_evidence", module_args=arguments, task_vars=task_vars
            )
        except AnsibleError as error:  # no connection, no become, no interpreter
            return _nothing("unreachable", str(error.message)), None
        if answer.get("unreachable"):
            return _nothing("unreachable", str(answer.get("msg", "unreachable"))), None
        if answer.get("failed"):
            return _nothing("failed", f"{answer.get('msg', '')} {answer.get('module_stderr') or ''}".strip()), None
        try:
            data = base64.b64decode(answer["archive"], validate=True)
        except (KeyError, TypeError, binascii.Error):
            return _nothing("failed", "the node's answer holds no archive"), None
        if not data.startswith(GZIP) or len(data) > 2 * options["limit_bytes"]:
            return _nothing("failed", "the node's answer is no archive, or larger than asked for"), None
        notes = answer.get("notes") if isinstance(answer.get("notes"), dict) else {}
        told = {
            "state": log_bundle.GATHERED,
            "message": "" if answer.get("has_run") else "the node has nothing of this run",
            "notes": {one_line(str(name), 200): one_line(str(note), 300) for name, note in sorted(notes.items())[:200]},
        }
        return told, data


def _nothing(state, message):
    return {"state": state, "message": one_line(message, 600), "notes": {}}
