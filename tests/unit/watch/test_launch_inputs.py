"""What the launches of a run share."""

import base64
import dataclasses
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory, node_launch
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.plans import PlanError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.backend import S3Service
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

RUN = {"folder": "r1", "deadline_seconds": 60, "nodes": {"n1": {}}}


def test_the_archives_are_those_of_the_payload():
    for archives in (
        launch_inputs.archives(),
        {k: base64.b64decode(v) for k, v in launch_inputs.encoded_archives().items()},
    ):
        assert archives == {"runner": payload.runner_pyz(), "workloads": payload.workloads_zip()}


@pytest.mark.parametrize("probed", [{}, {"nodes": {}}, {"nodes": {"n1": {"state": "reachable"}}}])
def test_a_node_that_answers_or_was_not_probed_is_not_away(probed):
    assert launch_inputs.unreachable(probed, "n1") is None


def test_a_node_that_is_away_keeps_the_probes_words():
    found = {"state": "wrong_host_key", "message": "it shows another key", "remedy": "find out why"}
    assert launch_inputs.unreachable({"nodes": {"n1": found}}, "n1") == {
        "state": "unreachable",
        "class": "wrong_host_key",
        "message": "it shows another key",
        "remedy": "find out why",
    }


def test_the_workers_of_launches_inherit_the_schemas():
    launch_inputs.warm_schemas()
    before = schemas.validator.cache_info().misses
    schemas.validate("launch_answer", {"directory": "/x", "launch": {"state": "started", "message": ""}}, what="it")
    assert schemas.validator.cache_info().misses == before


def test_a_node_ends_a_launch_that_hangs_well_before_the_controller_does():
    """Otherwise its own word of what hangs is lost."""
    role = Path(launch_inputs.__file__).parents[3] / "roles/run/defaults/main.yml"
    of_the_controller = yaml.safe_load(role.read_text())["run_launch_seconds"]
    assert node_directory.RUNNER_SECONDS < node_launch.LAUNCH_SECONDS <= of_the_controller - 30
    assert node_directory.ONE_AT_ONCE_SECONDS < node_launch.LAUNCH_SECONDS


def node_store(read_keys=(), reachable=True):
    connection = Connection("gpuval", "https://127.0.0.1:9", access_key="key", secret_key="secret")
    return launch_inputs.NodeStore(S3Service(connection, *read_keys), Store(connection), RUN, reachable)


def test_a_node_that_loads_no_model_needs_no_key_to_read_models():
    given = node_store().given("n1", ["facts", "training"], 60)
    assert (given["rclone_config"], given["ca"]) == ("", "")
    kinds = ("records", "logs", "series")
    assert set(given["store"]["put"]) == {f"{kind}/{stage}" for kind in kinds for stage in ("facts", "training")}
    with pytest.raises(StoreError, match="read-only key"):
        node_store().given("n1", ["facts", "loading"], 60)
    assert "read-secret" in node_store(("read", "read-secret")).given("n1", ["loading"], 60)["rclone_config"]


def test_the_urls_of_a_node_launched_late_end_with_those_of_the_others():
    (early, late) = (node_store().given("n1", ["facts"], left)["store"]["put"]["records/facts"] for left in (60, 10))
    assert f"X-Amz-Expires={launch_inputs.SIGNED_SLACK_SECONDS + 60}&" in early
    assert f"X-Amz-Expires={launch_inputs.SIGNED_SLACK_SECONDS + 10}&" in late


@pytest.mark.parametrize(
    ("node", "reachable", "read"), [("n1", True, ["n2", "n3"]), ("n2", True, []), ("n1", False, [])]
)
def test_the_leader_of_a_gang_may_read_the_records_of_its_members(node, reachable, read, monkeypatch):
    members = [{"node": name, "address": name, "slots": 1} for name in ("n1", "n2", "n3")]
    nodes = {one["node"]: {"gang": {"name": "all", "index": index}} for index, one in enumerate(members)}
    run = {**RUN, "nodes": nodes, "gangs": {"all": {"members": members, "port": 29500, "ssh_port": 3022}}}
    store = dataclasses.replace(node_store(reachable=reachable), run=run)
    given = store.given(node, ["collective"], 60)["store"]
    assert list(given.get("members", {})) == [f"collective/{name}" for name in read]
    assert all(f"/r1/records/collective/{name}.json?" in given["members"][f"collective/{name}"] for name in read)
    monkeypatch.setattr(launch_inputs, "MAX_MEMBER_URLS", 1)
    assert "members" not in store.given(node, ["collective"], 60)["store"]


