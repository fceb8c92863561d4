"""What stages need is imported and started: fake packages in a venv, programs in a folder of PATH."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_launch, requirement_trial
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

from tests.kit import needs


@pytest.fixture
def python(tmp_path):
    """A Python without packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def package(python):
    """Write a package into the Python, with a version of its own in its dist-info."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")

    def write(name, text="", version="1.0"):
        (site / f"{name}.py").write_text(text)
        (site / f"{name}-{version}.dist-info").mkdir()
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    return write


@pytest.fixture
def command(tmp_path):
    def write(name, text, mode=0o755):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
        (folder / name).chmod(mode)

    return write


@pytest.fixture
def lacking(python, tmp_path):
    """The launch's message about one stage."""

    def ask(*needs, named=python):
        trial = {"in_python": True, "needs": [{**need, "stages": ["mine"]} for need in needs]}
        trial["environment"] = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        return node_launch.lacking({"plan": {"python": str(named)}, "requirements": [trial]}).get("message", "")

    return ask


CHECKS_VERSION = "raise ImportError('huggingface-hub>=1.0 is required, but found huggingface-hub==0.3.\\nTry: pip')"


@pytest.mark.parametrize(
    ("text", "written", "words"),
    [
        ("json", {}, ""),
        ("torch", {}, "mine needs torch (not installed: {python} -m pip install torch)"),
        ("torch", {"torch": ("print('hello')",)}, ""),
        ("vllm", {"vllm": ("import opentelemetry",)}, "ModuleNotFoundError: No module named 'opentelemetry'"),
        ("transformers", {"transformers": (CHECKS_VERSION,)}, "huggingface-hub>=1.0 is required, but found hugg"),
        ("torch", {"torch": ("raise OSError('libcudart.so.12: cannot open shared object')",)}, "OSError: libcudart"),
        ("torch", {"torch": ("raise ImportError('version `GLIBC_2.38\\' not found')",)}, "version `GLIBC_2.38' not"),
        ("torch", {"torch": ("import numpy", "2.0"), "numpy": ("_x = undefined",)}, "NameError: name 'undefined'"),
        ("torch", {"torch": ("raise RuntimeError('CUDA initialization')",)}, ""),  # maybe the GPU's
        ("torch", {"torch": ("import os; os.abort()",)}, ""),  # the stage shows it
        ("transformers>=5", {"transformers": ("", "4.57.1")}, "transformers>=5 (transformers 4.57.1 is installed"),
        ("transformers>=5", {"transformers": ("", "5.0.0.dev0")}, ""),
        ("transformers>=5.10", {"transformers": ("", "5.9")}, "transformers 5.9 is installed"),
        ("vllm | transformers>=5", {}, "mine needs vllm or transformers>=5 (not installed"),
        ("vllm | transformers>=5", {"transformers": ("", "4.1")}, "transformers 4.1 is installed"),
        ("vllm | transformers", {"vllm": ("import x1",), "transformers": ()}, "vllm cannot be imported"),
        ("transformers + fastapi", {"transformers": ()}, "fastapi cannot be imported: ModuleNotFoundError"),
        ("transformers + fastapi", {"transformers": (), "fastapi": ()}, ""),
    ],
)
def test_modules_are_imported(package, lacking, python, text, written, words):
    for name, of_package in written.items():
        package(name, *of_package)
    message = lacking({"import": text})
    assert (words.format(python=python) in message) if words else message == ""


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0o755, "needs tool (not found, or not executable: install the-tool)"),
        (b"#!/bin/sh\necho 1.0\n", 0o755, ""),
        (b"#!/bin/sh\necho usage; exit 1\n", 0o755, ""),  # it started
        (b"#!/bin/sh\necho 1.0\n", 0o644, "not executable"),
        (b"\x7fELF of another machine", 0o755, "cannot be started: Exec format error"),
        (b"#!/no/such/interpreter\n", 0o755, "cannot be started: No such file or directory"),
        (b"#!/bin/sh\nexec no-such-program\n", 0o755, "cannot be started: exit code 127"),
        (b"#!/bin/sh\necho \"tool: libc.so.6: version \\`GLIBC_2.38' not found (required by it)\"; exit 1\n", 0o755,
         "cannot be started: tool: libc.so.6: version `GLIBC_2.38' not found"),
        (b"#!/bin/sh\necho 'tool: error while loading shared libraries: libibverbs.so.1: x'; exit 127\n", 0o755,
         "error while loading shared libraries: libibverbs.so.1"),
    ],
)  # fmt: skip
def test_commands_are_started(command, lacking, text, mode, words):
    if text is not None:
        command("tool", text, mode)
    message = lacking({"start": "tool --version", "install": "the-tool"})
    assert (words in message) if words else message == ""


