"""The program that a launch sends to a node, run by a real shell and a real Python."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.node_launch import ANSWER
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import node_program

from tests.kit.runner import plan, stage, until_written

PLAN = plan(stage("hello", "echo hello"), run_id="run-1", node="node-1")


def parameters(base, **changes):
    return {
        "directory": str(base),
        "plan": PLAN,
        "store": {"schema": "gpuval.store/1", "put": {}},
        "ca": "",
        "rclone_config": "",
        "force": True,
        **changes,
    }


def sent(command, data, **options):
    done = subprocess.run(
        ["/bin/sh", "-c", command], input=data, capture_output=True, timeout=60, check=False, **options
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@functools.cache  # to compile the runner takes 0.3 s
def archives():
    return payload.runner_pyz(), payload.workloads_zip()


def stream(base, **changes):
    return node_program.data(parameters(base, **changes), *archives())


@pytest.fixture
def base(tmp_path):
    base = tmp_path / "base"
    yield base
    folder = base / "run-1" / "node-1"
    if (folder / "runner.pyz").exists():
        subprocess.run(
            [sys.executable, folder / "runner.pyz", "cancel", "--dir", folder, "--wait", "10"], timeout=60, check=False
        )


@pytest.mark.parametrize("interpreter", [sys.executable, ""])
def test_it_places_the_files_and_starts_the_runner(base, interpreter):
    command = node_program.command(interpreter, ["python-not-there", sys.executable])
    told = node_program.answer(*sent(command, stream(base)))
    assert told["launch"]["state"] == "started", told
    assert told["changed"] is True
    assert told["python"] == sys.executable
    folder = base / "run-1" / "node-1"
    assert told["directory"] == str(folder)
    assert tuple((folder / name).read_bytes() for name in ("runner.pyz", "workloads.zip")) == archives()
    assert json.loads((folder / "plan.json").read_text()) == PLAN
    again = node_program.answer(*sent(command, stream(base)))
    assert again["launch"]["state"] in {"started", "finished"}
    assert again["changed"] is False


def test_a_launch_again_brings_no_secrets_of_stages_that_have_ended(base):
    folder, command = base / "run-1/node-1", node_program.command(sys.executable, [])
    data = stream(base, secrets={"hello": {"HF_TOKEN": "hf_abcdefgh"}, "later": {"HF_TOKEN": "hf_abcdefgh"}})
    sent(command, data)
    subprocess.run([sys.executable, folder / "runner.pyz", "cancel", "--dir", folder, "--wait", "30"], check=False)
    assert json.loads((folder / "records/hello.json").read_text())["finished_at"]
    told = node_program.answer(*sent(command, data))
    assert told["launch"]["state"] == "finished", told
    assert [path.name for path in (folder / "secrets").iterdir()] == ["later.json"]


@pytest.mark.parametrize("attempt", [None, "1", [1]])
def test_a_record_that_a_stage_spoiled_does_not_end_the_launch(base, attempt):
    folder, command = base / "run-1/node-1", node_program.command(sys.executable, [])
    records = folder / "records"
    records.mkdir(mode=0o700, parents=True)
    for path in (base, folder.parent, folder):
        path.chmod(0o700)
    (records / "later.json").write_text(json.dumps({"finished_at": "2026-01-01T00:00:00Z", "attempt": attempt}))
    answer = node_program.answer(*sent(command, stream(base, secrets={"later": {"HF_TOKEN": "hf_abcdefgh"}})))
    assert answer["launch"]["state"] == "started", answer
    assert (folder / "secrets/later.json").exists()


def test_the_runner_gets_none_of_the_private_variables_of_the_login(base, tmp_path):
    """Where node and controller are one machine, the login has the controller's secrets."""
    go = tmp_path / "go"
    working = plan(stage("hello", until_written(go)), run_id="run-1", node="node-1")
    secrets = {"HF_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret", "KEPT": "yes"}
    sends = stream(base, plan=working)
    told = node_program.answer(*sent(node_program.command(sys.executable, []), sends, env={**os.environ, **secrets}))
    assert told["launch"]["state"] == "started", told
    variables = Path(f"/proc/{told['launch']['pid']}/environ").read_bytes()
    go.write_text("on")
    assert b"KEPT=yes" in variables
    assert b"s3cret" not in variables
    assert (base / "run-1" / "node-1" / "runner.log").stat().st_mode & 0o077 == 0


