"""What is made of a pod that could not bring its records to the store."""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import pod_records
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.placement import ClusterPlacement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_diagnosis import PodTrouble
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_state import (
    ContainerState,
    termination_report,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_tracker import PodStatus
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import attempts
from gpuval_runner import pod as runner_pod
from gpuval_runner.record import StageRecord

RUN, NODE, AT = "20261120-201500-3f2a", "gpu-pool-7x2vd", "2026-11-20T20:21:00Z"
STAGES = ("facts", "training", "loading", "inference")
SETTINGS = plans.PlanSettings(
    run_id=RUN, node=NODE, created_at=AT, deadline_seconds=7200, heartbeat_seconds=15, runtime="pod", sku="h100",
    gpu_count=8, python="python3", models_dir="/models",
)  # fmt: skip
PLAN = plans.build(SETTINGS, STAGES, {stage: {"command": ["{python}", stage]} for stage in STAGES})
DIGESTS = {"records/training": ["a" * 64], "logs/training": ["b" * 64, "c" * 64]}

WAITS = ContainerState("waiting", "PodInitializing")
DONE = ContainerState("ended", "Completed", "", 0, None, "2026-11-20T20:15:00Z", "2026-11-20T20:16:00Z")
OOM = ContainerState("ended", "OOMKilled", "", 137, "SIGKILL", "2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z")
KILLED = PodTrouble(
    "oom_killed", "OOMKilled: the kernel killed the container of training", remedy="more", stage="training", final=True,
    evidence=True,
)  # fmt: skip
EVICTED = PodTrouble(
    "evicted", "Evicted: low on memory", remedy="free it, ...", stage="training", final=True, retryable=True
)


def placed(trouble=None, attempt=1, over=True, **stages):
    containers = {stage: stages.get(stage, WAITS) for stage in STAGES}
    started = any(container.ran for container in containers.values())
    return PodStatus(NODE, attempt, "ended", trouble=trouble, stages=containers, started=started, done=over)


def record(stage, state="success", attempt=1, **more):
    return json.loads(
        StageRecord(
            RUN, NODE, stage, stage, attempt, state=state, started_at=AT, finished_at=AT, updated_at=AT, **more
        ).encode()
    )  # fmt: skip


def last_word(stage, state, message="", code=0, signal=None):
    said = {"stage": stage, "state": state, "exit_code": code, "signal": signal, "message": message}
    return ContainerState(
        "ended", "Completed", json.dumps(said), 0, None, "2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z"
    )


def skipped(status, plan, stage, before=None):
    return pod_records.PodStageEnd(None, plan, stage, status.attempt, AT, before).skipped(status.trouble)


def take(document):
    """As the watch takes in a node's record."""
    run = {
        "run_id": RUN,
        "folder": RUN,
        "created_at": "2026-11-20T20:14:00Z",
        "finished_at": None,
        "nodes": {NODE: {"stages": list(STAGES)}},
    }
    taken = evidence.RunEvidence()
    key = f"{RUN}/records/{document['stage']}/{NODE}.json"
    assert evidence.take_record(taken, run, key, json.dumps(document).encode()), taken.problems
    return document


# --- what is owed ----------------------------------------------------------------------------------------------------


def test_a_stage_killed_for_memory_is_a_crash_and_later_ones_never_ran():
    known = {"facts": record("facts"), "training": record("training", "running", metrics=[])}
    owed = pod_records.owed(placed(KILLED, facts=DONE, training=OOM), PLAN, known, AT)
    (crash,) = map(take, owed.records)
    assert (crash["stage"], crash["state"], crash["exit_code"], crash["signal"]) == (
        "training",
        "crash",
        137,
        "SIGKILL",
    )
    assert "OOMKilled" in crash["message"] and "by the controller" in crash["message"]
    assert crash["environment"][pod_records.RECORDED_BY] == "controller"
    assert crash["command"] == []  # as the node wrote it
    assert (owed.cut_off, owed.not_run) == ([], ["loading", "inference"])


def test_a_record_of_the_controller_shows_the_nonce_of_the_launch():
    plan = {**PLAN, "nonce": "ab" * 16}
    status = placed(KILLED, facts=DONE, training=OOM)
    owed = pod_records.owed(status, plan, {"facts": record("facts")}, AT)
    assert {made["nonce"] for made in owed.records} == {plan["nonce"]}
    assert skipped(status, plan, "training")["nonce"] == plan["nonce"]


def test_a_record_of_the_controller_has_the_image_that_the_runner_would_give():
    """The facts are those of the host: their record has no image, though in a pod they run in one."""
    images = {"facts": "registry.example/facts:1", "training": "registry.example/training:1"}
    stages = [{**stage, "image": images.get(stage["name"])} for stage in PLAN["stages"]]
    plan = {**PLAN, "runtime": "pod", "stages": stages}
    for stage, image in (("facts", None), ("training", images["training"])):
        made = skipped(placed(KILLED), plan, stage)
        assert made["image"] == image
        planned = next({**planned, "runtime": "pod"} for planned in plan["stages"] if planned["name"] == stage)
        evidence.check_launch(made, {"state": "started", "nonce": "ab" * 16}, planned)


def test_what_the_node_measured_before_it_died_is_kept():
    metric = {"name": "training_tokens_per_second", "value": 9.5, "unit": "1/s", "scope": "node"}
    known = {"training": record("training", "running", metrics=[metric])}
    (crash,) = pod_records.owed(placed(KILLED, facts=DONE, training=OOM), PLAN, known, AT).records
    assert crash["metrics"] == [metric]
    assert crash["started_at"] == AT


def test_a_crash_without_any_record_has_the_times_of_its_container():
    (crash,) = map(take, pod_records.owed(placed(KILLED, training=OOM), PLAN, {}, AT).records)
    assert (crash["started_at"], crash["finished_at"]) == ("2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z")
    assert crash["duration_seconds"] == 270
    assert crash["command"] == ["{python}", "training"]


@pytest.mark.parametrize("name", ["evicted", "preempted", "node_lost", "pod_deleted", "deadline_exceeded"])
def test_a_disruption_is_no_evidence(name):
    trouble = PodTrouble(name, "...", remedy="...", stage="training", final=True)
    known = {"facts": record("facts"), "training": record("training", "running")}
    killed = ContainerState("ended", "Error", "", 137, "SIGKILL", "2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z")
    owed = pod_records.owed(placed(trouble, facts=DONE, training=killed), PLAN, known, AT)
    assert owed.records == []
    assert (owed.cut_off, owed.not_run) == (["training"], ["loading", "inference"])


@pytest.mark.parametrize("source", ["record", "last word"])
def test_a_runner_that_was_asked_to_end_with_its_pod_has_another_turn(source):
    told = record("inference", "cancelled")
    known = {stage: record(stage) for stage in STAGES[:3]}
    after = placed(EVICTED, inference=last_word("inference", "cancelled", code=143))
    if source == "record":
        known["inference"] = told
        assert pod_records.cut_short(after, known) == ["inference"]
    owed = pod_records.owed(after, PLAN, known, AT)
    assert (owed.records, owed.cut_off, owed.not_run) == ([], ["inference"], [])


def test_what_people_cancelled_stays_cancelled():
    known = {stage: record(stage, "cancelled") for stage in STAGES}
    assert pod_records.cut_short(placed(None), known) == []
    assert pod_records.cut_short(placed(EVICTED, attempt=2), known) == []
    assert pod_records.owed(placed(None), PLAN, known, AT) == pod_records.Owed()


def test_a_pod_that_never_ran_owes_nothing_but_its_stages():
    trouble = PodTrouble("image_not_found", "...", remedy="...", stage="facts", final=True)
    owed = pod_records.owed(placed(trouble), PLAN, {}, AT)
    assert (owed.records, owed.cut_off, owed.not_run) == ([], [], list(STAGES))


def test_accelerators_that_the_runtime_could_not_give_are_a_crash_without_a_start():
    trouble = PodTrouble(
        "accelerator_runtime", "RunContainerError: nvml error", remedy="...", stage="facts", final=True, evidence=True
    )
    owed = pod_records.owed(
        placed(trouble, facts=ContainerState("waiting", "RunContainerError", "nvml error")), PLAN, {}, AT
    )
    (crash,) = map(take, owed.records)
    assert (crash["stage"], crash["state"], crash["started_at"]) == ("facts", "crash", None)
    assert crash["duration_seconds"] is None
    assert pod_records.launch_of(placed(trouble), {"state": "unknown"})["state"] == "started"


def test_a_pod_at_work_owes_nothing():
    assert pod_records.owed(placed(KILLED, over=False, training=OOM), PLAN, {}, AT) == pod_records.Owed()


def test_a_record_that_arrived_says_more_than_the_pod():
    known = {stage: record(stage) for stage in STAGES} | {"training": record("training", "crash", message="its own")}
    assert pod_records.owed(placed(KILLED, training=OOM), PLAN, known, AT) == pod_records.Owed()


def test_a_record_of_an_earlier_attempt_becomes_its_history():
    known = {"training": record("training", "timeout")}
    owed = pod_records.owed(
        placed(KILLED, attempt=2, training=OOM), plans.for_attempt(PLAN, ["training"], 2), known, AT
    )
    (crash,) = map(take, owed.records)
    assert (crash["attempt"], [one["state"] for one in crash["attempts"]]) == (2, ["timeout"])


def test_a_retry_takes_up_the_crash_and_what_never_ran():
    owed = pod_records.owed(placed(KILLED, facts=DONE, training=OOM), PLAN, {"facts": record("facts")}, AT)
    records = {"facts": record("facts")} | {one["stage"]: one for one in owed.records}
    again = attempts.stages_to_retry(PLAN["stages"], records, [])
    assert [*again, *owed.cut_off, *owed.not_run] == ["training", "loading", "inference"]


def test_what_will_never_run_is_skipped():
    made = take(skipped(placed(KILLED, training=OOM), PLAN, "loading"))
    assert (made["state"], made["started_at"], made["duration_seconds"]) == ("skipped", None, None)
    assert "OOMKilled" in made["message"]


@pytest.mark.parametrize("before", ["running", "pending"])
def test_what_an_earlier_attempt_showed_stays_in_the_record_of_a_stage_that_will_never_run(before):
    fault = {"name": "gpu_xid_critical_count", "value": 1, "unit": "count", "scope": "gpu:0"}
    known = record("training", "running", metrics=[fault])
    if before == "pending":  # the runner of the second pod has opened its plan
        known = record("training", "pending", attempt=2, attempts=[known])
    status = placed(KILLED, attempt=2, facts=OOM)
    made = take(skipped(status, PLAN, "training", known))
    assert (made["state"], made["attempt"]) == ("skipped", 2)
    assert [one["metrics"] for one in made["attempts"]] == [[fault]]


# --- last words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["success", "failure", "crash", "timeout", "skipped", "cancelled"])
def test_the_last_word_of_a_runner_stands_for_its_record(state):
    end = (0, None) if state == "success" else (9, "SIGTERM")
    container = last_word("training", state, "loss is 3.2", *end)
    made = take(pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported())
    assert (made["state"], made["exit_code"], made["signal"], made["metrics"]) == (state, *end, [])
    assert made["message"].startswith("loss is 3.2; recorded by the controller")
    owed = pod_records.owed(placed(facts=DONE, training=container), PLAN, {}, AT)
    assert [one["state"] for one in owed.records] == [state]


def test_figures_of_a_heartbeat_do_not_stand_for_those_of_a_stage_that_succeeded():
    beat = record("training", "running", metrics=[{"name": "gpu_xid_critical_count", "value": 0, "unit": "count",
                                                   "scope": "gpu:0"}])  # fmt: skip
    made = take(pod_records.PodStageEnd(last_word("training", "success"), PLAN, "training", 1, AT, beat).reported())
    assert (made["state"], made["metrics"], made["started_at"]) == ("success", [], AT)
    assert [one["metrics"] for one in made["attempts"]] == [beat["metrics"]]
    failed = pod_records.PodStageEnd(last_word("training", "crash", code=9), PLAN, "training", 1, AT, beat).reported()
    assert take(failed)["metrics"] == beat["metrics"]


@pytest.mark.parametrize(("earlier", "cause"), [(None, None), ("crash", "flaky"), ("running", "interrupted")])
def test_a_success_known_from_its_pod_alone_passed_on_a_retry_only_after_another_attempt(earlier, cause):
    attempt = 2 if earlier else 1
    figure = [{"name": "training_tokens_per_second", "value": 9.5, "unit": "1/s", "scope": "node"}]
    attempts = [record("training", earlier)] if earlier else []
    beat = record("training", "running", attempt, metrics=figure, attempts=attempts)
    ended = last_word("training", "success")
    made = take(pod_records.PodStageEnd(ended, PLAN, "training", attempt, AT, beat).reported())
    assert made["attempts"][-1]["metrics"] == figure
    assert stage_end.retried_for(made) == cause


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last):",
        "[]",
        "[" * 4000,
        '{"stage":"loading","state":"success"}',
        '{"stage":"training","state":"running"}',
        '{"stage":"training","state":["success"]}',
        '{"stage":"training","state":"success","message":"' + "x" * 5000 + '"}',
    ],
)
def test_what_is_no_last_word_stands_for_nothing(text):
    container = ContainerState("ended", "Completed", text, 0, None, AT, AT)
    assert pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported() is None


