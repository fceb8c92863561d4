import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload

from tests.kit import runner

OLDEST = Path("/root/.pyenv/versions/3.9.18/bin/python3.9")


def oldest_python() -> str | None:
    return str(OLDEST) if OLDEST.exists() else shutil.which("python3.9")


def names(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


@pytest.mark.parametrize("make", [payload.runner_pyz, payload.workloads_zip])
def test_the_same_content_gives_the_same_bytes(make, monkeypatch):
    first = make()
    assert make() == first
    assert names(first) == sorted(names(first))
    assert not [name for name in names(first) if "__pycache__" in name]
    dates = {entry.date_time for entry in zipfile.ZipFile(io.BytesIO(first)).infolist()}
    assert dates == {(1980, 1, 1, 0, 0, 0)}


def test_the_runner_holds_what_it_shares_with_modules_and_starts_as_a_program():
    data = payload.runner_pyz()
    assert data.startswith(b"#!/usr/bin/env python3\n")
    assert {
        "__main__.py",
        "gpuval_runner/cli.py",
        "gpuval_node/node_launch.py",
        "gpuval_node/hardware/collect.py",
    } <= set(names(data))


def test_the_runner_brings_the_bytecode_of_this_python_beside_every_source():
    held = set(names(payload.runner_pyz()))
    sources = {name for name in held if name.endswith(".py")} - {"__main__.py"}
    assert {name for name in held if name.endswith(".pyc")} == {f"{name}c" for name in sources}
    assert not [name for name in names(payload.workloads_zip()) if name.endswith(".pyc")]
    assert set(names(payload.runner_pyz(bytecode=False))) == {name for name in held if not name.endswith(".pyc")}


def test_the_bytecode_is_the_same_in_every_process():
    program = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload\n"
        "print(hashlib.sha256(payload.runner_pyz()).hexdigest())"
    )
    root = str(payload.COLLECTION.parents[2])
    told = {
        subprocess.run(
            [sys.executable, "-c", program, root],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {f"{hashlib.sha256(payload.runner_pyz()).hexdigest()}\n"}


def test_python_takes_the_bytecode_of_its_own_version_and_else_the_source(tmp_path):
    archive = tmp_path / "runner.pyz"
    archive.write_bytes(payload.runner_pyz())
    program = (
        "import sys, zipimport; found = zipimport.zipimporter(sys.argv[1] + '/gpuval_runner')\n"
        "code = found.get_code('cli'); print(code.co_filename)"
    )

    def taken(python: str) -> str:
        words = [python, "-c", program, str(archive)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    assert taken(sys.executable) == "gpuval_runner/cli.py"  # what is compiled from the source names the archive
    other = oldest_python()
    if other is None:
        pytest.skip("no Python 3.9 on this machine")
    assert taken(other) == f"{archive}/gpuval_runner/cli.py"


def test_the_workloads_come_with_the_shared_code_that_they_import():
    assert {name.split("/")[0] for name in names(payload.workloads_zip())} == {"gpuval_node", "gpuval_workloads"}
    imported = re.compile(r"^from gpuval_node(?:\.([\w.]+))? import (\w+)", re.MULTILINE)
    sources = [path.read_text() for path in payload.WORKLOADS.rglob("*.py")]
    pairs = {pair for source in sources for pair in imported.findall(source)}
    shared = {name.removesuffix(".py").replace("/", ".") for name in payload.OF_WORKLOADS}
    assert pairs
    # A module of a package, or a name of a module.
    assert not [(module, name) for module, name in pairs if not {module, f"{module}.{name}".lstrip(".")} & shared]


def test_the_shared_code_of_the_workloads_comes_with_all_that_it_imports(tmp_path):
    (tmp_path / "workloads.zip").write_bytes(payload.workloads_zip())
    modules = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in payload.OF_WORKLOADS]
    imports = "".join(f"import gpuval_node.{module}\n" for module in modules)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "workloads.zip")}
    done = subprocess.run([sys.executable, "-c", imports], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tests_and_caches_do_not_travel(tmp_path, monkeypatch):
    for name in ("__init__.py", "a.py", "data.json", "tests/test_a.py", "__pycache__/a.pyc", "sub/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(payload, "WORKLOADS", tmp_path)
    packed = [name for name in names(payload.workloads_zip()) if not name.startswith("gpuval_node/")]
    assert packed == [f"gpuval_workloads/{n}" for n in ("__init__.py", "a.py", "data.json", "sub/b.py")]


def test_an_incomplete_collection_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(payload, "WORKLOADS", tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="install it again"):
        payload.workloads_zip()


@pytest.mark.parametrize("python", [sys.executable, oldest_python()], ids=["this", "3.9"])
def test_the_program_runs_a_plan(tmp_path, python):
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    home = tmp_path / "base" / f"zip{os.getpid()}" / "n1"
    home.mkdir(parents=True)
    (home / "runner.pyz").write_bytes(payload.runner_pyz())
    facts = runner.stage("facts", ["{python}", "{runner}", "facts"], timeout_seconds=60)
    plan = runner.plan(facts, run_id=home.parent.name, python=python)
    (home / "plan.json").write_text(json.dumps(plan))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*arguments):
        command = [python, str(home / "runner.pyz"), arguments[0], "--dir", str(home), *arguments[1:]]
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    done = call("run")
    record = json.loads((home / "records" / "facts.json").read_text())
    assert (done.returncode, record["state"]) == (0, "success"), done.stderr + record["message"]
    assert record["environment"]["accelerator"]["vendor"] == "cpu"
    assert json.loads(call("status").stdout)["outcome"] == "success"
    assert json.loads(call("start").stdout)["finished"] is True
    assert json.loads(call("clean").stdout)["left"] == []
    assert not (tmp_path / "base").exists()
