# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible's console output as events, progress, warnings and failures, without lines for tasks."""

DOCUMENTATION = r"""
name: console
type: stdout
short_description: Show events, progress, warnings and failures, and no task lines
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Prints messages of the collection's actions, warnings and failures. Plays, tasks, results and the recap need C(-v).
  - A failure is one line, without a host if it concerns the run. C(-v) shows it as the callback C(default) does.
  - Enable it by C(stdout_callback = gpuval.fleet.console).
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.ansible_internal import task_id
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import console_line, one_line

#: Lines of a failed command's output that are shown: its last lines name the cause.
LAST_LINES = 3


def if_verbose(shown):
    """Return a callback method that calls `shown`, a method of Ansible's default callback, with -v only."""

    def show(self, *arguments):
        if not self._quiet:
            shown(self, *arguments)

    return show


def if_asked(shown):
    """Return a callback method that shows a task's result by `shown`, a method of Ansible's default callback, with -v.
    Without -v it shows the message of a `debug` task that runs once, as one line."""

    def show(self, result):
        message, task = result.result.get("msg"), result.task
        is_debug = task.resolved_action == "ansible.builtin.debug" and task.run_once and not task.loop
        if self._quiet and is_debug and isinstance(message, str):
            self._handle_warnings(result.result)
            self._display.display(console_line(message))
        elif self._run_is_verbose(result):
            shown(self, result)
        else:
            self._handle_warnings(result.result)

    return show


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpuval.fleet.console"

    def __init__(self):
        super().__init__()
        #: Failed items of loops that still run: `{(host, task id): {message: [item label]}}`.
        self._items = {}

    @property
    def _quiet(self):
        return self._display.verbosity < 1

    _print_task_banner = if_verbose(Default._print_task_banner)
    v2_playbook_on_include = if_verbose(Default.v2_playbook_on_include)
    v2_playbook_on_no_hosts_remaining = if_verbose(Default.v2_playbook_on_no_hosts_remaining)
    v2_playbook_on_stats = if_verbose(Default.v2_playbook_on_stats)
    v2_runner_on_ok = if_asked(Default.v2_runner_on_ok)
    v2_runner_item_on_ok = if_asked(Default.v2_runner_item_on_ok)
    v2_runner_on_skipped = if_asked(Default.v2_runner_on_skipped)
    v2_runner_item_on_skipped = if_asked(Default.v2_runner_item_on_skipped)

    def v2_playbook_on_play_start(self, play):
        self._play = play
        if not self._quiet:
            super().v2_playbook_on_play_start(play)

    def v2_runner_item_on_failed(self, result):
        if not self._quiet:
            super().v2_runner_item_on_failed(result)
            return
        self._handle_warnings(result.result)
        label = one_line(str(self._get_item_label(result.result)), 60)
        self._items.setdefault(_key(result), {}).setdefault(_message(result), []).append(label)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not self._quiet:
            super().v2_runner_on_failed(result, ignore_errors=ignore_errors)
            return
        self._handle_warnings(result.result)
        if "acceptance_report" not in result.result:  # FINAL ACCEPTANCE has it
            self._fail(result, "ignored" if ignore_errors else "FAILED", constants.COLOR_ERROR)

    def v2_runner_on_unreachable(self, result):
        if not self._quiet:
            super().v2_runner_on_unreachable(result)
            return
        self._handle_warnings(result.result)
        self._fail(result, "UNREACHABLE", constants.COLOR_UNREACHABLE)

    def _fail(self, result, outcome, color):
        label = "" if result.task.run_once else f" {self.host_label(result)}"
        items = self._items.pop(_key(result), {})
        message = "; ".join(f"{text} [{', '.join(labels)}]" for text, labels in items.items()) or _message(result)
        text = console_line(f"{outcome}{label}: {result.task.name or result.task.action}: {message}")
        self._display.display(text, color=color, stderr=self.get_option("display_failed_stderr"))


def _key(result):
    return result.host.get_name(), task_id(result.task)


def _message(result):
    """Return message, cause and last output lines of a failed result, without Ansible's prefixes (`Task failed: `)."""
    values = result.result
    if "censored" in values:
        return values["censored"]
    text = str(values.get("msg") or values.get("reason") or "")
    for step in ("Task failed: ", "Action failed: ", "Module failed: "):
        text = text.removeprefix(step)
    if not text:
        text = "failed_when is true" if values.get("failed_when_result") else "no message: -v shows the result"
    if values.get("rc"):
        text += f" (rc {values['rc']})"
    printed = next(filter(None, map(values.get, ("stderr", "module_stderr", "stdout", "module_stdout"))), "")
    last = [line.strip() for line in str(printed).splitlines() if line.strip()][-LAST_LINES:]
    more = [detail for detail in (_cause(result.exception), one_line(" / ".join(last))) if detail not in text]
    return ": ".join([text, *more])


def _cause(exception):
    """Return the message of the innermost error in a chain, which some modules leave out; empty without a chain."""
    event = getattr(exception, "event", None)
    while event and event.chain and event.chain.follow:
        event = event.chain.event
    return event.msg if event else ""