def test_hostile_last_words_are_cleaned_and_follow_the_schema():
    said = {"stage": "training", "state": "failure", "exit_code": 1 << 70, "signal": "x" * 99, "message": "\x1b[2Jno\n"}
    container = ContainerState("ended", "Completed", json.dumps(said), 0, None, AT, AT)
    made = take(pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported())
    assert (made["exit_code"], made["signal"]) == (None, None)
    assert made["message"].startswith("no; ")


def test_success_is_not_read_from_a_container_that_was_killed():
    text = last_word("training", "success").message
    container = ContainerState("ended", "Error", text, 137, "SIGKILL", AT, AT)
    assert pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported() is None


def test_the_root_cause_in_the_tail_of_the_log_is_reported_with_a_crash():
    trouble = PodTrouble("container_failed", "exit code 1", remedy="...", stage="training", final=True, evidence=True)
    output = "[rank3]: KeyError: 'labels'\n[rank0]: RuntimeError: Broken pipe\n====\n"
    container = ContainerState("ended", "Error", output, 1, None, "2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z")
    (crash,) = map(take, pod_records.owed(placed(trouble, training=container), PLAN, {}, AT).records)
    assert crash["message"].endswith("; cause: rank 3: KeyError: 'labels'")
    assert crash["environment"]["cause"] == {"class": "own_program", "text": "KeyError: 'labels'", "rank": 3}


