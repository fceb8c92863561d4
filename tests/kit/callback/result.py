"""The result of the task that GPUVAL_TESTS_RESULT names, as one line of JSON."""

import json
import os

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "result"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result):
        if result.task.name == os.environ["GPUVAL_TESTS_RESULT"] and not result.result.get("skipped"):
            self._display.display(json.dumps(result.result))

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.v2_runner_on_ok(result)
