"""The Slurm scheduler from a folder of an extension: loaded in the same way, and the same."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuval.fleet.plugins.filter.fleet import FilterModule
from ansible_collections.gpuval.fleet.plugins.plugin_utils import slurm
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.doctor import services
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.scheduler import SlurmScheduler
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.scheduler import Scheduler, scheduler_of

from tests.kit.actions import run_action

#: What sbatch, squeue and the rest print.
NODES = "NodeName=gpu-1 State=IDLE\nNodeName=gpu-2 State=DOWN Reason=no power [root@2026-11-28T10:00:00]\n"
FAKES = {"scontrol": f"cat <<'X'\n{NODES}X", "squeue": "", "sbatch": "", "scancel": "", "srun": ""}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the package under another name, and commands of Slurm."""
    made = tmp_path / "site"
    copy = made / "schedulers/flux"
    shutil.copytree(Path(slurm.__path__[0]), copy, ignore=shutil.ignore_patterns("__pycache__", "failures.yml"))
    text = (copy / "scheduler.py").read_text()
    (copy / "scheduler.py").write_text(re.sub(r'name = "slurm"', 'name = "flux"', text).replace('"Slurm"', '"Flux"'))
    (copy / "__init__.py").write_text("from .scheduler import SlurmScheduler\n")
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    extensions.use([made])
    yield made
    extensions.use(())


def test_it_is_loaded_like_the_one_that_ships(folder):
    copied = scheduler_of("flux")
    assert scheduler_of("slurm") is SlurmScheduler
    assert copied is not SlurmScheduler and issubclass(copied, Scheduler)
    traits = FilterModule().filters()["scheduler"]
    assert traits("flux", [str(folder)], []) == {**traits("slurm", [str(folder)], []), "name": "flux"}
    with pytest.raises(SettingError, match="fluxx: must be one of kubernetes, slurm, ssh, flux; is it flux"):
        scheduler_of("fluxx")


def test_templates_load_no_code_from_the_results(folder):
    with pytest.raises(AnsibleFilterError, match="site"):
        FilterModule().filters()["scheduler"]("flux", [str(folder)], [str(folder.parent)])


def test_the_doctor_asks_it(folder):
    rows = services.schedulers(SimpleNamespace(task_vars={}), {"flux"}, {})
    assert [(row.name, row.state, row.text) for row in rows] == [("Flux", "ok", "slurmctld answers, 2 node(s)")]


def test_it_is_marked_and_cleaned(folder):
    variables = {"gpuval_extensions": [str(folder)]}
    done = run_action("clean_scheduler", {"placement": "flux", "run_ids": ["run-1"]}, task_vars=variables)
    assert done.result["msg"] == "Slurm: cancelled 0 job(s)"
    options = {"scheduler": "flux", "state": "absent", "run_ids": ["run-1"]}
    marks = run_action("mark_nodes", options, task_vars=variables)
    assert marks.result["msg"] == "0 node(s) changed"


#: Runs tests with the modules of the copy in place of those that ship, but for the one with the name.
RUN_TESTS = """
import importlib, sys
import pytest


class Copied:
    def pytest_collection(self):
        from ansible_collections.gpuval.fleet.plugins.plugin_utils import slurm
        from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
        from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.scheduler import Scheduler
        extensions.use([sys.argv[1]])
        copied = extensions.load_class("schedulers", "flux", Scheduler).__module__.rpartition(".")[0]
        for part in ("commands", "drains", "jobs", "limits", "nodes", "placement", "script"):
            module = importlib.import_module(f"{copied}.{part}")
            assert module.__file__.startswith(sys.argv[1])
            sys.modules[f"{slurm.__name__}.{part}"] = module
            setattr(slurm, part, module)


sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[Copied()]))
"""


def test_the_tests_of_the_one_that_ships_hold_for_the_copy(folder):
    here = Path(__file__)
    files = [str(file) for file in sorted(here.parent.glob("test_*.py")) if file != here]
    path = os.environ["PATH"].partition(":")[2]  # without the commands of the fixture
    done = subprocess.run(
        [sys.executable, "-c", RUN_TESTS, str(folder), *files],
        cwd=here.parents[3], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
