"""The notebook over the records of several runs, executed by a kernel as an operator does."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import output
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.cache import Cache
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.query import History, Question
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.sync import sync
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

from tests.kit.history import CHECKS, Run

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks/fleet.ipynb"
PLOTS = ("verdicts", "time", "node", "rack", "driver", "firmware")


def execute(data, output, **variables):
    """The executed notebook, or what went wrong."""
    command = [str(Path(sys.executable).with_name("jupyter")), "execute", f"--output={output}", str(NOTEBOOK)]
    environment = {**os.environ, "GPUVAL_HISTORY": str(data), "HOME": str(output.parent), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    return nbformat.read(output, as_version=4) if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six runs of six nodes in two racks: a GPU that becomes slower, a node that fails twice."""
    root = tmp_path_factory.mktemp("history")
    embedded = EmbeddedStore(root / "store", "gpuval")
    embedded.start()
    try:
        store = Store(embedded.connection())
        nodes = [f"node-{number}" for number in range(1, 7)]
        for number in range(6):
            run = Run(number, nodes)
            for place, node in enumerate(nodes):
                run.run["nodes"][node]["labels"] = {"rack": f"r{1 + place // 3}"}
                for gpu in run.facts(node)["gpus"] if number >= 3 and place >= 3 else ():
                    gpu |= {"driver_version": "590.2", "firmware_version": "97.00"}
                run.speed(node, [700 + place + 0.3 * number, 701 - place, 699 + number, 700 - 4 * (place // 3)])
            run.speed("node-2", [700, 700, 700 * (1 - 0.012 * number), 701])
            if number in (1, 3):
                run.speed("node-3", [500, 700, 700, 700])
            run.put(store)
        cache = Cache(root / "cache", "place")
        sync(store, cache)
        path = root / "history.parquet"
        output.export(History(cache, Question(), CHECKS), path, cache.draft, dry=False)
        cache.close()
    finally:
        embedded.stop()
    return path


@pytest.mark.slow  # a kernel starts, twice
def test_the_notebook_shows_the_fleet_and_names_the_slow_part(data, tmp_path):
    shown = execute(data, tmp_path / "shown.ipynb")
    assert not isinstance(shown, str), shown
    outputs = [one for cell in shown.cells if cell.cell_type == "code" for one in cell.outputs]
    images = [base64.b64decode(one.data["image/png"]) for one in outputs if "image/png" in one.get("data", {})]
    assert len(images) == len(PLOTS)
    assert all(image.startswith(b"\x89PNG") and len(image) > 4000 for image in images)
    folder = os.environ.get("GPUVAL_NOTEBOOK_IMAGES")  # to look at them
    for name, image in zip(PLOTS, images, strict=True) if folder else ():
        Path(folder, f"{name}.png").write_bytes(image)
    text = "\n".join(one.text for one in outputs if one.output_type == "stream")
    assert next(line for line in text.splitlines() if "node-2/2" in line).split("│")[1].strip() == "node-2"
    assert "Warning" not in text
    wrong = execute(data, tmp_path / "wrong.ipynb", GPUVAL_METRIC="no_such_metric")
    assert "no record has no_such_metric: set GPUVAL_METRIC to one of" in str(wrong)


def test_the_notebook_is_committed_without_outputs():
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells] == [[]] * len(cells)
