"""The pod of a node, run for real, gives the records that the runner gives on a host."""

import json
import re
import socket
from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import manifests
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import open_store, signed_urls
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import rclone_config
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

from tests.kit.fleet import NODE_PYTHON, ONE_RANK, valid
from tests.kit.podman_pod import libraries_of

NODE = "node-1"
STAGES = ["facts", "training", "loading", "inference", "endpoints"]
#: What needs no image of its own.
WITHOUT_IMAGE = {"facts", "endpoints"}
POD_SECONDS = 300
FOLDER = "pod"
SETTINGS = {
    **ONE_RANK,
    "gpuval_sku": "cpu",
    "gpuval_stages": STAGES,
    "training_seconds": 0,
    "training_steps": 12,
}

#: What of a record may differ: when it was, how fast, and where things lie. All the rest is the same, digit by digit.
TIMES = {"started_at", "updated_at", "finished_at", "duration_seconds"}
MEASURED = {
    "facts": {"root_filesystem_used_ratio"},
    "training": {
        "training_duration_seconds",
        "training_tokens_per_second",
        "training_model_tflops",
        "training_step_p50_seconds",
        "training_step_p99_seconds",
        "training_compute_p50_seconds",
        "training_compute_ratio",
        "training_compute_lost_ratio",
        "training_slowest_compute_ratio",
        "training_wait_p50_seconds",
    },
    "loading": {"loading_duration_seconds", "loading_bytes_per_second", "loading_verify_seconds"},
    "inference": {
        "inference_startup_seconds",
        "inference_running_seconds",
        "inference_ttft_p50_seconds",
        "inference_ttft_p99_seconds",
        "inference_itl_p50_seconds",
        "inference_itl_p99_seconds",
        "inference_tokens_per_second",
        "inference_requests_per_second",
    },
    "endpoints": {"endpoints_name_seconds", "endpoints_connect_seconds"},
}
#: Of the environment: the image is another system, sees its own file systems and has no engines; ports are chosen.
ENVIRONMENT = {
    "facts": {"os", "disks", "engines", "memory", "services", "nics"},
    "inference": {"server_command"},
}
#: What the runner samples on a node without GPUs.
TELEMETRY = re.compile("telemetry_|kernel_|cpu_temperature_|cpu_utilisation_|memory_used_max_")
OF_CONTAINERS = re.compile("br-|cni|docker|podman|veth")
#: Of the operating system: what is the image's and the pod's, not the kernel's.
IMAGES_OWN = {"id", "version", "name", "hostname", "container"}


