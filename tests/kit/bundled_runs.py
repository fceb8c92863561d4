"""Runs that 1.0.0 left, judged today, and their evidence bundles."""

import shutil
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.actions import run_action

RELEASE = Path(__file__).parents[1] / "data/release_1_0"
PLACES = ("kubernetes", "local", "ssh")


def judged_run(place, tmp_path):
    """The folder of a run of 1.0.0, copied without its store, judged and reported here."""
    results = tmp_path / "results"
    shutil.copytree(RELEASE / place / "results", results, symlinks=True)
    run = run_folder.latest_run(results)
    for step in ("judge_run", "report_run"):
        outcome = run_action(step, {"run_id": run.path.name, "results_dir": str(results)})
        assert not outcome.failed, outcome.text
    return run_folder.latest_run(results)


def make(run, *, renamed=False, **options):
    settings = {
        "run_id": run.path.name,
        "results_dir": str(run.results),
        "store": {"bucket": "b", "state_dir": str(run.results.parent / "state")},
        "renamed": renamed,
    }
    return run_action("evidence_bundle", settings, **options)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