def test_a_pod_that_the_kernel_killed_for_memory_has_that_as_its_cause():
    (crash,) = map(take, pod_records.owed(placed(KILLED, training=OOM), PLAN, {}, AT).records)
    assert crash["environment"]["cause"]["class"] == "out_of_memory"
    assert crash["message"].count("OOMKilled") == 1


def test_the_cause_that_a_runner_names_last_is_recorded(tmp_path):
    cause = {"class": "environment", "text": "fio: command not found", "rank": None, "package": "fio"}
    crashed = StageRecord(
        RUN, NODE, "training", "training", 1, state="crash", exit_code=127, environment={"cause": cause}
    )
    runner_pod.write_termination(crashed, {}, tmp_path / "termination", 1)
    message = (tmp_path / "termination").read_text()
    container = ContainerState("ended", "Error", message, 1, None, "2026-11-20T20:16:00Z", "2026-11-20T20:20:30Z")
    made = take(pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported())
    assert made["environment"]["cause"] == cause


def test_the_tail_of_the_log_is_reported_with_a_crash():
    trouble = PodTrouble(
        "container_failed", "killed by SIGSEGV", remedy="...", stage="training", final=True, evidence=True
    )
    dead = ContainerState("ended", "Error", "CUDA error: unspecified launch failure", 139, "SIGSEGV", AT, AT)
    (crash,) = pod_records.owed(placed(trouble, training=dead), PLAN, {}, AT).records
    assert "unspecified launch failure" in crash["message"]


