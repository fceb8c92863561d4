"""Finds what the store lacks of a node's evidence (records, ends of logs, curves). Pure functions."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..records.documents import FINAL_STATES
from ..records.launch_errors import is_not_measured_again

#: The runner's last line in a stage's log; the group `curves` matches if the stage also has a series file.
LAST_LINE = r"{stage} attempt {attempt} ended: {state} after [^\n,]*(?P<curves>, with \d+ curves?)?\s*$"
TAIL_CHARACTERS = 4000


def lacks(
    expected: Mapping[str, Any],
    records: Mapping[str, Mapping[str, Any]],
    log_of: Callable[[str], str | None],
    series_of: Callable[[str], Mapping[str, Any] | None],
    launch: Mapping[str, Any],
) -> bool:
    """Whether a launched node may hold evidence that the results lack: the last record of a stage, the end of a log, or
    the curves that the log's last line announces. ``expected``: the node's entry in run.json; ``log_of``,
    ``series_of``: read the file of a stage, None without one."""
    return any(
        is_awaited(stage, records.get(stage), launch) or _stage_lacks(stage, records[stage], log_of, series_of)
        for stage in expected["stages"]
    )


def is_awaited(stage: str, record: Mapping[str, Any] | None, launch: Mapping[str, Any]) -> bool:
    """Whether a stage's last record is still to come: no attempt has ended, or another one was launched since."""
    if record is None or record["state"] not in FINAL_STATES:
        return True
    if is_not_measured_again(launch):
        return False
    return record["attempt"] < launch.get("attempt", 1) and stage in (launch.get("stages") or [stage])


def _stage_lacks(
    stage: str,
    record: Mapping[str, Any],
    log_of: Callable[[str], str | None],
    series_of: Callable[[str], Mapping[str, Any] | None],
) -> bool:
    if not record["started_at"] or record["state"] in ("skipped", "cancelled"):
        return False
    words = {"stage": re.escape(stage), "attempt": record["attempt"], "state": record["state"]}
    last = re.search(LAST_LINE.format(**words), (log_of(stage) or "")[-TAIL_CHARACTERS:])
    if last is None:
        return True
    if not last["curves"]:
        return False
    series = series_of(stage)
    return series is None or series.get("attempt", record["attempt"]) != record["attempt"]
