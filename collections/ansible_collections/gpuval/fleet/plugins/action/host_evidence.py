# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put the node's archive into the results. A node without one is named, not failed."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from ansible.errors import AnsibleError

from ..plugin_utils.delivery import log_bundle
from ..plugin_utils.runs.action import RunAction, RunOptions

GZIP = b"\x1f\x8b"


class NodeGaveNoEvidence(Exception):  # noqa: N818  (a state, not a failure of the task)
    """The node gave none; ``state`` is `unreachable` or `failed`."""

    def __init__(self, state, message):
        super().__init__(message)
        self.state = state


@dataclass(frozen=True, kw_only=True)
class HostEvidenceOptions(RunOptions):
    directory: str = ""
    seconds: float = 120.0
    limit_bytes: int = 8_000_000
    bug_report: bool = False


class ActionModule(RunAction):
    options_type = HostEvidenceOptions
    _requires_connection = True

    def work(self, options, task_vars):
        node = task_vars["inventory_hostname"]
        folder = log_bundle.run_folder_of(options.results_dir, options.run_id, self.inventory)
        if self.check_mode:
            return {"changed": False, "evidence": {}, "msg": "check mode: nothing is gathered"}
        # Written first, so that a task that is cut off leaves no earlier answer as today's.
        log_bundle.write_state(folder, node, "silent", "the node did not answer in time")
        try:
            run_id = log_bundle.asked_run_id(folder, options.run_id)
            data, message, notes = self._ask(run_id, node, options, task_vars)
            evidence = log_bundle.write_archive(folder, node, data, message, notes)
        except NodeGaveNoEvidence as reason:
            evidence = log_bundle.write_state(folder, node, reason.state, str(reason))
            self._display.warning(f"{node}: no evidence ({reason.state}): {evidence['message']}")
        changed = evidence["state"] == log_bundle.GATHERED
        return {"changed": changed, "evidence": evidence, "msg": evidence["message"]}

    def _ask(self, run_id, node, options, task_vars):
        """The archive, a message and notes by file. Raises NodeGaveNoEvidence."""
        arguments = {name: getattr(options, name) for name in ("directory", "seconds", "limit_bytes", "bug_report")}
        arguments |= {"run_id": run_id, "node": node}
        try:
            answer = self.ask_node("host_evidence", arguments, task_vars)
        except AnsibleError as error:  # no connection, no become, no interpreter
            raise NodeGaveNoEvidence("unreachable", str(error.message)) from error
        if answer.get("unreachable"):
            raise NodeGaveNoEvidence("unreachable", str(answer.get("msg", "unreachable")))
        if answer.get("failed"):
            raise NodeGaveNoEvidence("failed", f"{answer.get('msg', '')} {answer.get('module_stderr') or ''}".strip())
        try:
            data = base64.b64decode(answer["archive"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise NodeGaveNoEvidence("failed", "the node's answer holds no archive") from error
        if not data.startswith(GZIP) or len(data) > 2 * options.limit_bytes:
            raise NodeGaveNoEvidence("failed", "the node's answer is no archive, or larger than asked for")
        return data, "" if answer.get("has_run") else "the node has nothing of this run", answer.get("notes") or {}
