# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a run's records, logs and series from the store into results/."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils import runs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.escape import clean_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import (
    MAX_RECORD_BYTES,
    MAX_SERIES_BYTES,
    Evidence,
    Refused,
    accept_series,
    parse_key,
    take_record,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import STORE_OPTION, StoreAccess

MAX_LOG_BYTES = 64 << 20


class ActionModule(ControllerAction):
    OPTIONS = {**RUN_OPTIONS, "store": STORE_OPTION}

    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder = self.folder(options)
        run = folder.read_run()
        store = StoreAccess(options["store"]).store()
        seen_file = folder.state / "collected.json"
        seen = runs.read_json(seen_file) if seen_file.exists() else {}
        evidence = Evidence()
        collected = 0
        for entry in store.list(f"{run['folder']}/"):
            place = parse_key(run["folder"], entry.key)
            if place is None or (place[0] != "records" and seen.get(entry.key) == entry.stamp):
                continue
            if self._collect(store, folder, run, evidence, entry.key, place):
                collected += 1
            seen[entry.key] = entry.stamp
        runs.write_json(seen_file, seen)
        known = runs.read_json(folder.problems_file) if folder.problems_file.exists() else []
        runs.write_json(folder.problems_file, [*(p for p in known if p not in evidence.problems), *evidence.problems])
        return {"changed": collected > 0, "collected": collected, "problems": evidence.problems}

    @staticmethod
    def _collect(store, folder, run, evidence, key, place):
        kind, stage, node = place
        if kind == "records":
            record = take_record(evidence, run, key, store.get(key, max_bytes=MAX_RECORD_BYTES))
            if record is None:
                return False
            path = folder.evidence_file(node, stage)
            before = path.read_bytes() if path.exists() else None
            runs.write_json(path, record)
            return path.read_bytes() != before
        if stage not in run["nodes"].get(node, {"stages": []})["stages"]:
            evidence.add_problem(f"an object that is not expected: {key}")
            return False
        path = folder.evidence_file(node, stage, kind)
        if kind == "logs":
            data = store.get(key, max_bytes=MAX_LOG_BYTES)[:MAX_LOG_BYTES]
            text = "\n".join(clean_text(line) for line in data.decode(errors="replace").splitlines())
            runs.write_bytes(path, (text + "\n").encode())
            return True
        try:
            series = accept_series(
                store.get(key, max_bytes=MAX_SERIES_BYTES), run_id=run["run_id"], node=node, stage=stage
            )
        except Refused as refusal:
            evidence.add_problem(f"series refused: {refusal}", node=node, stage=stage)
            return False
        runs.write_json(path, series)
        return True
