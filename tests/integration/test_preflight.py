"""A model or an image that cannot be had ends a validation before any launch, with setting, reason and remedy."""

import json
import time
from contextlib import ExitStack

import pytest

from tests.kit import model_hub
from tests.kit.container_fleet import needs_docker
from tests.kit.model_hub import ModelHub

#: A hub that stalls is to pass it; the others answer from a thread of this machine.
SILENCE_SECONDS = 9
MODEL = {"gpuval_model": model_hub.REPOSITORY, "model_preload_silence_seconds": SILENCE_SECONDS}


@pytest.fixture(scope="module")
def fleet(new_fleet):
    with new_fleet("preflight") as fleet:
        yield fleet


@pytest.fixture
def hub(fleet):
    """Starts a hub, and makes it the one of the fleet's controller."""
    with ExitStack() as stack:

        def start(**answers):
            found = stack.enter_context(ModelHub(**answers))
            fleet.more_environment = {"HF_ENDPOINT": found.url}
            return found

        yield start
    fleet.more_environment = {}


def assert_ended_before_any_launch(fleet, settings, *words, reachable=True):
    """A validation names all `words` and ends with a verdict, and so does the status after it."""
    began = time.monotonic()
    done = fleet.play("gpuval.fleet.validate", "-e", json.dumps({"gpuval_run_id": "new", **settings}))
    assert time.monotonic() - began < 240, done  # by default a launch alone may take that long
    before, verdict = done.output.split("FINAL ACCEPTANCE: INCOMPLETE")
    assert "- Problems of the evidence: the run cannot be prepared: " in verdict, done
    assert "- The run has not ended: the same command resumes the run" in verdict and "make rerun" not in verdict, done
    if reachable:
        assert "launch: failed (not_prepared): the run cannot be prepared: " in verdict, done
        assert "then validate again: it resumes this run" in verdict, done
    status = fleet.play("gpuval.fleet.status")
    for played in (done, status):
        assert played.code != 0, played
        (failed,) = [line for line in played.output.splitlines() if line.startswith("FAILED: ")]
        for word in words:
            assert word in failed, played
        for noise in ("Traceback", "{{", "Errno", "errantly"):
            assert noise not in played.output, played
    assert len(before.splitlines()) < 12 and len(status.output.splitlines()) < 12, done
    assert "failed before any node began: " in status.output
    assert not fleet.node_base("node-1").exists()


@pytest.mark.parametrize(
    ("answers", "settings", "words"),
    [
        ({"about": model_hub.NOT_FOUND}, {}, ["acme/rocket is not on the hub, or is private: check the name"]),
        ({"about": model_hub.UNKNOWN_OR_PRIVATE}, {}, ["is not on the hub, or is private", "gpuval_hf_token"]),
        ({"about": model_hub.GATED}, {}, ["acme/rocket is gated: accept its licence", "gpuval_hf_token"]),
        ({"about": model_hub.BAD_TOKEN}, {"gpuval_hf_token": "hf_planted"}, ["refuses the token (HTTP 401): give a"]),
        ({"about": (503, {})}, {}, ["(HTTP 503): check the controller's way to the hub (HTTPS_PROXY, HF_ENDPOINT)"]),
        ({"about": model_hub.STALL}, {}, [f"(nothing arrived for {SILENCE_SECONDS} s): check the controller's way"]),
        ({"files": (429, {"Retry-After": "3600"})}, {}, ["limits requests (HTTP 429): validate again later"]),
    ],
)  # fmt: skip
def test_a_hub_that_does_not_give_the_model(fleet, hub, answers, settings, words):
    hub(**answers)
    assert_ended_before_any_launch(fleet, {**MODEL, **settings}, "gpuval_model: ", *words)


def test_a_hub_that_cannot_be_reached(fleet, hub, closed_port):
    fleet.more_environment = {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port}"}
    words = ["gpuval_model: ", f"from 127.0.0.1:{closed_port} (Connection refused): check the controller's way"]
    assert_ended_before_any_launch(fleet, MODEL, *words)


@pytest.mark.parametrize(("made", "words"), [(True, "has no config.json: give the folder"), (False, "does not exist")])
def test_a_folder_that_is_no_model(fleet, tmp_path, made, words):
    folder = tmp_path / "thing"
    if made:
        folder.mkdir()
    assert_ended_before_any_launch(fleet, {"gpuval_model": str(folder)}, "gpuval_model: ", str(folder), words)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (
            {"archive": "/nonexistent.tar"},
            "/nonexistent.tar cannot be read (No such file or directory): give an archive",
        ),
        (
            {"archive": "/etc/hostname"},
            "/etc/hostname is no archive of images, or a damaged one: save it with docker save",
        ),
        ({"copy": True}, "docker cannot pull 127.0.0.1:{port}/none:1: "),
    ],
)
def test_an_image_that_cannot_be_had(fleet, hub, closed_port, image, words):
    needs_docker()
    fleet.more_environment = {"DOCKER_HOST": "unix:///var/run/docker.sock"}  # only here: nothing else looks for engines
    settings = {
        "gpuval_runtime": "docker",
        "gpuval_images": {"training": {"reference": f"127.0.0.1:{closed_port}/none:1", **image}},
    }
    assert_ended_before_any_launch(fleet, settings, "gpuval_images.training: ", words.format(port=closed_port))


def test_nodes_over_ssh_that_cannot_load_the_model(new_fleet, closed_port):
    """Nothing is started, while stages without a model go on as far as the nodes can be reached."""
    node = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed_port}
    with new_fleet("loopback", nodes={"node-1": node}) as fleet:
        remedy = "so the nodes cannot load the model or a dataset: set gpuval_store_address to the address by which"
        doctor = fleet.play("gpuval.fleet.doctor")
        assert doctor.code != 0 and "1 failed" in doctor.told, doctor
        assert [line for line in doctor.output.splitlines() if line.startswith("FAILED  models ") and remedy in line], (
            doctor
        )
        assert_ended_before_any_launch(fleet, {}, "preflight: the embedded store listens on", remedy, reachable=False)
        assert not (fleet.root / "state/store/store.json").exists()
        facts = fleet.play("gpuval.fleet.validate", "--tags", "facts", "-e", "gpuval_run_id=new")
        assert "- node-1 INCOMPLETE launch: unreachable (refused)" in facts.output, facts
        stages = ["facts", "training"]
        assert fleet.play("gpuval.fleet.doctor", "-e", json.dumps({"gpuval_stages": stages})).code == 0
        fleet.nodes["node-1"] = {}  # the closing clean reaches it


def test_a_model_of_the_hub_comes_into_the_store_without_noise(fleet, hub):
    hub()
    done = fleet.play("gpuval.fleet.prepare", "-e", json.dumps(MODEL))
    assert done.code == 0, done
    assert "model models--acme--rocket: in the store, 1 files, 2 B" in done.output
    assert "errantly" not in done.output, done
