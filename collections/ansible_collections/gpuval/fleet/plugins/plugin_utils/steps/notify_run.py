"""Notify a webhook of the end of a judged run. A failure is only a warning."""

from typing import Any
from urllib.parse import urlsplit

from ..core import schemas
from ..core.errors import GpuvalError
from ..report import webhook
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions

DELIVERED_FILE = "webhook.json"


def notify_run(action: RunAction, options: RunOptions, url: str, key: str) -> dict[str, Any]:
    result = {"changed": False, "delivered": False, "attempts": 0}
    if action.check_mode:
        return {**result, "skipped": True}
    try:
        return {**result, **_notify(action, action.folder(options), url, key)}
    except (GpuvalError, OSError) as error:
        action.display.warning(f"the webhook did not get the end of the run: {error}")
        return result


def _notify(action, folder, url, key):
    if folder.is_imported or folder.read_run()["finished_at"] is None:
        return {}
    event = webhook.event_of(run_folder.read_report(folder))
    schemas.validate("event", event["data"], what="the event of the run")
    delivered = folder.state / DELIVERED_FILE
    if run_folder.read_object(delivered).get("id") == event["id"]:
        return {"event_id": event["id"], "delivered": True}
    sent = webhook.deliver(url, key, event)
    if sent.problem:
        action.display.warning(
            f"the webhook {urlsplit(url).hostname} did not accept the end of the run: {sent.problem} "
            f"({sent.attempts} attempt(s)). The verdict is as it is; `make report` sends it again"
        )
        return {"event_id": event["id"], "attempts": sent.attempts}
    run_folder.write_json(delivered, {"id": event["id"], "at": run_folder.now()})
    return {"event_id": event["id"], "changed": True, "delivered": True, "attempts": sent.attempts}