def test_the_last_word_that_the_runner_writes_is_read(tmp_path):
    made = StageRecord(RUN, NODE, "training", "training", 1, "crash", "killed by SIGKILL " * 400, signal="SIGKILL")
    runner_pod.write_termination(made, DIGESTS, tmp_path / "log", 1)
    container = ContainerState("ended", "Completed", (tmp_path / "log").read_text(), 0, None, AT, AT)
    taken = pod_records.PodStageEnd(container, PLAN, "training", 1, AT).reported()
    assert (taken["state"], taken["signal"]) == ("crash", "SIGKILL")
    assert (tmp_path / "log").stat().st_size <= 2048
    assert termination_report("training", container).digests == DIGESTS


@pytest.mark.parametrize("containers", [1, 12, 40])
def test_the_last_word_fits_into_the_share_that_kubernetes_gives_each_container(tmp_path, containers):
    """The kubelet cuts what is longer, which then is no JSON any more: the pod's state and cause would be lost."""
    cause = {"class": "environment", "text": "fio: command not found", "rank": None, "package": "fio"}
    made = StageRecord(
        RUN, NODE, "training", "training", 1, "crash", "no fio " * 400, exit_code=127, environment={"cause": cause}
    )
    runner_pod.write_termination(made, DIGESTS, tmp_path / "log", containers)
    message = (tmp_path / "log").read_text()[: 12288 // containers]
    report = termination_report("training", ContainerState("ended", "Error", message, 1, None, AT, AT))
    assert (report.state, report.exit_code, report.cause.text) == ("crash", 127, "fio: command not found")
    assert report.digests == (DIGESTS if containers < 40 else {})


@pytest.mark.parametrize("stated", [None, [], {"records/training": "a" * 64}, {"records/training": ["no digest"]}])
def test_malformed_digests_of_a_pod_are_none(stated):
    message = json.dumps({"stage": "training", "state": "success", "digests": stated})
    report = termination_report("training", ContainerState("ended", "Completed", message, 0, None, AT, AT))
    assert (report.state, report.digests) == ("success", {})


def test_a_pod_states_the_digests_of_its_stage_alone():
    stated = {**DIGESTS, "records/facts": ["b" * 64]}
    message = json.dumps({"stage": "training", "state": "success", "digests": stated})
    container = ContainerState("ended", "Completed", message, 0, None, AT, AT)
    assert termination_report("training", container).digests == DIGESTS


RUNS = ContainerState("running", "", "", None, None, AT, None)


@pytest.mark.parametrize(("second", "stated"), [({}, {}), ({"facts": RUNS}, DIGESTS), ({"training": RUNS}, {})])
def test_digests_count_until_a_later_pod_may_have_changed_the_results(second, stated):
    """A second pod that is gone may have changed all."""
    message = json.dumps({"stage": "training", "state": "success", "digests": DIGESTS})
    attempts = {1: {"training": ContainerState("ended", "Completed", message, 0, None, AT, AT)}, 2: second}
    placed = object.__new__(ClusterPlacement)
    placed._pods = SimpleNamespace(status=lambda _node, _now, attempt: SimpleNamespace(stages=attempts[attempt]))
    assert placed._stated_by(SimpleNamespace(name=NODE, attempt=1)) == DIGESTS
    assert placed._stated_by(SimpleNamespace(name=NODE, attempt=2)) == stated


# --- logs ------------------------------------------------------------------------------------------------------------


def printed(*records):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for one in records:
            print("some output", end="")
            runner_pod.print_record(one)
    return out.getvalue()


def test_records_that_the_runner_prints_are_read_again():
    text = printed(
        StageRecord(RUN, NODE, "facts", "facts", 1, "success"), StageRecord(RUN, NODE, "training", "t", 1, "crash")
    )
    for stage, state in (("facts", "success"), ("training", "crash")):
        for output in (text, text.replace("\n", "\r\n")):
            assert json.loads(pod_records.split_output(output, stage)[0])["state"] == state


def test_output_is_kept_without_the_records_in_it():
    text = "begins\n-----BEGIN GPUVAL RECORD facts-----\n{}\n-----END GPUVAL RECORD facts-----\nends\n"
    assert pod_records.split_output(text, "facts")[1] == "begins\nends"
    assert pod_records.split_output(text[:60], "facts")[1] == "begins"
    assert pod_records.split_output("nothing", "facts")[1] == "nothing"


def test_the_last_whole_record_counts():
    text = printed(*(StageRecord(RUN, NODE, "facts", "facts", number, "success") for number in (1, 2)))
    assert json.loads(pod_records.split_output(text, "facts")[0])["attempt"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----BEGIN GPUVAL RECORD facts-----\n{}",
        "{}\n-----END GPUVAL RECORD facts-----",
        "-----BEGIN GPUVAL RECORD facts-----\n{}\n-----END GPUVAL RECORD training-----",
        "-----BEGIN GPUVAL RECORD ../etc-----\n{}\n-----END GPUVAL RECORD ../etc-----",
        "x-----BEGIN GPUVAL RECORD facts-----\n{}\n-----END GPUVAL RECORD facts-----",
        "-----BEGIN GPUVAL RECORD facts-----\n" + "x" * (1 << 20) + "x\n-----END GPUVAL RECORD facts-----",
    ],
)
def test_what_is_no_whole_record_is_left_out(text):
    assert (pod_records.split_output(text, "facts")[0], pod_records.split_output(text, "../etc")[0]) == (None, None)