def test_what_a_plan_loads_is_known_before_its_launch():
    commands = {
        "facts": ["{runner}", "facts"],
        "loading": ["{python}", "-m", "gpuval_workloads.loading", "--model-folder", "models--a", "--transfers", 8],
        "dataset_c4": ["{python}", "-m", "gpuval_workloads.loading", "--dataset", "c4"],
    }
    plan = {"stages": [{"name": name, "command": command} for name, command in commands.items()]}
    assert launch_inputs.folders(plan) == ["models--a", "datasets--gpuval--c4"]
    assert launch_inputs.folders({"stages": plan["stages"][:1]}) == []


def test_a_store_out_of_reach_gives_no_url_and_no_model():
    assert node_store(reachable=False).given("n1", ["facts"], 60)["store"]["put"] == {}
    with pytest.raises(PlanError, match="gpuval_store_address"):
        node_store(reachable=False).given("n1", ["loading"], 60)


TRAINING = ["{python}", "-m", "gpuval_workloads.gang", "training", "--zero", 2]
TORCH, FIO, PYTHON = {"import": "torch"}, {"start": "fio --version"}, {"import": "sys"}


def asked_of(workloads, runtime, **expected):
    """The needs by stage, and the environments of their trials."""
    trials = launch_inputs.requirements({"stages": [], **expected}, workloads, runtime)
    by_stage = {}
    for need in (need for trial in trials for need in trial["needs"]):
        for stage in need["stages"]:
            by_stage.setdefault(stage, []).append({key: need[key] for key in need if key != "stages"})
    return by_stage, [trial["environment"] for trial in trials]


@pytest.mark.parametrize(
    ("command", "image", "runtime", "needs"),
    [
        (["{python}", "-m", "x"], None, "auto", [PYTHON, TORCH, FIO]),
        (["{python}", "-m", "x"], "training:1", "auto", []),  # the image brings it
        (["{python}", "-m", "x"], "training:1", "host", [PYTHON, TORCH, FIO]),
        (["{runner_python}", "-m", "x"], None, "auto", [FIO]),  # not the Python that is tried
        (["/my/python", "-m", "x"], None, "auto", [FIO]),
    ],
)
def test_what_stages_import_and_start_on_the_host(command, image, runtime, needs):
    declared = {
        "command": command,
        "image": image,
        "requires": [TORCH, FIO],
        "environment": {"A": 1, "GPUVAL_JOB": "x"},
    }
    for placed in ({"stages": ["mine"]}, {"gang_stages": ["mine"]}):
        wanted = ({"mine": needs}, [{"A": "1"}]) if needs else ({}, [])
        assert asked_of({"mine": declared}, runtime, **placed) == wanted


def test_what_several_stages_need_is_tried_once():
    declared = {"command": TRAINING, "requires": [TORCH]}
    workloads = {"a": declared, "b": {**declared, "requires": [TORCH, FIO]}, "c": {"command": ["{runner}"]}}
    (trial,) = launch_inputs.requirements({"stages": ["a", "c"], "gang_stages": ["b"]}, workloads, "host")
    assert [need["stages"] for need in trial["needs"]] == [["a", "b"], ["a", "b"], ["b"]]


def test_an_environment_that_names_folders_of_the_run_is_not_tried():
    declared = {"command": TRAINING, "requires": [TORCH], "environment": {"PYTHONPATH": "{models_dir}/modules"}}
    (trial,) = launch_inputs.requirements({"stages": ["a"]}, {"a": declared}, "host")
    assert TORCH["import"] not in [need.get("import") for need in trial["needs"]]


