"""What stages need is imported and started: fake packages in a venv, programs in a folder of PATH."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import placement, requirement_trial


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
        asked = {"needs": [{**need, "stages": ["mine"]} for need in needs]}
        asked["environment"] = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        return placement.lacking({"plan": {"python": str(named)}, "requirements": asked}).get("message", "")

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
