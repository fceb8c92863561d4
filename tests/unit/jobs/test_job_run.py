"""Jobs run by the runner, as a node runs them."""

import shlex

import pytest

from tests.kit import jobs
from tests.kit.runner import alive, until

METRIC = """{"name": "%s", "value": %s, "unit": "s", "scope": "node"}"""
RESULT = f"""printf '{{"state": "%s", "message": "%s", "metrics": [{METRIC}]}}' """
TO_FILE = """ > "$GPUVAL_RESULT_FILE" """


def step(name, run, **more):
    return {"name": name, "run": run, **more}


def values(record):
    return {metric["name"]: metric["value"] for metric in record["metrics"]}


def test_steps_run_in_order_in_one_folder_and_their_figures_count(node, tmp_path):
    (tmp_path / "tool.py").write_text("print('performance: 12.5 examples/sec')\n")
    steps = [step("one", "echo 1 > order"), step("two", "echo 2 >> order; cat order"), step("three", ["tool.py"])]
    record, log = jobs.run(node, jobs.write(tmp_path, files=["tool.py"], steps=steps))
    assert (record["state"], record["message"]) == ("success", "3 of 3 steps")
    assert values(record)["mine_samples_per_second"] == 12.5
    assert log.index("== step one (1 of 3)") < log.index("== step two (2 of 3)") < log.index("1\n2\n")


def test_a_step_that_fails_is_named_with_its_last_output_and_ends_the_job(node, tmp_path):
    steps = [step("one", "true"), step("clone", "echo no such repository; false; echo on"), step("train", "touch on")]
    record, log = jobs.run(node, jobs.write(tmp_path, steps=steps))
    assert record["state"] == "crash"
    assert record["exit_code"] == 1
    assert "step clone (2 of 3)" in record["message"]
    assert "no such repository" in record["message"]
    assert "step train" not in log


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("kill -9 $$", "exit code 137 (SIGKILL)"),
        (["no-such-program"], "exit code 127"),
        ("cat missing | cat", "No such file"),
    ],
)
def test_how_a_step_ended_is_reported(node, tmp_path, run, told):
    record, _log = jobs.run(node, jobs.write(tmp_path, steps=[step("work", run)]))
    assert record["state"] == "crash"
    assert told in record["message"]


def test_a_step_has_a_time_limit_and_leaves_nothing_behind(node, tmp_path):
    # It has to pass; within it a shell that was started writes one line.
    steps = [step("work", "sleep 300 & echo $! > /proc/self/fd/1; wait", timeout_seconds=3)]
    record, log = jobs.run(node, jobs.write(tmp_path, steps=steps))
    assert record["state"] == "crash"
    assert "step work (1 of 1) exceeded its limit of 3 s" in record["message"]
    (pid,) = (int(line) for line in log.splitlines() if line.isdigit())
    assert not alive(pid)


def test_results_of_steps_are_collected(node, tmp_path):
    steps = [
        step("one", RESULT + "success first one_seconds 1" + TO_FILE),
        step("two", RESULT + "success second two_seconds 2" + TO_FILE),
    ]
    record, _log = jobs.run(node, jobs.write(tmp_path, steps=steps))
    assert record["state"] == "success"
    assert values(record).items() >= {"one_seconds": 1.0, "two_seconds": 2.0}.items()


@pytest.mark.parametrize(
    ("run", "state", "told"),
    [
        (RESULT + "failure wrong_sum x_seconds 1" + TO_FILE, "failure", "step work (1 of 2): wrong_sum"),
        (RESULT + "running half x_seconds 1" + TO_FILE, "failure", "its result file never became final"),
        (RESULT + "failed typo x_seconds 1" + TO_FILE, "failure", "its state is failed, not success or failure"),
        ("echo '{\"metrics\": []}'" + TO_FILE, "failure", "its state is None, not success or failure"),
        ("echo '{' " + TO_FILE, "failure", "its result file is not JSON"),
    ],
)
def test_a_step_that_hands_over_no_success_is_none(node, tmp_path, run, state, told):
    record, _log = jobs.run(node, jobs.write(tmp_path, steps=[step("work", run), step("next", "touch on")]))
    assert record["state"] == state
    assert told in record["message"]


