"""Show results of a node, a serial, a SKU or the fleet over all runs in the bucket."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.paths import project_path
from ..core.step_options import PathText, StoreOptions
from ..history import HistoryError, table
from ..history import output as output_files
from ..history.cache import ERRORS, Cache
from ..history.query import History, Question
from ..history.sync import sync
from ..judge.criteria import beside_shipped
from ..runs import folder
from ..runs.action import RunAction
from ..store.access import open_store


def show_history(
    action: RunAction,
    *,
    node: str = "",
    serial: str = "",
    sku: str = "",
    metric: str = "",
    since: str = "",
    output: Path | None = None,
    criteria: Sequence[PathText] = (),
    store: StoreOptions,
) -> dict[str, Any]:
    question = Question(node, serial, sku, metric, since)
    if output:
        output_files.check_name(output)
    checks = beside_shipped(criteria)
    connection = open_store(store).connection()
    root = project_path(store["state_dir"]) / "history"
    # the embedded store has another port each time that it is set up, but one folder
    cache = Cache(root, f"{store['endpoint'] or 'embedded'} {connection.bucket}")
    try:
        synced = sync(open_store(store).store(), cache, action.display.display)
        history = History(cache, question, checks)
        document = history.document()
        is_export = output and output.suffix in output_files.FORMATS
        written = (
            output_files.export(history, output, cache.draft, dry=action.check_mode) if output and is_export else []
        )
    except ERRORS as error:
        raise HistoryError(f"{cache.path} cannot be used ({error}): delete it, and it is made anew") from error
    finally:
        cache.close()
    lines = [*table.lines(document), *(f"problem: {problem}" for problem in synced.problems)]
    lines.append(f"({synced.read:,} of {synced.listed:,} objects of {synced.runs:,} runs were read)")
    action.display.display(*lines)
    if output and not is_export:
        files = output_files.documents(output, document)
        changed = [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]
        for path in [] if action.check_mode else changed:
            folder.write_bytes(path, files[path])
        written = [str(path) for path in changed]
    return {
        "changed": bool(written), "history": lines, "files": written, "read": synced.read, "listed": synced.listed,
        "runs": synced.runs, "forgotten": synced.forgotten, "flaky": document["flaky_count"],
        "drifts": document["drift_count"],
    }  # fmt: skip
