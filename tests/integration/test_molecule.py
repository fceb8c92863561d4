"""The molecule scenario, as `make molecule` and the pipeline run it."""

import os
import subprocess
from pathlib import Path

from fleet_kit import ANSIBLE_PLAYBOOK

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_scenario_passes(tmp_path):
    molecule = ANSIBLE_PLAYBOOK.with_name("molecule")
    done = subprocess.run(
        [molecule, "test"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{molecule.parent}:{os.environ['PATH']}",
            "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path / "molecule"),
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
