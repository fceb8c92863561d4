# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible callback that ends the console output with a run's FINAL ACCEPTANCE block."""

DOCUMENTATION = r"""
name: acceptance
type: aggregate
short_description: End the console with the FINAL ACCEPTANCE block
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Prints the block of the step C(report_run) after the play recap, as the last lines of the output.
  - Records in C(run.json) why a run failed if the playbook ends before it was judged.
  - Ctrl-C, SIGTERM and SIGHUP end the playbook at any moment. Then, and where the controller's disk is full, prints
    what becomes of the run, how to resume it and how to end it.
  - Sends each line of the output on when it is printed, so that a pipe or a log file shows the watch as it happens. A
    reader that leaves (C(make status | head)) does not stop the command.
  - Enable it by C(callbacks_enabled = gpuval.fleet.acceptance); without it the block is printed before the recap.
"""

import atexit
import contextlib
import importlib
import io
import os
import shutil
import sys
from pathlib import Path

from ansible.plugins.callback import CallbackBase
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.interrupt import end_at_interrupt

MAX_REASON = 1000


class ConsoleFile(io.FileIO):
    """Standard output or error that drops output after the reader of its pipe has left (`make status | head`).

    A BrokenPipeError would end the thread that prints for Ansible's workers, and Ansible would wait for it for ever.
    """

    #: Whether the terminal's last line shows progress, which the next output replaces.
    has_progress = False

    def write(self, data):
        try:
            if not self.isatty():
                return super().write(data)
            if ConsoleFile.has_progress:
                super().write(b"\033[K")
            line = bytes(data)
            ConsoleFile.has_progress = line.startswith(b"\r") and line.endswith(b"\r")
            if not ConsoleFile.has_progress:
                return super().write(data)
            super().write(line[: shutil.get_terminal_size().columns + len(b"\033[K")] + b"\r")  # it may shrink
            return len(data)
        except BrokenPipeError:
            return len(data)


def console(stream):
    """Return standard output or error as a stream that flushes each line: Ansible flushes only between tasks."""
    stream.flush()
    buffer = io.BufferedWriter(ConsoleFile(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)


def _late(module):
    """Import a module of plugin_utils. The playbook `doctor` loads this callback without the packages they need."""
    return importlib.import_module(f"ansible_collections.gpuval.fleet.plugins.plugin_utils.{module}")


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuval.fleet.acceptance"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._report = None
        self._run = ""
        self._failure = ""
        self._over = False
        if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout, sys.stderr = console(sys.stdout), console(sys.stderr)

    def v2_playbook_on_start(self, playbook):
        end_at_interrupt()

    def v2_playbook_on_task_start(self, task, is_conditional):
        """Import a step before Ansible forks a worker for it: the workers of later steps then have its modules, too."""
        if task.resolved_action == "gpuval.fleet.controller":
            with contextlib.suppress(Exception):  # the task itself reports an error
                _late("core.step_options").load_step(str(task.args.get("step")))

    def _remember(self, result, **_ignored):
        values = getattr(result, "result", None) or getattr(result, "_result", {})
        self._report = values.get("acceptance_report", self._report)
        if values.get("opened"):
            if not self._run:
                atexit.register(self._name_interrupted, os.getpid())
            self._run = values["opened"]
        return values

    def _name_interrupted(self, pid):
        """At exit of process `pid`, display how to resume a run without a recap: Ctrl-C ends Ansible without one."""
        if not self._over and os.getpid() == pid:
            self._name_what_resumes()

    def _name_what_resumes(self):
        commands, errors = _late("core.commands"), _late("core.errors")
        overview, folder = _late("runs.overview"), _late("runs.folder")
        try:
            line = overview.interrupted(folder.RunFolder(Path(self._run)))
        except (errors.GpuvalError, OSError):  # the run's folder is damaged or gone
            return
        if line:
            self._display.display(commands.pasteable(line))

    v2_runner_on_ok = _remember

    def v2_runner_on_failed(self, result, ignore_errors=False):
        values = self._remember(result)
        if not ignore_errors and "acceptance_report" not in values:  # the run keeps its first failure
            self._failure = one_line(str(values.get("msg") or ""), MAX_REASON)

    def v2_playbook_on_stats(self, stats):
        self._over = True
        if not self._run and not self._report:
            return
        errors, report, state = _late("core.errors"), _late("report"), _late("runs.state")
        if self._failure and self._run and not self._report:  # for example, the controller's disk is full
            self._name_what_resumes()
        if self._run:
            folder = _late("runs.folder").RunFolder(Path(self._run))
            try:
                folder.advance(state.FAILED, self._failure or "the playbook ended early", os.getpid())
            except (errors.GpuvalError, OSError) as error:
                problem = isinstance(error, OSError) and errors.disk_problem(
                    error, {"gpuval_results_dir": folder.results}
                )
                self._display.warning(f"the end of run {folder.path.name} is not recorded: {problem or error}")
        if self._report:
            self._display.display(report.acceptance(Path(self._report)))