def test_each_environment_and_each_python_has_a_trial_that_its_stages_share():
    declared = {"command": TRAINING, "requires": [FIO]}
    workloads = {
        "a": {**declared, "environment": {"A": 1, "B": 2}},
        "b": {**declared, "environment": {"B": "2", "A": "1", "GPUVAL_JOB": "of_b"}},
        "c": {**declared, "environment": {"A": 1}},
        "d": {"command": ["{runner}"], "requires": [FIO], "environment": {"A": 1}},
        "e": {"command": ["{runner}"], "environment": {"A": 3}},
    }
    trials = launch_inputs.requirements({"stages": list(workloads)}, workloads, "host")
    shown = [(trial["in_python"], trial["environment"], trial["needs"][-1]["stages"]) for trial in trials]
    assert shown == [(True, {"A": "1", "B": "2"}, ["a", "b"]), (True, {"A": "1"}, ["c"]), (False, {"A": "1"}, ["d"])]


def gang_job(tmp_path, launcher):
    path = tmp_path / "mine.yml"
    path.write_text(
        "schema: gpuval.job/1\nname: mine\nnodes: gang\nimage: training\nsteps:\n"
        f"  - {{name: one, run: [a], launcher: {launcher}}}\n  - {{name: two, run: [b]}}\n"
    )
    images = {"training": {"reference": "training:1"}}
    return [stages.workloads([path], skip, images=images, together=True)["mine"] for skip in (["one"], [])]


@pytest.mark.parametrize(("launcher", "names"), [("deepspeed", ["deepspeed"]), ("torchrun", ["torch"]), ("none", [])])
def test_the_launchers_of_a_job_need_their_packages(tmp_path, launcher, names):
    skipped, job = gang_job(tmp_path, launcher)
    needs = [PYTHON, *({"import": name} for name in names)]
    assert asked_of({"mine": job}, "host", gang_stages=["mine"]) == ({"mine": needs}, [{}])
    assert asked_of({"mine": skipped}, "host", gang_stages=["mine"]) == ({"mine": [PYTHON]}, [{}])
    assert asked_of({"mine": job}, "docker", gang_stages=["mine"]) == ({}, [])


@pytest.mark.parametrize(
    ("gang", "asked"),
    [
        ({"image": "training:1"}, "diagnostics"),
        ({"image": "training:1", "container": {"volumes": ["/opt/deepspeed"]}}, None),
        ({"image": "training:1", "environment": {"PYTHONPATH": "/opt"}}, None),
        ({"image": "loading:1"}, "loading"),
        ({"image": "other:1"}, None),
        ({"image": None}, None),  # the launch looks on the host
    ],
)
def test_the_first_stage_in_the_image_of_a_multi_node_stage_looks_for_its_packages(gang, asked):
    program = ["{python}", "-m"]
    workloads = {
        "facts": {"command": ["{runner}", "facts"]},
        "mine": {"command": [*program, "gpuval_workloads.job"], "image": "training:1"},  # a job reports nothing
        "diagnostics": {"command": [*program, "gpuval_workloads.diagnostics"], "image": "training:1", "container": {}},
        "training": {"command": [*program, "gpuval_workloads.training"], "image": "training:1"},
        "loading": {"command": [*program, "gpuval_workloads.loading"], "image": "loading:1", "environment": {"A": 1}},
        "deepspeed": {"command": TRAINING, "requires": [{"import": "deepspeed"}], **gang},
    }
    own = ["facts", "mine", "diagnostics", "training", "loading"]
    found = launch_inputs.with_needed_packages({"stages": own, "gang_stages": ["deepspeed"]}, workloads)
    changed = {name for name in workloads if found[name] != workloads[name]}
    assert changed == ({asked} if asked else set())
    if asked:
        before = workloads[asked].get("environment", {})
        assert found[asked]["environment"] == {**before, "GPUVAL_NEEDED_PACKAGES": "deepspeed"}
    assert launch_inputs.with_needed_packages({"stages": own}, workloads) == workloads
