"""Five nodes, each with a fault of its own, in one run: every fault is named, and costs no other evidence."""

import shutil
import signal

import pytest

from tests.kit.fleet import ONE_RANK, machine
from tests.kit.processes import of_stage, send

GPU = "0000:18:00.0"
#: Speaks many times within its limit, so that only a signal makes it silent.
STEPS = {
    "command": ["sh", "-c", "n=0; while :; do echo step $n; n=$((n + 1)); sleep 0.2; done"],
    "timeout_seconds": 240,
    "inactivity_seconds": 20,
    "needs": ["facts"],
}


def flip_byte(path):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (value,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([value ^ 0x01]))


@pytest.fixture(scope="module")
def run(new_fleet, as_root):
    """The fleet after the run, and how the run ended."""
    with new_fleet("faulty", settings={"gpuval_retries": 0, **ONE_RANK}) as fleet:
        fleet.nodes = {
            "flipped": {"loading_model_folder": "damaged"},
            "no-driver": {},
            "small-disk": {"gpuval_models_dir": str(fleet.mount("small", 2 << 20))},
            "stopped": {"training_workload": STEPS},
            "unhealthy": {
                "inference_server": "command",
                "inference_server_command": "sleep 600",
                "inference_startup_timeout_seconds": 4,
            },
        }
        for number, (name, variables) in enumerate(fleet.nodes.items()):
            gpus = [GPU] if name == "no-driver" else []
            variables.update(machine(fleet.root / "machines" / name, f"{number:032x}", gpus))
        fleet.settings["gpuval_stages"] = ["facts", "training", "loading", "inference"]
        prepared = fleet.play("gpuval.fleet.prepare")
        assert prepared.code == 0, prepared
        damage_a_model(fleet)
        playing = fleet.start()
        playing.expect("stopped training: running")
        fleet.at_work("stopped", "training", saying="step 2\n")
        send(of_stage(fleet.run_id, "stopped", "training"), signal.SIGSTOP)
        yield fleet, playing.wait()


def damage_a_model(fleet):
    """A copy of the model, as whole as its manifest and sizes tell, but for one bit."""
    (model,) = [path.parent for path in (fleet.store_data / "models").rglob("model.safetensors")]
    damaged = shutil.copytree(model, fleet.store_data / "models/damaged")
    flip_byte(damaged / "model.safetensors")


def test_the_run_fails_and_names_every_node(run):
    fleet, done = run
    assert done.code != 0
    assert "FINAL ACCEPTANCE: FAIL" in done.output, done
    assert fleet.report()["counts"] == {"expected": 5, "PASS": 0, "FAIL": 3, "INCOMPLETE": 2, "flaky": 0}
    for node in fleet.nodes:
        assert f"- {node} {'INCOMPLETE' if node in ('small-disk', 'flipped') else 'FAIL'}" in done.output
    assert (fleet.run_folder / "failed_nodes.txt").read_text().split() == sorted(fleet.nodes)


def test_a_flipped_byte_in_the_store(run):
    fleet, _ = run
    states = {"facts": "success", "training": "success", "loading": "failure", "inference": "skipped"}
    fleet.assert_evidence("flipped", states)
    message = fleet.record("flipped", "loading")["message"]
    assert "the store sends model.safetensors with other bytes" in message
    assert "model_preload_force=true" in message
    assert not (fleet.node_base("flipped") / "models/damaged/model.safetensors").exists()
    assert "loading" in fleet.record("flipped", "inference")["message"]
    assert fleet.decisive("flipped")[0]["stage"] == "loading"


def test_gpu_hardware_without_a_driver_is_never_mistaken_for_a_cpu(run):
    fleet, done = run
    states = {"facts": "failure", "training": "skipped", "loading": "success", "inference": "skipped"}
    fleet.assert_evidence("no-driver", states)
    message = fleet.record("no-driver", "facts")["message"]
    assert GPU in message
    assert "install or load the NVIDIA driver" in message
    node = fleet.verdict("no-driver")
    assert (node["verdict"], node["accelerator"]) == ("FAIL", "nvidia")
    assert not any(check["verdict"] == "pass" and check["stage"] == "training" for check in node["checks"])
    assert GPU in done.output.partition("FINAL ACCEPTANCE")[2]


def test_a_disk_that_is_too_small_for_the_model(run):
    fleet, done = run
    node = fleet.verdict("small-disk")
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "no_space")
    assert f"GB into {fleet.root / 'small'}" in fleet.decisive("small-disk")[0]["reason"]
    assert "gpuval_models_dir" in done.output.partition("FINAL ACCEPTANCE")[2]


def test_a_stopped_training_is_a_timeout(run):
    fleet, _ = run
    states = {"facts": "success", "training": "timeout", "loading": "success", "inference": "success"}
    fleet.assert_evidence("stopped", states)
    record = fleet.record("stopped", "training")
    assert "its limit is 20 s (inactivity_seconds)" in record["message"]
    assert (record["attempt"], record["attempts"]) == (1, [])
    (check,) = [check for check in fleet.decisive("stopped") if check["name"] == "training_state"]
    assert check["verdict"] == "fail"
    assert "nodes/stopped/training.log" in check["remedy"]
    assert not of_stage(fleet.run_id, "stopped", "training")


def test_a_server_that_never_gets_healthy(run):
    fleet, _ = run
    states = {"facts": "success", "training": "success", "loading": "success", "inference": "failure"}
    fleet.assert_evidence("unhealthy", states)
    message = fleet.record("unhealthy", "inference")["message"]
    assert "not healthy within 4 s" in message
    assert "--startup-timeout" in message or "inference_startup_timeout_seconds" in message
    assert not of_stage(fleet.run_id, "unhealthy", "inference")


def test_the_markdown_report_says_what_to_do_for_each(run):
    fleet, _ = run
    text = (fleet.run_folder / "report.md").read_text()
    for node in fleet.nodes:
        section = text.partition(f"### {node}: {fleet.verdict(node)['verdict']}")[2].partition("\n###")[0]
        assert "remedy:" in section, node
        assert ("evidence:" in section) == (node != "small-disk"), node