def test_a_command_beside_the_python_of_workloads_is_found(python, lacking):
    (python.parent / "beside").write_text("#!/bin/sh\n")
    (python.parent / "beside").chmod(0o755)
    assert lacking({"import": "sys"}, {"start": "beside version"}) == ""


def test_what_is_for_other_nodes_is_not_tried(lacking, tmp_path):
    need = {"start": "no-such-tool", "where": f"{tmp_path}/infiniband/*"}
    assert lacking(need) == ""
    (tmp_path / "infiniband").mkdir()
    (tmp_path / "infiniband" / "mlx5_0").mkdir()
    assert "needs no-such-tool" in lacking(need)


def test_all_that_is_lacking_is_named_at_once(lacking):
    message = lacking({"import": "torch"}, {"start": "fio --version"}, {"import": "json"}, {"start": "no-tool"})
    assert message.count("mine needs") == 2 + (shutil.which("fio") is None)


@pytest.mark.parametrize("broken", ["missing", "not executable", "no python"])
def test_a_python_that_cannot_be_started_is_named(lacking, tmp_path, broken):
    named = tmp_path / "python3"
    if broken != "missing":
        named.write_text("#!/bin/sh\nexit 3\n")
        named.chmod(0o644 if broken == "not executable" else 0o755)
    message = lacking({"import": "sys"}, named=named)
    if broken == "no python":
        assert message == ""  # the stages that need it say what is wrong with it
    else:
        assert f"mine needs {named} of gpuval_workload_python, which cannot be started" in message


