"""A job file is read whole, or all its mistakes are named with their lines."""

from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import document, stages

from tests.kit import jobs

GOOD = """\
schema: gpuval.job/1
name: mine
image: training
environment:
  STEPS: 5
steps:
  - name: clone
    run: git clone https://example.org/x
    creates: x
  - name: train
    run: [python3, x/train.py, 3]
    timeout_seconds: 60
results:
  patterns:
    - pattern: 'loss=(?P<value>\\S+)'
      name: loss
timeout_seconds: 600
"""

#: What is mistyped, how, and what is printed of it behind the file.
MISTAKES = [
    ("name: mine", "nmae: mine", "2: unknown key 'nmae'; is it name?"),
    ("name: mine", "nmae: mine", "1: \"name\" is a required property"),
    ("name: mine", "name: My job", "2: name: 'My job' does not have the form"),
    ("name: mine", "name: training", "2: name: training is a stage of gpuval: choose another name"),
    ("image: training", "image: a/b:c", "3: image: 'a/b:c' does not have the form"),
    ("image: training", "nodes: gnag", "3: nodes: "),
    ("  STEPS: 5", "  STEPS: [5]", "5: environment.STEPS: "),
    ("  STEPS: 5", "  GPUVAL_NODE: 5", "5: environment.GPUVAL_NODE: gpuval sets it itself"),
    ("    creates: x", "    create: x", "9: steps[0]: unknown key 'create'; is it creates?"),
    ("  - name: train", "  - name: clone", "10: steps[1].name: two steps are called clone: rename one"),
    ("    run: [python3, x/train.py, 3]\n", "", "10: steps[1]: \"run\" is a required property"),
    ("    run: [python3, x/train.py, 3]", "    run: ''", "11: steps[1].run: "),
    ("timeout_seconds: 60\n", "timeout_seconds: 1 min\n", "12: steps[1].timeout_seconds: "),
    ("(?P<value>", "(?P<valeu>", "15: results.patterns[0].pattern: has no group 'value'"),
    ("(?P<value>", "((?P<value>", "15: results.patterns[0].pattern: is not a regular expression"),
    ("timeout_seconds: 600", "timeout_seconds: -1", "17: timeout_seconds: "),
    ("timeout_seconds: 600", "retry: [crahs]", "17: retry[0]: 'crahs' is none of crash, timeout, failure, slow; is it"),
    ("timeout_seconds: 600", "files: [train.py]", "17: files[0]: there is no file "),
    ("timeout_seconds: 600", "files: [../train.py]", "17: files[0]: '../train.py' does not have the form"),
    ("timeout_seconds: 600", "container: {shm_byte: 1}", "17: container: unknown keys shm_byte; is it shm_bytes?"),
    ("timeout_seconds: 600", "datasets: [Pixels]", "17: datasets[0]: 'Pixels' does not have the form"),
    ("  patterns:", "  output: [megatorn]\n  patterns:", "14: results.output: no reader is called 'megatorn'; is it "),
    ("timeout_seconds: 600", "name: twice", "17: not YAML: the key 'name' stands twice"),
    ("steps:", "steps: [", "7: not YAML: "),
    ("schema: gpuval.job/1", "schema: gpuval.jobs/1", "1: schema: "),
    ("image: training", "most_nodes: 4", "3: most_nodes: is for jobs of several nodes: add nodes: gang"),
    ("  patterns:", "  node: last\n  patterns:", "14: results.node: is for jobs of several nodes: add nodes: gang"),
    ("    creates: x", "    once: true", "9: steps[0].once: is for jobs of several nodes: add nodes: gang"),
    ("image: training", "nodes: gang\nleast_nodes: 4\nmost_nodes: 3", "5: most_nodes: 3 is less than least_nodes, 4"),
    ("image: training", "nodes: gang\norder: rak", "4: order: 'rak' is none of inventory, rack, physical_host; is it"),
    ("timeout_seconds: 600", "inactivity_seconds: 20\nnodes: gang", "17: inactivity_seconds: a node that waits prints"),
    ("timeout_seconds: 600", "timeout_seconds: 0\nnodes: gang", "17: timeout_seconds: nodes that wait for each other"),
]  # fmt: skip


def test_a_step_is_either_the_first_nodes_or_launched_on_all(tmp_path):
    steps = [{"name": "train", "run": "true", "once": True, "launcher": "torchrun"}]
    _job, (problem,) = document.examine(jobs.write(tmp_path, nodes="gang", steps=steps))
    assert problem.endswith("steps[0].once: a step with this launcher runs on all nodes: remove one of the two")


