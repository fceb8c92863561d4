"""Ctrl-C, or the signal GPUVAL_TESTS_SIGNAL, at the start of the task that GPUVAL_TESTS_INTERRUPT names, in a
finalizer, where an exception is lost."""

import os
import signal

from ansible.plugins.callback import CallbackBase


class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.Signals[os.environ.get("GPUVAL_TESTS_SIGNAL", "SIGINT")])


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "interrupt"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_task_start(self, task, is_conditional):
        if task.name == os.environ["GPUVAL_TESTS_INTERRUPT"]:
            Finalized()