@pytest.fixture(scope="module")
def on_host(new_fleet):
    """A run over SSH, which reaches the same service as the pod."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as service:
        address = f"localhost:{service.getsockname()[1]}"
        settings = {**SETTINGS, "gpuval_endpoints": [{"name": "service", "address": address, "max_loss": "1 %"}]}
        with new_fleet("host", settings=settings) as fleet:
            done = fleet.play()
            assert done.code == 0, str(done)
            yield fleet


@pytest.fixture(scope="module")
def given(on_host, podman):
    """The host's plan, made fit for a pod, and what makes a placement of it."""
    plan = json.loads((on_host.run_folder / ".state/plans" / f"{NODE}.json").read_text())
    for stage in plan["stages"]:
        if stage["name"] not in WITHOUT_IMAGE:  # the small image has a Python, and this machine has PyTorch and rclone
            stage["container"] = {"python": str(NODE_PYTHON), "volumes": libraries_of(NODE_PYTHON)}
    settings = parse(
        {
            "image": podman.image,
            "host_network": True,  # the store answers on the loopback
            "environment": {"OMP_NUM_THREADS": "1"},
            "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        }
    )
    return manifests.pod_plan(plan, settings), settings


def access(fleet):
    unused = dict.fromkeys(("endpoint", "access_key", "secret_key", "session_token", "ca_file", "address"), "")
    place = {"bucket": "gpuval", "region": "us-east-1", "state_dir": str(fleet.root / "state"), "port": 0}
    return open_store({**unused, **place})


def played(podman, plan, settings, **given):
    """Run the pod of a plan; returns its exit code and what it said."""
    placement = manifests.PodAttempt(manifests.PodTarget(NODE), settings, plan, "cpu", **given)
    code = launch_inputs.archives(bytecode=False)
    objects = manifests.everything(plan["run_id"], "gpuval", code, [placement])
    return podman.play(objects[-1], objects, POD_SECONDS)


@pytest.fixture(scope="module")
def in_pod(on_host, podman, given):
    """Records of the pod, as they came to the same store, by stage."""
    plan, settings = given
    store = access(on_host)
    exit_code, said = played(
        podman,
        plan,
        settings,
        store=signed_urls(store.store(), FOLDER, NODE, STAGES, 3600),
        rclone_config=rclone_config(store.reader()),
    )
    folder = on_host.store_data / FOLDER / "records"
    records = {stage: json.loads((folder / stage / f"{NODE}.json").read_bytes()) for stage in STAGES}
    assert exit_code == 0, f"{said}\n{json.dumps(records, indent=1)}"
    return records


@pytest.mark.parametrize("stage", STAGES)
def test_the_records_are_those_of_a_host(on_host, podman, in_pod, stage):
    host, pod = on_host.record(NODE, stage), in_pod[stage]
    valid("record", pod)
    without_telemetry(host)
    without_telemetry(pod)
    assert set(pod) == set(host)
    assert (pod["state"], pod["exit_code"], pod["attempt"]) == ("success", 0, 1)
    if stage in WITHOUT_IMAGE:  # their interpreter and the runner are elsewhere
        assert pod["command"].pop(0) == "/usr/bin/python3" != host["command"].pop(0)
        assert host["command"].pop(0).endswith("/runner.pyz")
        assert pod["command"].pop(0) == "/opt/gpuval/runner.pyz"
    if stage != "facts":
        assert (host.pop("image"), pod.pop("image")) == (None, podman.image)
    assert figures_hidden(pod.pop("message")) == figures_hidden(host.pop("message"))
    compare_metrics(host.pop("metrics"), pod.pop("metrics"), MEASURED.get(stage, set()))
    compare_environment(host.pop("environment"), pod.pop("environment"), stage)
    assert {key: pod[key] for key in pod.keys() - TIMES} == {key: host[key] for key in host.keys() - TIMES}
    assert pod["duration_seconds"] > 0


def without_telemetry(record):
    """What was sampled beside the work is another machine's: it was there, and is left out of the comparison."""
    names = {metric["name"] for metric in record["metrics"]}
    assert {"telemetry_samples_count", "memory_used_max_bytes"} <= names
    assert record["environment"].pop("telemetry")["period_seconds"] == 1
    record["environment"].pop("kernel_events")
    record["metrics"] = [metric for metric in record["metrics"] if not TELEMETRY.match(metric["name"])]


def figures_hidden(text):
    return re.sub(r"\d[\d.,]*", "#", text)


def compare_metrics(host, pod, measured):
    def shape(metrics):
        return [(metric["name"], metric["unit"], metric["scope"]) for metric in metrics]

    def fixed(metrics):
        return [metric for metric in metrics if metric["name"] not in measured]

    assert shape(pod) == shape(host)
    assert fixed(pod) == fixed(host)
    assert all(metric["value"] > 0 for metric in pod if metric["name"] in measured)


def compare_environment(host, pod, stage):
    differs = ENVIRONMENT.get(stage, set())
    assert set(pod) == set(host)
    assert {key: pod[key] for key in pod.keys() - differs} == {key: host[key] for key in host.keys() - differs}
    if stage == "facts":
        assert interfaces(pod) == interfaces(host)
        assert pod["os"].keys() == host["os"].keys()
        for part, own in (("os", IMAGES_OWN), ("memory", {"available_bytes"})):
            kept = host[part].keys() - own
            assert {key: pod[part][key] for key in kept} == {key: host[part][key] for key in kept}
        assert pod["os"]["container"] == "podman"


def interfaces(environment):
    """Without those of containers, which others on this machine make and remove meanwhile."""
    return [nic for nic in environment["nics"] if not OF_CONTAINERS.match(nic["name"])]


def test_a_pod_that_cannot_reach_the_store_tells_its_records(podman, given):
    """As its main container's output, and as a second attempt that knows the first."""
    plan, settings = given
    alone = {**plan, "attempt": 2, "stages": [stage for stage in plan["stages"] if stage["name"] == "facts"]}
    schema = {"schema": "gpuval.record/1", "run_id": plan["run_id"], "node": NODE, "stage": "facts"}
    earlier = {
        **schema,
        "workload": "facts",
        "attempt": 1,
        "state": "crash",
        "message": "evicted",
        "command": [],
        "image": None,
        **dict.fromkeys(("started_at", "finished_at", "duration_seconds", "exit_code", "signal")),
        "updated_at": "2026-11-20T20:00:00.000Z",
        "metrics": [],
        "fingerprints": {},
        "environment": {},
        "artifacts": [],
        "attempts": [],
    }
    valid("record", earlier)
    exit_code, said = played(podman, alone, settings, earlier=[earlier])
    assert exit_code == 0, said
    found = re.search(r"^-----BEGIN GPUVAL RECORD facts-----\n(.*)\n-----END GPUVAL RECORD facts-----$", said, re.M)
    record = json.loads(found.group(1))
    valid("record", record)
    assert (record["state"], record["attempt"]) == ("success", 2)
    assert [kept["message"] for kept in record["attempts"]] == ["evicted"]


def test_a_pod_of_another_user_than_root(podman, given):
    plan, settings = given
    facts = [stage for stage in plan["stages"] if stage["name"] == "facts"]
    exit_code, said = played(podman, {**plan, "node": "node-2", "stages": facts}, replace(settings, run_as_user=1000))
    assert exit_code == 0, said
    (record,) = podman.folder.glob("*-node-2-*/state/records/facts.json")
    assert (record.stat().st_uid, record.stat().st_gid) == (1000, 1000)
