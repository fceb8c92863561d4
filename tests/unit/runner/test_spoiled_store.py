"""A store that is spoiled while a node loads the model: what the runner's record has, and how it is judged."""

import shutil

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import model_source
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import named_cause

from tests.kit.model_server import ModelServer
from tests.kit.runner import PACKAGES, stage
from tests.kit.spoiling_proxy import SpoilingProxy, of_weights

NAME = "models--gpuval--tiny-llama"
#: The loading program, with short waits.
LOAD = f"""
import sys
from gpuval_workloads.loading import program, rclone
rclone.AWAY_SECONDS, rclone.PAUSE_SECONDS, rclone.RETRIES, rclone.RETRY_SECONDS = 1.0, 0.2, 2, 0
rclone.LOW_LEVEL_RETRIES = 1
sys.exit(program.main(["--model-folder", "{NAME}"]))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = ModelServer(tmp_path_factory.mktemp("store"))
    model = model_source.resolve("tiny", tmp_path_factory.mktemp("model"))
    (model.root / "SHA256SUMS").write_text(model_source.make_manifest(model))
    shutil.copytree(model.root, server.data / "gpuval" / "models" / NAME)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def load(node, store):
    """Run the stage through a proxy that spoils; returns its record."""

    def run(how, **changes):
        environment = {"GPUVAL_MODELS_PREFIX": "gpuval/models", "PYTHONPATH": str(PACKAGES)}
        with SpoilingProxy(store.port) as proxy:
            proxy.spoil(how, of_weights)
            node.put_plan(stage("loading", ["{python}", "-c", LOAD], environment=environment, **changes))
            config = store.config.replace(f":{store.port}", f":{proxy.port if how != 'refused' else 9}")
            (node.files.root / "rclone.conf").write_text(config)
            done = node.call("run", seconds=120)
        assert done.returncode == 0 or node.files.record("loading").exists(), done.stderr
        return node.record("loading")

    return run


@pytest.mark.parametrize(
    ("how", "name", "words"),
    [
        ("500", "store_away", "the store cannot be read: it answers HTTP 500"),
        ("403", "store_away", "the store refuses the read-only key"),
        ("404", "store_away", "a file that it listed is gone"),
        ("reset", "store_away", "the store cannot be read: its connections break off"),
        ("truncate", "store_away", "the store cannot be read: its connections break off"),
        ("flip", "store_incomplete", "the store sends model.safetensors with other bytes"),
        ("flip_anew", "store_away", "model.safetensors came with other bytes each time"),
        ("refused", "store_away", "the store cannot be read: it refuses connections"),
        ("slow", "store_away", "still running after its limit of 15 s"),
    ],
)
def test_a_spoiled_store_is_no_fault_of_the_node(load, how, name, words):
    record = load(how, timeout_seconds=15 if how == "slow" else 60)
    assert record["state"] == {"flip": "failure", "slow": "timeout"}.get(how, "crash"), record["message"]
    assert words in record["message"]
    assert record["message"].count("the store cannot be read") <= 1
    end = stage_end.judge_end(stage_end.StageEnd("n1", "loading", record))
    assert named_cause(record) == name
    assert "127.0.0.1" not in record["message"] + str(record["environment"].get("cause"))
    assert (end["verdict"], end["class"]) == ("missing", name)
    again = {**record, "state": "success", "attempt": 2, "attempts": [record]}
    assert stage_end.retried_for(again) == stage_end.NOT_THE_NODE