def test_packages_of_the_logins_path_are_not_those_of_the_stage(lacking, tmp_path, monkeypatch):
    (tmp_path / "of_the_login.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "mine needs of_the_login (not installed" in lacking({"import": "of_the_login"})


def test_what_modules_print_is_no_answer(python, package):
    package("loud", "print('{\"0\": \"a lie\"}'); import os; os.system('echo 1')")
    command = [python, "-c", Path(requirement_trial.__file__).read_text(), json.dumps([{"import": "loud"}])]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == [""]


@pytest.fixture
def refused(python):
    """The outcome of a launch with stages by name: the environment of each, and what it needs."""

    def ask(**stages):
        workloads = {
            name: {"command": ["{python}"], "environment": environment, "requires": needs}
            for name, (environment, *needs) in stages.items()
        }
        trials = launch_inputs.requirements({"stages": list(stages)}, workloads, "host")
        return node_launch.lacking({"plan": {"python": str(python)}, "requirements": trials})

    return ask


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PATH", "LD_LIBRARY_PATH"])
def test_the_environment_of_a_stage_refuses_no_other_stage(refused, tmp_path, variable):
    needs = {"PYTHONPATH": {"import": "shadowed"}, "PATH": {"start": "bash -c true"}}
    need = needs.get(variable, needs["PATH"])
    for folder in ("good", "bad"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shadowed.py").write_text("" if folder == "good" else "import not_there")
    (tmp_path / "bad" / "libtinfo.so.6").write_bytes(b"")  # of bash
    good = {"PYTHONPATH": str(tmp_path / "good")}
    bad = {**good, variable: str(tmp_path / "bad")}
    assert refused(first=(good, need), second=(good, need)) == {}
    outcome = refused(first=(good, need), broken=(bad, need), third=(good, need), also=(bad, need))
    assert outcome["lacking_stages"] == ["broken", "also"]
    assert re.match(rf"[^:]*: broken, also need {node_launch.readable(need)} \(.*install \S+\)$", outcome["message"])
    launch = launch_errors.described({"state": "refused", **outcome})
    assert (launch["class"], 'ARGS="--skip-tags broken,also"' in launch["remedy"]) == ("no_package", True)


def test_a_lack_of_several_environments_is_named_once(refused):
    outcome = refused(first=({"A": "1"}, {"import": "not_there"}), second=({}, {"import": "not_there"}))
    assert outcome["message"].count("not_there (") == 1
    assert "first, second need not_there" in outcome["message"]


def files_below(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


WRITES = """
import os
for name in ("~/.new/a", "~/.config/new/a", "~/.config/tool/new", "~/.local/state/new", "~/.cache/tool/new",
             "~/.triton/new", os.environ["TMPDIR"] + "/new", "in_the_directory"):
    os.makedirs(os.path.expanduser(name))
open(os.path.expanduser("~/.config/tool/settings.json"), "w").write("default")
open(os.path.expanduser("~/.toolrc"), "a").write("more")
"""


def test_trials_leave_nothing_behind(refused, tmp_path, monkeypatch):
    home, temporary, modules = (tmp_path / name for name in ("home", "temporary", "modules"))
    for folder in (temporary, modules, *(home / name for name in (".config/tool", ".cache/tool", ".triton", "Work"))):
        folder.mkdir(parents=True)
    (modules / "writer.py").write_text(WRITES)
    for name in (".config/tool/settings.json", ".toolrc"):
        (home / name).write_text("of the user")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(home)
    before = files_below(tmp_path)
    command = {"start": f"{sys.executable} {modules}/writer.py"}
    assert refused(mine=({"PYTHONPATH": str(modules)}, {"import": "writer"}), other=({}, command)) == {}
    assert files_below(tmp_path) == before


def test_what_the_home_of_the_login_has_counts(refused, python, tmp_path, monkeypatch):
    """Packages of the user, files that a program reads, and its links."""
    home = tmp_path / "home"
    (home / ".config" / "tool").mkdir(parents=True)
    (home / ".config" / "tool" / "here").write_text("yes")
    (home / "bin").mkdir()
    reads = 'test "$(cat ~/.config/tool/here)" = yes && test -x ~/bin/tool || exit 127'
    (home / "bin" / "tool").write_text(f"#!/bin/sh\n{reads}\n")
    (home / "bin" / "tool").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    assert refused(mine=({"PATH": f"{home}/bin:/usr/bin:/bin"}, {"start": "tool"})) == {}
    command = [sys.executable, "-m", "site", "--user-site"]
    site = subprocess.run(command, env={"HOME": str(home)}, stdout=subprocess.PIPE, text=True, check=False)
    (Path(site.stdout.strip())).mkdir(parents=True)
    (Path(site.stdout.strip()) / "of_the_user.py").write_text("")
    trial = {"in_python": False, "environment": {}, "needs": [{"import": "of_the_user", "stages": ["mine"]}]}
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # a venv has no packages of the user
    assert node_launch.lacking({"plan": {"python": ""}, "requirements": [trial]}) == {}


def test_a_folder_in_the_logins_directory_is_no_package(refused, tmp_path, monkeypatch):
    (tmp_path / "cloned_package").mkdir()
    monkeypatch.chdir(tmp_path)
    assert refused(mine=({}, {"import": "cloned_package"}))["lacking_stages"] == ["mine"]


SERVER = "transformers + torch + fastapi + uvicorn + pydantic + openai + accelerate + transformers.cli.serving"


@pytest.mark.parametrize(
    "need",
    [
        *(pytest.param({"import": text}, marks=pytest.mark.slow) for text in ("torch + deepspeed", SERVER)),
        *({"start": text} for text in ("rclone version", "fio --version", "ib_write_bw --version")),
    ],
    ids=node_launch.readable,
)
def test_trials_of_real_packages_leave_nothing_behind(tmp_path, monkeypatch, need):
    of_nodes = COLLECTION.parents[3] / ".venv-node" / "bin" / "python"
    python = of_nodes if "import" in need else Path(sys.executable)
    name, path = node_launch.readable(need), f"{python.parent}:{os.environ['PATH']}"
    if not python.exists() or ("start" in need and not shutil.which(name, path=path)):
        needs.lacking(f"{name} is not installed here: make setup, or apt-get install {name}")
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    trial = {"in_python": True, "environment": {}, "needs": [{**need, "stages": ["mine"]}]}
    node_launch.lacking({"plan": {"python": str(python)}, "requirements": [trial]})
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "home", tmp_path / "temporary"]