def test_figures_that_were_declared_must_come(node, tmp_path):
    results = {"patterns": [{"pattern": r"loss=(?P<value>\S+)", "name": "loss"}]}
    record, _log = jobs.run(node, jobs.write(tmp_path, results=results, steps=[step("work", "echo loss=0.5")]))
    assert (record["state"], record["message"], values(record)["loss"]) == ("success", "1 of 1 steps", 0.5)


def test_the_log_of_a_known_program_gives_figures(node, tmp_path):
    line = "iteration 1/ 2 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00 |"
    steps = [step("work", f"echo '{line}'")]
    record, _log = jobs.run(node, jobs.write(tmp_path, results={"output": ["megatron"]}, steps=steps))
    assert (record["state"], values(record)["mine_step_seconds"]) == ("success", 0.25)


def test_without_declared_figures_the_job_is_no_success(node, tmp_path):
    results = {"patterns": [{"pattern": r"loss=(?P<value>\S+)", "name": "loss"}]}
    record, _log = jobs.run(node, jobs.write(tmp_path, results=results, steps=[step("work", "echo done")]))
    assert record["state"] == "crash"
    assert "its output has no declared figure" in record["message"]


@pytest.mark.parametrize("value", ["", "$THROUGHPUT "])
@pytest.mark.parametrize("declared", [True, False])
def test_a_line_of_performance_without_a_figure_is_named(node, tmp_path, value, declared):
    results = {"results": {"patterns": [{"pattern": r"loss=(?P<value>\S+)", "name": "loss"}]}} if declared else {}
    work = step("work", f"printf '%s\\n' 'performance: {value}samples_per_second'")
    record, _log = jobs.run(node, jobs.write(tmp_path, steps=[work], **results))
    assert record["state"] == ("crash" if declared else "success")
    assert f"its output has no figure in `performance: {value}"[:48] in record["message"]


def test_a_template_in_place_of_a_figure_is_a_failure_beside_other_figures(node, tmp_path):
    lines = "performance: {{ rate }} tokens/s", "gpuval figure mine_seconds: 2 s"
    work = step("work", f"printf '%s\\n' {shlex.join(lines)}")
    record, _log = jobs.run(node, jobs.write(tmp_path, steps=[work]))
    assert record["state"] == "failure"
    assert "a template in place of a figure: `performance: {{ rate`" in record["message"]


def test_a_csv_file_gives_figures(node, tmp_path):
    rows = "model, performance, metric\\nbert,100,tokens/s\\ngpt,2,s\\ngpt,5,GB/s\\nbroken,,\\n"
    steps = [step("work", f"printf '{rows}' > perf.csv; printf 'no end of line'")]
    record, _log = jobs.run(node, jobs.write(tmp_path, results={"csv": "perf.csv"}, steps=steps))
    assert record["state"] == "success"
    assert record["message"] == "1 of 1 steps; perf.csv: 1 of 4 rows lack model, metric or a number as performance"
    found = values(record)
    assert found["bert_tokens_per_second"] == 100, "the first figure has a line of its own"
    assert 5e9 in found.values()


@pytest.mark.parametrize(("count", "told"), [(200, ""), (201, "; perf.csv has 201 rows, of which the first 200 count")])
def test_rows_that_do_not_count_are_named(node, tmp_path, count, told):
    rows = f"echo model,performance,metric; for i in $(seq {count}); do echo m$i,$i,tokens/s; done"
    steps = [step("work", f"({rows}) > perf.csv")]
    record, _log = jobs.run(node, jobs.write(tmp_path, results={"csv": "perf.csv"}, steps=steps))
    assert (record["state"], record["message"]) == ("success", f"1 of 1 steps{told}")
    assert values(record)["m200_tokens_per_second"] == 200
    assert "m201_tokens_per_second" not in values(record)


