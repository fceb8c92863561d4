# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Upload files to S3. With the option `store` the controller uploads its own files, else the module the host's."""

from collections.abc import Sequence

from ..module_utils.store import upload
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.step_options import PathText, StepOptions, StoreOptions, group_spec
from ..plugin_utils.store.access import open_store


class StoreUploadOptions(StepOptions):
    src: Sequence[PathText]
    prefix: str
    store: StoreOptions


class ActionModule(ControllerAction):
    _requires_connection = True

    def spec(self):
        return group_spec(StoreUploadOptions)

    def run(self, tmp=None, task_vars=None):
        if "store" in self._task.args:
            return super().run(tmp, task_vars)
        result = super(ControllerAction, self).run(tmp, task_vars)  # Ansible's module checks the options
        self.task_vars = task_vars or {}
        return {**result, **self.ask_node(self.name)}

    def work(self, options, task_vars):
        connection = open_store(options["store"]).connection()
        return upload(connection, options["src"], options["prefix"], check_mode=self.check_mode)
