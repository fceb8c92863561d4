"""The molecule scenarios, as `make molecule` runs them, and what they leave behind."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.container_fleet import needs_docker
from tests.kit.fleet import ANSIBLE_PLAYBOOK, no_engines
from tests.kit.processes import end_all_below

ROOT = Path(__file__).resolve().parents[2]
MOLECULE = ANSIBLE_PLAYBOOK.with_name("molecule")
SHOWN = 8000
pytestmark = pytest.mark.molecule


def molecule(folder, *arguments, seconds, **variables):
    environment = {
        **os.environ,
        **variables,
        "PATH": f"{ROOT}/tests/kit/bin:{MOLECULE.parent}:{os.environ['PATH']}",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(folder),
        "NO_COLOR": "1",
    }
    folder.mkdir(exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("a") as stream:
        try:
            done = subprocess.run(
                [MOLECULE, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
            ended = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was not done after {seconds} s"
            end_all_below(folder)
    assert ended == "ended with 0", (
        f"molecule {' '.join(arguments)} {ended}; the end of {log}:\n{log.read_text()[-SHOWN:]}"
    )


def test_the_default_scenario_passes(tmp_path):
    molecule(tmp_path / "molecule", "test", seconds=600, **no_engines(tmp_path))


# The time is for a machine that has none of the images: they are built from packages first.
@pytest.mark.timeout(2700)
def test_machines_with_an_engine_are_accepted_in_containers_and_left_clean(tmp_path):
    needs_docker()
    folder = tmp_path / "molecule"
    try:
        molecule(folder, "test", "--scenario-name", "fleet", seconds=2400)
    except BaseException:
        molecule(folder, "destroy", "--scenario-name", "fleet", seconds=300)
        raise
    finally:
        left = end_all_below(folder)
    assert [line for line in left if not line.startswith("ssh: ")] == [], "only Ansible's own connections may linger"