def test_figures_beyond_the_limit_are_named(node, tmp_path):
    results = {"patterns": [{"pattern": r"(?P<name>m\d+)=(?P<value>\d+)"}]}
    steps = [step("work", "for i in $(seq 257); do echo m$i=1; done")]
    record, _log = jobs.run(node, jobs.write(tmp_path, results=results, steps=steps))
    assert record["state"] == "success"
    assert record["message"].endswith("its output has more than 256 metrics: those with further names are left out")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model,perf\\na,1\\n", "no column performance, metric"),
        ("model,performance,metric\\na,,s\\n", "no row has"),
        ("model,performance,metric\\na,N/A,s\\nb,nan,s\\n", "no row has a number as performance"),
    ],
)
def test_a_csv_file_without_figures_is_a_failure(node, tmp_path, text, told):
    steps = [step("work", f"printf '{text}' > perf.csv")]
    record, _log = jobs.run(node, jobs.write(tmp_path, results={"csv": "perf.csv"}, steps=steps))
    assert record["state"] == "failure"
    assert told in record["message"]


def test_a_figure_that_is_not_a_number_is_none(node, tmp_path):
    results = {"patterns": [{"pattern": r"loss=(?P<value>\S+)", "name": "loss"}]}
    record, _log = jobs.run(node, jobs.write(tmp_path, results=results, steps=[step("work", "echo loss=nan")]))
    assert (record["state"], record["message"]) == ("failure", "not a number: loss; last output: loss=nan")


def test_steps_are_skipped_and_forced(node, tmp_path):
    made = tmp_path / "made"
    made.touch()
    steps = [step("clone", "false"), step("convert", "false", creates=str(made)), step("train", "true")]
    record, log = jobs.run(node, jobs.write(tmp_path, steps=steps), skip=["clone"])
    assert record["state"] == "success"
    assert record["message"] == "1 of 3 steps; skipped: clone, convert"
    assert f"step convert skipped: {made} exists" in log


def test_a_forced_step_runs_although_its_output_exists(node, tmp_path):
    made = tmp_path / "made"
    made.touch()
    steps = [step("convert", 'echo "force is $GPUVAL_JOB_FORCE"', creates=str(made))]
    _record, log = jobs.run(node, jobs.write(tmp_path, steps=steps), force=["convert"])
    assert "force is 1" in log


def test_the_environment_is_that_of_a_job_on_one_node(node, tmp_path):
    path = jobs.write(tmp_path, environment={"MASTER_PORT": 7000, "OWN": "a b"}, steps=[
        step("work", "env | sort", environment={"OF_STEP": True}),
    ])  # fmt: skip
    _record, log = jobs.run(node, path)
    told = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    assert told.items() >= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7000", "NNODES": "1", "NODE_RANK": "0", "GPUS_PER_NODE": "1",
        "WORLD_SIZE": "1", "JOB_COMPLETION_INDEX": "0", "JOB_IDENTIFIER": f"{node.run_id}-mine", "OWN": "a b",
        "OF_STEP": "true", "GPUVAL_STEP": "work", "GPUVAL_NODE": "n1",
    }.items()  # fmt: skip
    assert "GPUVAL_JOB" not in told


def test_a_job_that_is_ended_ends_its_step(node, tmp_path):
    pid_file = tmp_path / "pid"
    steps = [step("work", f"trap '' TERM; sleep 300 & echo $! > {pid_file}; wait; wait")]
    jobs.put(node, jobs.write(tmp_path, steps=steps, grace_seconds=1))
    process = node.begin("run")
    until(lambda: pid_file.exists() and pid_file.read_text())
    assert node.ask("cancel", "--wait", "30")["running"] is False
    assert process.wait(30) == 1
    assert node.record("mine")["state"] == "cancelled"
    assert not alive(int(pid_file.read_text()))


def test_the_shipped_shell_job_runs(node):
    record, _log = jobs.run(node, jobs.SHIPPED / "shell.yml")
    assert record["state"] == "success", record["message"]
    assert values(record)["shell_bytes_per_second"] > 1e6


@pytest.mark.slow
def test_the_shipped_ddp_job_trains(node):
    record, log = jobs.run(node, jobs.SHIPPED / "torchrun_ddp.yml", environment={"OMP_NUM_THREADS": "1"}, seconds=400)
    assert record["state"] == "success", log
    assert values(record)["torchrun_ddp_samples_per_second"] > 0
    assert 0 < values(record)["torchrun_ddp_loss"] < 10
