"""The model's way into the store, by the prepare playbook: made, served, uploaded, loaded back; skipped; sent anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE_PYTHON = ROOT / ".venv-node/bin/python"
PRELOAD = "See that the model is in the store"


@pytest.fixture
def play(tmp_path):
    """Run a playbook of the collection with folders of its own; the embedded store is stopped in the end."""

    def run(name, *arguments):
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            f"gpuval.fleet.{name}",
            "-i",
            "inventories/local",
        ]
        command += ["-e", f"gpuval_results_dir={tmp_path}/results", "-e", f"gpuval_state_dir={tmp_path}/state"]
        command += [
            "-e",
            f"gpuval_node_dir={tmp_path}/node",
            "-e",
            f"gpuval_workload_python={NODE_PYTHON}",
            *arguments,
        ]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    run("clean")


def preload_changed(output):
    return "changed:" in output.partition(PRELOAD)[2].partition("PLAY RECAP")[0]


@pytest.mark.slow
def test_round_trip_then_whole_then_another_revision(play, tmp_path):
    output = play("prepare", "-e", "model_preload_round_trip=true")
    assert output.count("requests done, 0 failed") == 2
    assert "loaded back" in output
    model = tmp_path / "state/store/data/gpuval/models/models--gpuval--tiny-llama"
    assert (model / "SHA256SUMS").is_file()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=model, check=True, timeout=60)

    assert not preload_changed(play("prepare"))

    weights = model / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert not preload_changed(play("prepare")), "only the nodes' checksums read every byte"
    assert preload_changed(play("prepare", "-e", "model_preload_force=true"))
    assert weights.read_bytes() == good

    (model / "tokenizer.json").unlink()
    assert preload_changed(play("prepare")), "a model that lacks a file is not whole"
    assert preload_changed(play("prepare", "-e", "gpuval_model_revision=other")), "another revision is another model"
