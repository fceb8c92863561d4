# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: console
type: stdout
short_description: Show events, progress, warnings and failures, and no task lines
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Prints messages of the collection's actions, warnings and failures. Plays, tasks, results and the recap need C(-v).
  - A failure of the collection is one line, without a host if it concerns the run.
  - Other failures look as in the callback C(default).
  - Enable it by C(stdout_callback = gpuval.fleet.console).
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import console_line

#: Their message says it all.
CHECKS = ("assert", "fail", "validate_argument_spec")
OWN = ("gpuval.fleet.", *(f"ansible.builtin.{name}" for name in CHECKS))


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpuval.fleet.console"

    @property
    def _quiet(self):
        return self._display.verbosity < 1

    def _print_task_banner(self, task):
        if not self._quiet:
            super()._print_task_banner(task)

    def v2_playbook_on_play_start(self, play):
        self._play = play
        if not self._quiet:
            super().v2_playbook_on_play_start(play)

    def v2_playbook_on_include(self, included_file):
        if not self._quiet:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_remaining(self):
        if not self._quiet:
            super().v2_playbook_on_no_hosts_remaining()

    def v2_playbook_on_stats(self, stats):
        if not self._quiet:
            super().v2_playbook_on_stats(stats)

    def v2_runner_on_ok(self, result):
        self._show(result, super().v2_runner_on_ok)

    def v2_runner_item_on_ok(self, result):
        self._show(result, super().v2_runner_item_on_ok)

    def v2_runner_on_skipped(self, result):
        self._show(result, super().v2_runner_on_skipped)

    def v2_runner_item_on_skipped(self, result):
        self._show(result, super().v2_runner_item_on_skipped)

    def _show(self, result, shown):
        """A result if it was asked for, by -v or `debug`: as Ansible shows it, or a run's message as a line."""
        message = result.result.get("msg")
        debug = result.task.resolved_action == "ansible.builtin.debug" and result.task.run_once and not result.task.loop
        if self._quiet and debug and isinstance(message, str):
            self._handle_warnings(result.result)
            self._display.display(console_line(message))
        elif self._run_is_verbose(result):
            shown(result)
        else:
            self._handle_warnings(result.result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not self._quiet or not str(result.task.resolved_action).startswith(OWN) or result.task.loop:
            super().v2_runner_on_failed(result, ignore_errors=ignore_errors)
            return
        self._handle_warnings(result.result)
        if "acceptance_report" not in result.result:  # the final block says it
            self._fail(result, "ignored" if ignore_errors else "FAILED", constants.COLOR_ERROR)

    def v2_runner_on_unreachable(self, result):
        if not self._quiet:
            super().v2_runner_on_unreachable(result)
            return
        self._handle_warnings(result.result)
        self._fail(result, "UNREACHABLE", constants.COLOR_UNREACHABLE)

    def _fail(self, result, what, color):
        label = "" if result.task.run_once else f" {self.host_label(result)}"
        text = console_line(f"{what}{label}: {result.task.name or result.task.action}: {_message(result.result)}")
        self._display.display(text, color=color, stderr=self.get_option("display_failed_stderr"))


def _message(values):
    """What failed, without Ansible's names of the steps that led there."""
    text = str(values.get("msg") or "no message: -v shows the result")
    for step in ("Task failed: ", "Action failed: "):
        text = text.removeprefix(step)
    return text
