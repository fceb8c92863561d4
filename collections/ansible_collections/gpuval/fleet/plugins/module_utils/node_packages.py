"""Installs programs that stages start, by the package manager of the node's system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .hardware.tools import run_bounded
from .requirement_trial import start_problem

#: System packages that stages need, each with the command that shows that it works.
TRIALS = {"fio": "fio --version", "perftest": "ib_write_bw --version"}
#: Options with which apt-get gives up soon without network, and waits for another apt-get: a new node updates itself.
_PATIENCE = " -o Acquire::Retries=0 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120"
#: Commands that install packages, by package manager; a list of packages that is out of date may still have them.
COMMANDS = {
    "apt-get": f"apt-get{_PATIENCE} -q update; apt-get{_PATIENCE} -q -y --no-install-recommends install",
    "dnf": "dnf -y install",
    "zypper": "zypper --non-interactive install",
}
#: Environment variables with which package managers ask no question and restart no service of the node.
SETTINGS = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
INSTALL_SECONDS = 600
UNKNOWN = "neither apt-get, dnf nor zypper is on the node: install them as the site does"


def missing_of(packages: Sequence[str]) -> list[str]:
    """Return the names in `packages` whose program does not start on this node."""
    return [name for name in packages if start_problem(TRIALS[name].split())]


def install_packages(packages: Sequence[str], seconds: float) -> str:
    """Install `packages` as root. Returns which are still missing and why, with the command to run; else empty."""
    manager = next((program for program in COMMANDS if shutil.which(program)), "")
    command, cause = f"{COMMANDS.get(manager)} {' '.join(packages)}", "it needs root"
    if manager and os.geteuid() == 0:
        os.environ.update(SETTINGS)
        done = run_bounded(manager, ["sh", "-c", command], max(0.1, min(seconds, INSTALL_SECONDS)))
        cause = " ".join((done.stderr or done.complaint).split())[-500:]
    missing = missing_of(packages)
    remedy = f"{cause}: run on the node, as root: {command.replace(_PATIENCE, '')}" if manager else UNKNOWN
    return f"not installed: {', '.join(missing)}: {remedy}" if missing else ""
