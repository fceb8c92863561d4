# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Send the end of a judged run to a webhook. What goes wrong is a warning."""

from __future__ import annotations

from urllib.parse import urlsplit

from ..plugin_utils.core import schemas
from ..plugin_utils.core.errors import GpuvalError
from ..plugin_utils.report import webhook
from ..plugin_utils.report.event import event_of
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs.action import RunAction

DELIVERED_FILE = "webhook.json"


class ActionModule(RunAction):
    def work(self, options, task_vars):
        result = {"changed": False, "delivered": False, "attempts": 0}
        if self.check_mode:
            return {**result, "skipped": True}
        try:
            return {**result, **self._notify(options)}
        except (GpuvalError, OSError) as error:
            self._display.warning(f"the webhook did not get the end of the run: {error}")
            return result

    def _notify(self, options):
        folder = self.folder(options)
        if folder.is_copy or folder.read_run()["finished_at"] is None:
            return {}
        event = event_of(run_folder.read_report(folder))
        schemas.validate("event", event["data"], what="the event of the run")
        delivered = folder.state / DELIVERED_FILE
        if run_folder.read_object(delivered).get("id") == event["id"]:
            return {"event_id": event["id"], "delivered": True}
        sent = webhook.deliver(options["url"], options["key"], event)
        if sent.problem:
            self._display.warning(
                f"the webhook {urlsplit(options['url']).hostname} did not accept the end of the run: {sent.problem} "
                f"({sent.attempts} attempt(s)). The verdict is as it is; `make report` sends it again"
            )
            return {"event_id": event["id"], "attempts": sent.attempts}
        run_folder.write_json(delivered, {"id": event["id"], "at": run_folder.now()})
        return {"event_id": event["id"], "changed": True, "delivered": True, "attempts": sent.attempts}
