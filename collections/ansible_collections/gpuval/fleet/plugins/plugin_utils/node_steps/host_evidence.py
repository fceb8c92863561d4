"""Gather a node's evidence into an archive in the results. A node that gives none is named, and the task goes on."""

import base64
import binascii
from typing import Any

from ansible.errors import AnsibleError

from ..delivery import log_bundle
from ..runs.action import RunAction, RunOptions

GZIP = b"\x1f\x8b"


class HostEvidenceError(Exception):
    """The node gave no evidence; ``state`` is `unreachable` or `failed`."""

    def __init__(self, state, message):
        super().__init__(message)
        self.state = state


class HostEvidenceOptions(RunOptions):
    directory: str = ""
    seconds: float = 120.0
    limit_bytes: int = 8_000_000
    bug_report: bool = False


def host_evidence(action: RunAction, options: HostEvidenceOptions) -> dict[str, Any]:
    node = action.task_vars["inventory_hostname"]
    folder = log_bundle.run_folder_of(options.results_dir, options.run_id, action.inventory)
    if action.check_mode:
        return {"changed": False, "evidence": {}, "msg": "check mode: nothing is gathered"}
    # Written first: a task that is interrupted must not leave an earlier answer as the present one.
    log_bundle.write_state(folder, node, "silent", "the node did not answer in time")
    try:
        run_id = log_bundle.asked_run_id(folder, options.run_id)
        data, message, notes = _ask(action, run_id, node, options)
        evidence = log_bundle.write_archive(folder, node, data, message, notes)
    except HostEvidenceError as reason:
        evidence = log_bundle.write_state(folder, node, reason.state, str(reason))
        action.display.warning(f"{node}: no evidence ({reason.state}): {evidence['message']}")
    changed = evidence["state"] == log_bundle.GATHERED
    return {"changed": changed, "evidence": evidence, "msg": evidence["message"]}


def _ask(action, run_id, node, options):
    """Gather a node's evidence; return the archive, a message, and notes by file. Raises HostEvidenceError."""
    arguments = {name: getattr(options, name) for name in ("directory", "seconds", "limit_bytes", "bug_report")}
    try:
        answer = action.ask_node("host_evidence", {**arguments, "run_id": run_id, "node": node})
    except AnsibleError as error:  # no connection, no become, no interpreter
        raise HostEvidenceError("unreachable", str(error.message)) from error
    if answer.get("unreachable"):
        raise HostEvidenceError("unreachable", str(answer.get("msg", "unreachable")))
    if answer.get("failed"):
        raise HostEvidenceError("failed", f"{answer.get('msg', '')} {answer.get('module_stderr') or ''}".strip())
    try:
        data = base64.b64decode(answer["archive"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise HostEvidenceError("failed", "the node's answer holds no archive") from error
    if not data.startswith(GZIP) or len(data) > 2 * options.limit_bytes:
        raise HostEvidenceError("failed", "the node's answer is no archive, or larger than asked for")
    return data, "" if answer.get("has_run") else "the node has nothing of this run", answer.get("notes") or {}
