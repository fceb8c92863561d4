# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show a node, a serial, a SKU or the fleet over the runs in the bucket."""

from __future__ import annotations

from pathlib import Path

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.history import HistoryError, database, export, output, table
from ..plugin_utils.history.cache import Cache
from ..plugin_utils.history.query import History, Question
from ..plugin_utils.history.sync import sync
from ..plugin_utils.judge import criteria
from ..plugin_utils.runs import folder
from ..plugin_utils.store.access import open_store


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        question = Question.of(*(options[key] for key in ("node", "serial", "sku", "metric", "since")))
        path = project_path(options["output"]) if options["output"] else None
        if path:
            output.check_name(path)
        checks = criteria.beside_shipped(options["criteria"])
        connection = open_store(options["store"]).connection()
        root = project_path(options["store"]["state_dir"]) / "history"
        # the embedded store has another port each time that it is set up, but one folder
        place = f"{options['store']['endpoint'] or 'embedded'} {connection.bucket}"
        cache = Cache(root, place)
        try:
            done = sync(open_store(options["store"]).store(), cache, self._display.display)
            history = History(cache, question, checks)
            document = history.document()
            exported = path and path.suffix in export.FORMATS
            if exported:
                written = export.write(history, path, cache.draft, dry=self.check_mode)
        except database.errors() as error:
            raise HistoryError(f"{cache.path} cannot be used ({error}): delete it, and it is made anew") from error
        finally:
            cache.close()
        lines = [*table.lines(document), *(f"problem: {problem}" for problem in done.problems)]
        lines.append(f"({done.read:,} of {done.listed:,} objects of {done.runs:,} runs were read)")
        self._display.display(*lines)
        if not exported:
            written = self._write(path, document) if path else []
        return {
            "changed": bool(written), "history": lines, "files": written, "read": done.read, "listed": done.listed,
            "runs": done.runs, "forgotten": done.forgotten, "flaky": document["flaky_count"],
            "drifts": document["drift_count"],
        }  # fmt: skip

    def _write(self, path: Path, document) -> list[str]:
        """The files that are new or say something else than before."""
        files = output.files(path, document)
        changed = [target for target, data in files.items() if not target.exists() or target.read_bytes() != data]
        if not self.check_mode:
            for target in changed:
                folder.write_bytes(target, files[target])
        return [str(target) for target in changed]
