"""Runs of two inventories in one results folder, by the actions of the commands, in this process."""

import subprocess
import sys

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.actions import run_action, vars_of
from tests.kit.options import run_options


def placed(results, run_id):
    """The folder of a run, there or new, of an inventory that is not known."""
    folder = run_folder.find_or_place(results, run_id, [])
    run_folder.keep_inventory(folder, results, [])
    return folder


def lay_out(tmp_path):
    """The inventories `a` and `b`; returns the results folder beside them."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("[all]\nnode-1\n")
    return tmp_path / "results"


def variables(results, inventory):
    return {**vars_of({"node-1": {}}), "ansible_inventory_sources": [str(results.parent / inventory)]}


def open_run(results, run_id="", inventory="a", task_vars=None, **options):
    options = run_options(results, run_id, **{"state_dir": str(results.parent / "state"), **options})
    return run_action("open_run", options, task_vars={**variables(results, inventory), **(task_vars or {})})


def opened(results, run_id, inventory="a", **options):
    assert not open_run(results, run_id, inventory, **options).failed
    return run_folder.find(results, run_id)


def started(results, run_id, inventory="a"):
    folder = opened(results, run_id, inventory)
    folder.advance("working")
    run_folder.remember(run_folder.find(results, run_id))
    return folder


def at_work(folder, node="node-1"):
    """The run, begun on the node."""
    folder.write_launch(node, {"node": node, "state": "started", "at": run_folder.now(), "stages": []})
    return folder


def killed(folder):
    """The controllers of the run are gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = folder.read_run()
    workers = [{**worker, "pid": gone.pid} for worker in run["state"]["workers"]]
    folder.write_run({**run, "state": {**run["state"], "workers": workers}})
    return folder


def find_run(results, inventory="a", run_id="", bucket="b", folder=""):
    store = {"bucket": bucket, "state_dir": str(results.parent / "state")}
    options = {"run_id": run_id, "results_dir": str(results), "store": store, "folder": folder}
    return run_action("find_run", options, task_vars=variables(results, inventory))


def clean_run(results, inventory="a", run_id="", namespace="", *, check_mode=False, **options):
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    options = {"run_id": run_id, "results_dir": str(results), "store": store, "namespace": namespace, **options}
    options.setdefault("force", True)  # this process is the controller of the runs of a test, and lives
    return run_action("clean_run", options, task_vars=variables(results, inventory), check_mode=check_mode)