def test_a_job_is_read_with_its_defaults(tmp_path):
    job = jobs.read(jobs.write_text(tmp_path, GOOD))
    clone, train = job.steps
    assert (job.name, job.image, job.environment) == ("mine", "training", {"STEPS": "5"})
    assert clone.command == ("bash", "-e", "-o", "pipefail", "-c", "git clone https://example.org/x")
    assert (clone.creates, clone.timeout_seconds) == ("x", 0)
    assert (train.command, train.timeout_seconds) == (("python3", "x/train.py", "3"), 60)
    assert job.stage == {"timeout_seconds": 600}


@pytest.mark.parametrize(("right", "wrong", "told"), MISTAKES)
def test_a_mistake_is_named_with_file_and_line(tmp_path, right, wrong, told):
    assert right in GOOD
    path = jobs.write_text(tmp_path, GOOD.replace(right, wrong, 1))
    job, problems = document.examine(path)
    assert job is None
    assert any(problem.startswith(f"{path}:{told}") for problem in problems), problems


def test_all_mistakes_are_named_at_once_in_the_order_of_their_lines(tmp_path):
    text = GOOD.replace("image:", "imge:").replace("creates: x", "creates: 5").replace(": 600", ": soon")
    path = jobs.write_text(tmp_path, text)
    _job, problems = document.examine(path)
    assert [problem.removeprefix(f"{path}:").partition(":")[0] for problem in problems] == ["3", "9", "17"]
    with pytest.raises(SettingError, match=r":3: .*; .*:9: .*; .*:17: "):
        stages.workloads([path])


def test_files_beside_it_are_read_and_a_mistyped_one_is_guessed(tmp_path):
    (tmp_path / "train.py").write_text("print('{node}')\n")
    assert jobs.read(jobs.write(tmp_path, files=["train.py"])).files == {"train.py": "print('{node}')\n"}
    _job, (problem,) = document.examine(jobs.write(tmp_path, name="other", files=["trian.py"]))
    assert problem.endswith("; is it train.py?")


def test_what_is_too_large_is_refused(tmp_path):
    large = tmp_path / "large.yml"
    large.write_text("#" * (document.MAX_FILE_BYTES + 1))
    assert "a job has at most" in document.examine(large)[1][0]
    (tmp_path / "data.txt").write_text("x" * (document.MAX_COPIED_BYTES + 1))
    assert "a job copies at most" in document.examine(jobs.write(tmp_path, files=["data.txt"]))[1][0]
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert "remove aliases" in document.examine(jobs.write_text(tmp_path, bomb))[1][0]


@pytest.mark.parametrize("text", ["", "5", "[]", "a", "{}", "null", "1: 2", "schema: 2026-01-01", "steps: {a: b}"])
def test_no_document_ends_in_a_traceback(tmp_path, text):
    job, problems = document.examine(jobs.write_text(tmp_path, text))
    assert job is None
    assert problems


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert document.examine(tmp_path / "none.yml") == (
        None,
        [f"{tmp_path}/none.yml: cannot be read: No such file or directory"],
    )


def test_a_changed_file_is_read_again(tmp_path):
    assert jobs.read(jobs.write(tmp_path)).csv == ""
    assert jobs.read(jobs.write(tmp_path, results={"csv": "perf.csv"})).csv == "perf.csv"


@pytest.mark.parametrize("path", sorted(jobs.SHIPPED.glob("*.yml")), ids=lambda path: path.name)
def test_the_shipped_jobs_are_valid_and_say_where_they_ran(path):
    assert jobs.read(path).name == path.stem
    header = [line for line in Path(path).read_text().splitlines() if line.startswith("#")]
    assert any("tested on" in line.lower() for line in header)


@pytest.mark.parametrize(
    "value", ["yes", "off", "True", "010", "0x10", "3.10", "1_000", "12:30:00", "2026-01-02", "1e3"]
)
def test_variables_and_words_of_a_command_reach_the_job_as_they_are_written(tmp_path, value):
    path = tmp_path / "mine.yml"
    step = f"{{name: work, run: [echo, {value}], environment: {{STEP: {value}}}}}"
    path.write_text(f"schema: gpuval.job/1\nname: mine\nenvironment: {{ALL: {value}}}\nsteps:\n- {step}\n")
    job = jobs.read(path)
    (step,) = job.steps
    assert (job.environment, step.environment, step.command) == ({"ALL": value}, {"STEP": value}, ("echo", value))