def test_a_launch_beside_another_run_names_whose_it_is_and_since_when(base, tmp_path):
    command, go = node_program.command(sys.executable, []), tmp_path / "go"
    working = plan(stage("hello", until_written(go)), run_id="run-1", node="node-1")
    assert node_program.answer(*sent(command, stream(base, plan=working, controller="ann@laptop")))["changed"]
    told = node_program.answer(*sent(command, stream(base, plan={**PLAN, "run_id": "run-2"}, force=False)))
    go.write_text("on")
    assert re.fullmatch(
        r"run run-1 is at work on this node since 20\S+Z, started by ann@laptop", told["launch"]["message"]
    )


def test_a_plan_that_the_runner_refuses_is_the_nodes_failure(base):
    """The launch itself starts the runner, in its own process."""
    wrong = {**PLAN, "runtime": "elsewhere"}
    told = node_program.answer(*sent(node_program.command(sys.executable, []), stream(base, plan=wrong)))
    assert told["failed"]
    assert "the runner did not start: plan.runtime: 'elsewhere' is not one of" in told["msg"]


def test_a_node_without_a_package_of_its_multi_node_stages_is_refused_before_it_works(base, tmp_path):
    command = node_program.command(sys.executable, [])
    here = {**PLAN, "python": sys.executable}
    needs = [{"import": "json", "stages": ["one"]}, {"import": "not_there", "stages": ["one", "two"]}]
    asked = {"in_python": True, "needs": needs, "environment": {}}
    told = node_program.answer(*sent(command, stream(base, plan=here, requirements=[asked])))
    assert told["launch"]["state"] == "refused"
    install = f"{sys.executable} -m pip install not_there"
    assert f"lacks: one, two need not_there (not installed: {install})" in told["launch"]["message"]
    assert evidence.accept_answer("launch_answer", told)["launch"]["lacking_stages"] == ["one", "two"]
    assert not list(base.glob("*/*/plan.json"))
    (tmp_path / "not_there.py").write_text("")
    in_environment = {**asked, "environment": {"PYTHONPATH": str(tmp_path)}}
    told = node_program.answer(*sent(command, stream(base, plan=here, requirements=[in_environment])))
    assert told["launch"]["state"] in {"started", "finished"}, told


def test_a_mistyped_python_of_workloads_is_no_fault_of_the_node(base):
    command = node_program.command(sys.executable, [])
    asked = {"in_python": True, "needs": [{"import": "sys", "stages": ["training"]}], "environment": {}}
    plan_of = {**PLAN, "python": "/no/python"}
    told = node_program.answer(*sent(command, stream(base, plan=plan_of, requirements=[asked])))
    assert told["launch"]["state"] == "refused"
    assert "training needs /no/python of gpuval_workload_python, which cannot" in told["launch"]["message"]
    assert launch_errors.described(told["launch"])["class"] == "no_package"


def test_a_node_without_space_for_what_its_plan_loads_is_refused_before_it_works(base, tmp_path):
    command, free = node_program.command(sys.executable, []), shutil.disk_usage(tmp_path).free
    loads = {**PLAN, "models_dir": str(tmp_path / "not/made/yet")}
    told = node_program.answer(*sent(command, stream(base, plan=loads, folders={"large": free, "small": 1})))
    assert told["launch"]["state"] == "refused"
    assert f"loads {free / 1e9:.2f} GB into {tmp_path}/not/made/yet" in told["launch"]["message"]
    assert not list(base.glob("*/*/plan.json"))
    (tmp_path / "not/made/yet/large/deep").mkdir(parents=True)
    with (tmp_path / "not/made/yet/large/deep/weights").open("wb") as file:
        file.truncate(free)  # it was loaded before
    told = node_program.answer(*sent(command, stream(base, plan=loads, folders={"large": free, "small": 1})))
    assert told["launch"]["state"] in {"started", "finished"}, told


