"""Jobs that stay for a shell once their work is done: their records are final before."""

import re
import time

from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from gpuval_runner import clock
from gpuval_workloads.job.program import VARIABLE, unpack

from tests.kit import jobs
from tests.kit.runner import alive, stage, until

STEPS = [{"name": "work", "run": "echo $$ > pid; seq 60000; echo performance: 12.5 examples/sec"}]


def plan(node, tmp_path, *after, **changes):
    job = jobs.write(tmp_path, **{"steps": STEPS, "stay_alive": True, "timeout_seconds": 60, **changes})
    ((name, declaration),) = stages.workloads([job]).items()
    node.files.workloads.write_bytes(payload.workloads_zip())
    return node.put_plan(plans.stage(name, declaration, [name]), *after)


def staying(node, state="success"):
    node.wait_for("mine", state)
    record = node.record("mine")
    (value,) = [one["value"] for one in record["metrics"] if one["name"] == "mine_samples_per_second"] or [None]
    return record, value


def test_the_record_is_final_while_the_job_stays_and_a_cancel_changes_nothing(node, tmp_path):
    plan(node, tmp_path, timeout_seconds=8)  # it has to pass; the work before it is a line of shell
    process = node.begin("run")
    record, value = staying(node)
    assert (value, record["message"], record["exit_code"]) == (12.5, "1 of 1 steps", 0)
    folder = node.files.work("mine") / "job"
    begun = clock.parse(record["started_at"]).timestamp()
    until(lambda: time.time() > begun + 9.5)  # its limit of time does not hold any more
    assert process.poll() is None and (folder / "pid").exists()
    assert node.ask("cancel", "--wait", "10")["running"] is False
    assert process.wait(30) == 0
    assert node.record("mine") == record and not folder.exists()
    assert re.search(
        r"ended: success.*\n(?s:.*)stays for a shell|stays for a shell(?s:.*)ended: success", node.log("mine")
    )


def test_a_job_that_failed_stays_too_and_leaves_at_its_limit(node, tmp_path):
    steps = [{"name": "work", "run": "echo no space left; exit 3"}]
    plan(node, tmp_path, steps=steps, stay_alive=6)
    process = node.begin("run")
    record, _value = staying(node, "crash")
    assert record["exit_code"] == 3 and "step work (1 of 1)" in record["message"]
    assert record["message"].endswith("last output: no space left")
    assert process.wait(30) == 1
    assert time.time() - clock.parse(record["finished_at"]).timestamp() >= 2  # the runner may be late to see its end
    assert node.record("mine") == record


def test_what_the_work_left_running_may_print_on(node, tmp_path):
    run = "setsid sh -c 'while sleep 0.02; do echo on; done' & printf 'performance: 12.5 examples/sec'"
    plan(node, tmp_path, steps=[{"name": "work", "run": run}])
    process = node.begin("run")
    _record, value = staying(node)
    assert value == 12.5
    assert node.ask("cancel", "--wait", "10")["running"] is False
    assert process.wait(30) == 0


def test_stages_that_follow_do_not_wait(node, tmp_path):
    plan(node, tmp_path, stage("after"))
    assert node.call("run", seconds=30).returncode == 0
    assert node.states() == {"mine": "success", "after": "success"}


def test_a_later_plan_ends_the_stay(node, tmp_path):
    document = plan(node, tmp_path)
    process = node.begin("run")
    staying(node)
    node.put_plan(*document["stages"], attempt=2)
    until(lambda: node.record("mine")["attempt"] == 2 and node.record("mine")["state"] == "success")
    assert process.poll() is None
    assert node.ask("cancel", "--wait", "10")["running"] is False


def test_a_runner_that_is_ended_leaves_the_record_and_no_process(node, tmp_path):
    plan(node, tmp_path, steps=[{"name": "work", "run": "echo $PPID > $GPUVAL_WORK_DIR/../../pid"}])
    process = node.begin("run")
    record, _value = staying(node)
    program = int((node.files.root / "pid").read_text())
    assert alive(program)
    process.terminate()
    process.wait(30)
    assert node.record("mine") == record and not alive(program)


def test_a_pod_prints_the_record_that_the_store_did_not_take_before_it_stays(node, tmp_path):
    plan(node, tmp_path)
    document = {**plan(node, tmp_path), "runtime": "pod"}
    node.put_plan(*document["stages"], runtime="pod")
    with (tmp_path / "output").open("w") as output:
        process = node.begin("pod", "--stage", "mine", "--last", environment={"GPUVAL_TERMINATION_LOG": "/dev/null"})
        for line in process.stdout:
            output.write(line)
            if "END GPUVAL RECORD mine" in line:
                break
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=20)
    assert '"state":"success"' in (tmp_path / "output").read_text()


def test_jobs_do_not_stay_where_nodes_go_on_to_work_together(tmp_path):
    path = jobs.write(tmp_path, stay_alive=60)
    seconds = [
        unpack(stages.workloads([path], stays=stays)["mine"]["environment"][VARIABLE]).stay_alive_seconds
        for stays in (True, False)
    ]
    assert seconds == [60, 0]
