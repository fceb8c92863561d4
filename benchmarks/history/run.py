"""What the history of a fleet costs: seconds, seconds of the processor, memory and the size of the cache.

    python benchmarks/history/run.py --nodes 100 --runs 4 --copies 50

Reports on runs of eight GPUs per node lie in a real store (judging and writing are not counted). Measured are the first
reading, a second one that reads nothing, and the questions. Then the cache is laid out as that of ``--copies`` runs, by
DuckDB, with noise of its own in each, and the questions are asked again. Each step is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "report"))

import fleet
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

NOISE = 0.003
FIGURES = ("seconds", "processor", "bytes")


def put_runs(bucket: Path, nodes: int, runs: int) -> int:
    """Judge runs and lay them out as files of the embedded store; returns the bytes of their reports."""
    total = 0
    for number in range(runs):
        run_id = f"{fleet.BEGIN + timedelta(days=number):%Y%m%d-%H%M%S}-{number:04d}"
        folder = bucket / run_id
        folder.mkdir(parents=True)
        fleet.write(folder, nodes, number, 2, run_id)
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**run, "folder": run_id}))
        fleet.judge(folder)
        (folder / "report").mkdir()
        report = (folder / "report.json").replace(folder / "report" / "report.json")
        total += report.stat().st_size
        for rest in ("nodes", ".state"):
            shutil.rmtree(folder / rest)
    return total


def copy_cache(root: Path, copies: int) -> None:
    """The cache as that of many runs: the first one's files again and again, each with noise in its figures."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.cache import Cache, parquet

    cache = Cache(root, "benchmark")
    first = next(run for run in cache.runs() if run.state)
    state = first.state
    for number in range(len(cache.runs()), copies):
        folder = f"copy-{number:03d}"
        run = cache.run(folder)
        run.path.mkdir(exist_ok=True)
        for name in ("nodes", "records", "metrics"):
            value = f", value * (1 + {NOISE} * (random() + random() + random() - 1.5) * 2) AS value"
            replaced = f"SELECT * REPLACE ('{folder}' AS folder{value if name == 'metrics' else ''})"
            select = f"{replaced} FROM {parquet(first.file(name))}"
            cache.connection.execute(f"COPY ({select}) TO '{run.file(name)}' (FORMAT parquet, COMPRESSION zstd)")
        begin = (fleet.BEGIN + timedelta(days=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        run.write_state({**state, "folder": folder, "run_id": folder, "created_at": begin})
    cache.close()


def step(name: str, root: Path) -> dict[str, float]:
    """One step in this process."""
    from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import table
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.cache import Cache
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.query import History, Question
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.sync import sync
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

    checks = criteria.load(criteria.shipped_files())
    cache = Cache(root / "history", "benchmark")
    began, result = (time.monotonic(), time.process_time()), {}
    if name in ("first", "second"):
        done = sync(Store(EmbeddedStore(root / "store", "gpuval").connection()), cache)
        result = {"read": done.read, "listed": done.listed}
    else:
        asked = {"node": "", "serial": "", "sku": ""} | ({} if name == "fleet" else {name: _asked(name)})
        document = History(cache, Question(**asked, metric="", since=""), checks).document()
        table.lines(document)
        result = {"series": document["held_count"], "drifts": document["drift_count"]}
    seconds, processor = time.monotonic() - began[0], time.process_time() - began[1]
    cache.close()
    return {
        "seconds": seconds,
        "processor": processor,
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **result,
    }


def _asked(name: str) -> str:
    return {"node": fleet.name_of(1), "serial": f"GPU-{fleet.name_of(1)}-3", "sku": "h200"}[name]


def measured(name: str, root: Path, title: str) -> None:
    command = [sys.executable, __file__, "--step", name, "--root", str(root)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    more = ", ".join(f"{value:,} {key}" for key, value in result.items() if key not in FIGURES)
    print(
        f"{title:42} {result['seconds']:8.1f} s {result['processor']:8.1f} s {result['bytes'] / 1e6:8,.0f} MB   {more}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--copies", type=int, default=50, help="ask the questions of so many runs, too")
    parser.add_argument("--step")
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    _AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()
    if options.step:
        print(json.dumps(step(options.step, options.root)))
        return
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        total = put_runs(root / "store" / "data" / "gpuval", options.nodes, options.runs)
        embedded = EmbeddedStore(root / "store", "gpuval")
        embedded.start()
        try:
            print(f"{options.runs} runs of {options.nodes} nodes: {total / 1e6:,.0f} MB of reports")
            for name, title in (("first", "the first reading"), ("second", "again: only what changed")):
                measured(name, root, title)
        finally:
            embedded.stop()
        for runs in (options.runs, options.copies):
            copy_cache(root / "history", runs)
            size = sum(path.stat().st_size for path in (root / "history").rglob("*.parquet"))
            print(f"a cache of {runs} runs has {size / 1e6:,.0f} MB")
            for name in ("fleet", "sku", "node", "serial"):
                measured(name, root, f"{runs} runs: {name}")


if __name__ == "__main__":
    main()