@pytest.mark.parametrize(
    ("runtime", "engines", "refused"),
    [
        ("docker", {}, "docker is not installed"),
        ("auto", {}, "docker is not installed; podman is not installed"),
        ("docker", {"podman": "exit 0"}, "docker is not installed"),
        (
            "docker",
            {"docker": "echo Cannot connect to the daemon >&2; exit 1"},
            "ended with status 1: Cannot",
        ),
        ("auto", {"podman": "exit 0"}, ""),
        ("docker", {"docker": "exit 0"}, ""),
        ("host", {}, ""),
    ],
)
def test_a_node_without_an_engine_for_its_images_is_refused_before_it_works(base, tmp_path, runtime, engines, refused):
    for name, text in engines.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    contained = {**plan(stage("hello", "echo hello", image="x:1"), run_id="run-1", node="node-1"), "runtime": runtime}
    command = node_program.command(sys.executable, [])
    environment = {**os.environ, "PATH": f"{tmp_path}/bin"}
    told = node_program.answer(*sent(command, stream(base, plan=contained), env=environment))
    assert (told["launch"]["state"] == "refused") == bool(refused), told
    assert refused in told["launch"]["message"]
    if refused:
        assert launch_errors.described(told["launch"])["class"] == "no_engine"
        assert not list(base.glob("*/*/plan.json"))


def test_the_command_is_one_line_and_holds_no_parameter(base):
    command = node_program.command("", ["python3"])
    assert "\n" not in command
    assert "\\" not in command  # fish takes one before a quote for an escape, tcsh does not
    program = command.split(" -c ")[1].split(";")[0]
    assert program.count("'") == 2
    assert "run-1" not in command


def test_modules_of_the_folder_it_begins_in_are_not_imported(base, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    told = node_program.answer(*sent(node_program.command(sys.executable, []), stream(base), cwd=tmp_path))
    assert told["launch"]["state"] == "started", told


def test_what_a_login_says_around_the_answer_does_no_harm(base):
    code, output, errors = sent(node_program.command(sys.executable, []), stream(base))
    told = node_program.answer(code, f"Welcome!\n{output}have a nice day\n", errors)
    assert told["launch"]["state"] == "started"
    told = node_program.answer(code, f"\033]0;host\007{output.strip()}\033[0m\n".replace("\033[0m", ""), errors)
    assert told["launch"]["state"] == "started"


def test_a_python_without_memory_files_takes_a_temporary_one(base, tmp_path, monkeypatch):
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import os\ndel os.memfd_create\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "without"), "TMPDIR": str(tmp_path)}
    told = node_program.answer(*sent(node_program.command(sys.executable, []), stream(base), env=environment))
    assert told["launch"]["state"] == "started", told
    assert list(tmp_path.glob("gpuval-runner-*")) == []


def test_a_python_that_is_too_old_says_so(base, monkeypatch):
    monkeypatch.setattr(node_program, "_BEGIN", node_program._BEGIN.replace("(3, 9)", "(9, 9)"))
    older = node_program.command(sys.executable, [])
    told = node_program.answer(*sent(older, stream(base)))
    assert told["failed"]
    assert "too old" in told["msg"]
    assert not base.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    told = node_program.answer(*sent(node_program.command(sys.executable, []), stream(tmp_path / "file" / "base")))
    assert told["failed"]
    assert "cannot be made" in told["msg"]


def test_no_interpreter_at_all():
    code, output, errors = sent(node_program.command("", ["python-not-there"]), b"")
    assert "No python interpreters found" in node_program.answer(code, output, errors)["msg"]


def test_a_shim_without_its_python_is_passed_over(base, tmp_path):
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho pyenv: python3.13: command not found >&2\nexit 127\n")
    shim.chmod(0o755)
    told = node_program.answer(*sent(node_program.command("", [str(shim), sys.executable]), stream(base)))
    assert told["launch"]["state"] == "started"
    assert told["python"] == sys.executable


def test_the_configured_interpreter_is_not_there():
    code, output, errors = sent(node_program.command("/opt/none/bin/py", []), b"")
    told = node_program.answer(code, output, errors, "/opt/none/bin/py")
    assert "module interpreter '/opt/none/bin/py' was not found" in told["msg"]


@pytest.mark.parametrize("output", ["", "Killed", f"{ANSWER}[1]", f"{ANSWER}{{"])
def test_no_answer_is_a_failure_with_its_text(output):
    told = node_program.answer(137, output, "out of memory")
    assert told["failed"]
    assert "exit code 137" in told["msg"]
    assert "out of memory" in told["msg"]
