"""Jobs become stages of a plan; what is chosen of them is held against what they have."""

import pytest
from ansible_collections.gpuval.fleet.node.gpuval_workloads.job import program as steps
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit import jobs

STEPS = [{"name": name, "run": "true"} for name in ("clone", "convert", "train")]
FACTS = {"facts": {"command": ["{runner}", "facts"]}}


def packed(declaration):
    return steps.unpack(declaration["environment"][stages.VARIABLE])


def chosen(job, kind):
    return [step.name for step in job.steps if getattr(step, kind)]


def test_a_job_is_a_stage_of_the_plan(tmp_path):
    job = jobs.write(tmp_path, steps=STEPS, timeout_seconds=90, container={"shm_bytes": 1 << 30}, image="training",
                     datasets=["pixels"], results={"output": ["megatron"]})  # fmt: skip
    declared = stages.workloads([job], images={"training": {"reference": "r/x:1"}}, environment={"A": 1})
    settings = plans.PlanSettings(
        "run-1", "node-1", "2026-11-20T20:00:00Z", 60, 10, "docker", "auto", None, "python3", None
    )
    plan = plans.build(settings, ["facts", "mine"], {**FACTS, **declared})
    schemas.validate("plan", plan, what="plan")
    stage = plan["stages"][1]
    assert (stage["needs"], stage["timeout_seconds"], stage["image"]) == (["facts"], 90, "r/x:1")
    assert stage["container"] == {"shm_bytes": 1 << 30}
    assert stage["environment"]["A"] == "1"
    assert (stage["datasets"], [reader["name"] for reader in stage["output"]]) == (["pixels"], ["megatron"])
    assert [step.name for step in packed(declared["mine"]).steps] == ["clone", "convert", "train"]


def test_a_job_of_several_nodes_is_a_stage_of_their_gang(tmp_path):
    alone = jobs.write(tmp_path, name="alone")
    first = {"name": "clone", "run": "true", "once": True}
    train = {"name": "train", "run": ["train.py"], "launcher": "torchrun"}
    both = jobs.write(tmp_path, name="both", nodes="gang", steps=[first, train], least_nodes=3, order="rack")
    assert list(stages.workloads([alone, both])) == ["alone"]
    (name,) = together = stages.workloads([alone, both], together=True)
    assert name == "both"
    assert together["both"]["retry"] == []
    job = packed(together["both"])
    own = {"least": 3, "most": 0, "gpus_per_node": 0, "order": "rack", "join_seconds": 300}
    assert job.gang == {"figures": "first", **own}
    assert [(step.once, step.launcher) for step in job.steps] == [(True, "none"), (False, "torchrun")]
    assert stages.names([alone, both]) == ["alone", "both"]


def test_what_looks_like_a_place_of_a_plan_reaches_the_node_as_it_was_written(tmp_path):
    (tmp_path / "a.py").write_text("print(f'{node} {work_dir}')\n")
    job = jobs.write(tmp_path, files=["a.py"], steps=[{"name": "one", "run": "echo {run_id}"}])
    (declared,) = stages.workloads([job]).values()
    assert not any("{" in text for text in declared["environment"].values())
    assert packed(declared).files == {"a.py": "print(f'{node} {work_dir}')\n"}


def test_steps_are_skipped_and_forced_by_settings_and_by_the_names_of_test_beds(tmp_path):
    job = jobs.write(tmp_path, steps=STEPS, environment={"SKIP_CLONE_REPO": True, "SKIP_TRAINING": "false"})
    (declared,) = stages.workloads([job], skip=["convert"]).values()
    assert chosen(packed(declared), "skip") == ["clone", "convert"]
    (declared,) = stages.workloads([job], force=["train"], environment={"FORCE_CONVERSION": "1"}).values()
    assert chosen(packed(declared), "force") == ["convert", "train"]


def test_the_test_beds_word_for_staying_alive(tmp_path):
    environment = {"SLEEP_INFINITY": "true"}
    stay = {
        given: packed(stages.workloads([jobs.write(tmp_path, stay_alive=given)], environment=environment)["mine"])
        for given in (False, 60)
    }
    assert {given: job.stay_alive_seconds for given, job in stay.items()} == {False: 86400, 60: 60}
    assert packed(stages.workloads([jobs.write(tmp_path, environment=environment)])["mine"]).stay_alive_seconds == 86400
    (ends,) = stages.workloads([jobs.write(tmp_path, environment=environment)], stays=False).values()
    assert packed(ends).stay_alive_seconds == 0


def test_a_job_whose_last_step_is_skipped_owes_no_figures(tmp_path):
    results = {"output": ["deepspeed"], "csv": "perf.csv"}
    job = jobs.write(tmp_path, steps=STEPS, results=results)
    (declared,) = stages.workloads([job]).values()
    assert (packed(declared).figures, packed(declared).csv) == (True, "perf.csv")
    (declared,) = stages.workloads([job], skip=["train"]).values()
    assert (packed(declared).figures, packed(declared).csv, declared["output"]) == (False, "", [])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"skip": ["clnoe"]}, "gpuval_job_skip: no job has a step clnoe; is it clone?"),
        ({"force": ["x"]}, "gpuval_job_force: no job has a step x; steps are clone, convert, train"),
        ({"skip": ["clone", "convert"], "environment": {"SKIP_TRAINING": "1"}}, "every step of "),
        ({"images": {"trainings": {}}}, "no image training in gpuval_images; is it trainings?"),
    ],
)
def test_what_no_job_has_is_named(tmp_path, given, told):
    job = jobs.write(tmp_path, steps=STEPS, image="training")
    (problem,) = stages.problems([job], **given)
    assert told in problem
    with pytest.raises(SettingError, match=r"^gpuval_job"):
        stages.workloads([job], **given)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (
            "nosuch",
            "no image nosuch in gpuval_images, which is empty: declare the image, or leave out `image` to run on",
        ),
        ("trainings", "no image trainings in gpuval_images; is it training?"),
    ],
)
def test_an_image_that_is_not_declared_is_refused_and_the_host_stands_in_for_those_of_gpuval_alone(
    tmp_path, image, told
):
    (problem,) = stages.problems([jobs.write(tmp_path, steps=STEPS, image=image)])
    assert told in problem
    assert stages.problems([jobs.write(tmp_path, steps=STEPS, image="training")]) == []


def test_two_jobs_of_one_name_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    both = [jobs.write(tmp_path), jobs.write(tmp_path / "a")]
    (problem,) = stages.problems(both)
    assert "have the same name mine" in problem


def test_a_job_too_large_for_a_plan_is_refused(tmp_path):
    import random

    (tmp_path / "noise.txt").write_text("".join(random.Random(1).choices("0123456789abcdef", k=400_000)))
    (problem,) = stages.problems([jobs.write(tmp_path, files=["noise.txt"])])
    assert "too large for a plan" in problem
