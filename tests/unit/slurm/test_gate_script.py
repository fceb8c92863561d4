"""The script of docs/gate.md drains a node by the health check unless it is out of service already."""

import re
import subprocess

import pytest

from tests.kit.fleet import ROOT

PAGE = (ROOT / "docs/gate.md").read_text()
SCRIPT = re.search(r"```sh\n(#!/bin/sh\n# /etc/slurm/gpuval.sh.*?)```", PAGE, re.DOTALL)[1]
COMMANDS = {
    "gpuval-health": "echo gpuval:run-1:ecc; exit 1",
    "scontrol": 'case "$*" in "-o show node n1") cat "${0%/*}/shown" ;; update*) echo "$*" >>"${0%/*}/updates" ;; esac',
}


@pytest.mark.parametrize(
    ("shown", "drains"),
    [
        ("State=IDLE", True),
        ("State=IDLE+DRAIN", False),
        ("State=DOWN*+DRAIN+NOT_RESPONDING", False),
        ("State=DOWN", False),
        ("State=IDLE Comment=was_DRAINED_before", True),
        ("State=MIXED Extra=State=DOWN Comment=x State=DRAIN", True),
    ],
)
def test_a_node_is_drained_unless_it_is_out_of_service(tmp_path, shown, drains):
    for name, lines in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "shown").write_text(f"NodeName=n1 Arch=x86_64 OS=Linux 6.1 RealMemory=1 {shown} Partitions=a \n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURMD_NODENAME": "n1"}
    text = SCRIPT.replace("/shared/gpuval/gpuval-health", "gpuval-health")
    done = subprocess.run(["sh", "-c", text], env=environment, check=False, timeout=60)
    updates = tmp_path / "updates"
    expected = "update NodeName=n1 State=DRAIN Reason=gpuval:run-1:ecc\n"
    assert (done.returncode, updates.read_text() if updates.exists() else "") == ((1, expected) if drains else (0, ""))
