"""Container engines of extensions: found by name, packed into the runner, and used like those that ship."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.engines import engine_types
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

#: A thin engine around docker, with a device of its own.
ENGINE = """
from .docker import Docker


class Wrapped(Docker):
    name = "wrapped"
    order = 5

    def nvidia(self, root):
        return super().nvidia(root)
"""
ASK = """
import sys
sys.path.insert(0, sys.argv[1])
from gpuval_node.engines import engine_types, of_runtime, select
from gpuval_runner.plan import RUNTIMES
print(list(engine_types()), type(of_runtime("auto")[0]).__name__, "wrapped" in RUNTIMES)
print(type(select("wrapped")).__name__, select("auto").name, select("wrapped").facts.version)
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "site"
    (made / "engines").mkdir(parents=True, mode=0o755)
    (made / "engines/wrapped.py").write_text(ENGINE)
    made.chmod(0o755)
    (made / "engines/wrapped.py").chmod(0o644)
    extensions.use([made])
    yield made
    extensions.use(())


def packed_names(tmp_path):
    (tmp_path / "runner.pyz").write_bytes(payload.runner_pyz())
    program = tmp_path / "bin/wrapped"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'ServerVersion': '9.1'})}'\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path / "runner.pyz")],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_engine_of_an_extension_travels_with_the_runner(folder, tmp_path):
    assert packed_names(tmp_path) == [
        "['wrapped', 'docker', 'podman'] Wrapped True",
        "Wrapped wrapped 9.1",
    ]


def test_the_runtime_is_a_name_of_an_engine(folder):
    def problem(name):
        return settings._problem("gpuval_runtime", name, {"type": "str"})

    assert problem("wrapped") == ""
    assert problem("wraped") == "must be one of docker, podman, wrapped, host, auto; is it wrapped?"
    extensions.use(())
    assert problem("wrapped") == "must be one of docker, podman, host, auto"


def test_a_file_without_an_engine_is_named_before_anything_is_sent(folder):
    (folder / "engines/wrapped.py").write_text(ENGINE.replace('"wrapped"', '"other"'))
    with pytest.raises(SettingError, match=r"wrapped.py: no class has name = 'wrapped' and implements ContainerEngine"):
        payload.runner_pyz()


def test_engines_that_ship_are_found_by_their_files():
    assert list(engine_types()) == ["docker", "podman"]
    files = {path.stem for path in Path(sys.modules[engine_types.__module__].__file__).parent.glob("[a-z]*.py")}
    assert files == {*engine_types()} == {*extensions.found("engines")}