def test_a_record_that_was_cut_off_does_not_hide_the_next():
    cut = "-----BEGIN GPUVAL RECORD facts-----\n{"
    text = f"{cut}\n-----BEGIN GPUVAL RECORD facts-----\n{{}}\n-----END GPUVAL RECORD facts-----\n"
    assert pod_records.split_output(text, "facts")[0] == b"{}"


def test_a_log_full_of_beginnings_is_read_in_one_pass():
    assert pod_records.split_output("-----BEGIN GPUVAL RECORD facts-----\n" * 200_000, "facts")[0] is None


# --- launches --------------------------------------------------------------------------------------------------------


def test_a_pod_that_never_ran_is_a_failed_launch_with_class_and_remedy():
    trouble = PodTrouble("image_denied", "ErrImagePull: 401", remedy="name a secret", stage="facts", final=True)
    launch = pod_records.launch_of(placed(trouble), {"state": "unknown", "at": AT})
    assert launch == {
        "state": "failed", "at": AT, "attempt": 1,
        "class": "image_denied", "message": "ErrImagePull: 401", "remedy": "name a secret",
    }  # fmt: skip
    assert launch_errors.described(launch)["class"] == "image_denied"
    assert launch_errors.described(launch)["remedy"] == "name a secret"


def test_a_pod_that_ran_was_launched_and_its_end_explains_what_is_missing():
    launch = pod_records.launch_of(placed(EVICTED, training=OOM), {"state": "unknown"})
    assert launch["state"] == "started"
    assert launch["contact"]["pod"]
    assert {key: value for key, value in launch["contact"].items() if key != "pod"} == {
        "class": "evicted",
        "message": EVICTED.message,
        "remedy": EVICTED.remedy,
    }
    assert "contact" not in pod_records.launch_of(placed(KILLED, training=OOM), launch)


def test_a_pod_that_waits_leaves_its_launch_as_it_is():
    waits = PodStatus(
        NODE, 1, "pending", trouble=PodTrouble("gpus_in_use", "Insufficient nvidia.com/gpu", remedy="...")
    )
    launch = pod_records.launch_of(waits, {"state": "unknown"})
    assert (launch["state"], launch["message"]) == ("unknown", "pending: Insufficient nvidia.com/gpu")


@pytest.mark.parametrize("trouble", [None, EVICTED, KILLED])
@pytest.mark.parametrize("container", [WAITS, OOM])
@pytest.mark.parametrize("over", [True, False])
def test_a_launch_that_was_looked_at_twice_is_the_same(trouble, container, over):
    seen = placed(trouble, done=over, training=container)
    launch = launch_errors.described(pod_records.launch_of(seen, {"state": "started", "at": AT}))
    assert launch_errors.described(pod_records.launch_of(seen, launch)) == launch
