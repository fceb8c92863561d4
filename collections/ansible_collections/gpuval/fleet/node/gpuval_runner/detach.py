"""Starts a runner that outlives the process that starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from gpuval_node.hardware.tools import toolbox

from gpuval_runner.environment import handed_on
from gpuval_runner.errors import RunnerError
from gpuval_runner.files import to_json, write_atomically
from gpuval_runner.layout import NodeDirectory, own_archive

SYSTEMD_RUNNING = Path("/run/systemd/system")
LINGERING = Path("/var/lib/systemd/linger")
SYSTEMD_SECONDS = 20.0


def self_command() -> list[str]:
    """Return the command that runs this program again."""
    archive = own_archive()
    return [sys.executable, str(archive)] if archive else [sys.executable, "-m", "gpuval_runner"]


def unit_name(run_id: str, node: str) -> str:
    """Return the name of a runner's systemd unit; unit names are at most 255 characters."""
    return f"gpuval-{run_id}-{node}"[:240]


def systemd_scope(euid: int, user: str, running: Path = SYSTEMD_RUNNING, lingering: Path = LINGERING) -> Optional[str]:
    """Return ``--system`` for root, ``--user`` for a user whose services outlive a log-out, None without systemd."""
    if not running.is_dir() or shutil.which("systemd-run") is None:
        return None
    if euid == 0:
        return "--system"
    return "--user" if user and (lingering / user).exists() else None


def systemd_argv(scope: str, unit: str, argv: Sequence[str], log: Path) -> list[str]:
    """Return the command that starts argv as a transient unit, with its output in a file. An OOM kill of a stage must
    not end the unit; a runner killed itself is started again and resumes."""
    properties = [
        "KillMode=control-group",
        "OOMPolicy=continue",
        "Restart=on-abnormal",
        "RestartSec=2",
        "TasksMax=infinity",
        f"StandardOutput=append:{log}",
        f"StandardError=append:{log}",
    ]
    if scope == "--system":
        properties += ["LimitNOFILE=1048576", "LimitMEMLOCK=infinity"]
    return [
        "systemd-run",
        scope,
        "--collect",
        "--quiet",
        f"--unit={unit}",
        *(f"--property={item}" for item in properties),
        "--",
        *argv,
    ]


def detach(directory: NodeDirectory, unit: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Start ``run`` with these further arguments in the background; returns the systemd unit, empty without. Raises
    ``RunnerError`` or ``OSError`` when nothing could be started."""
    command = ["run", "--dir", str(directory.root), *arguments]
    scope = systemd_scope(os.geteuid(), environment.get("USER", ""))
    if scope and own_archive() and _start_unit(scope, unit, [*self_command(), *command], directory, environment):
        return unit
    _start_session(command, directory, environment)
    return ""


def stop_unit(unit: str) -> None:
    """Stop a unit with all its processes, if there still is one."""
    scope = systemd_scope(os.geteuid(), os.environ.get("USER", ""))
    if unit and scope:
        _systemd(["systemctl", scope, "stop", f"{unit}.service"])


def _start_unit(
    scope: str, unit: str, argv: Sequence[str], directory: NodeDirectory, environment: Mapping[str, str]
) -> bool:
    data = to_json(handed_on(environment))  # in a file: proxies may hold passwords, and arguments are public
    write_atomically(directory.runner_environment, data)
    full = [*argv, "--unit", unit, "--environment-file", str(directory.runner_environment)]
    return _systemd(systemd_argv(scope, unit, full, directory.runner_log))


def _systemd(argv: Sequence[str]) -> bool:
    return toolbox()(*argv, timeout=SYSTEMD_SECONDS).ok


def _start_session(command: Sequence[str], directory: NodeDirectory, environment: Mapping[str, str]) -> None:
    """Start a process in a session of its own, so that it outlives this one and its terminal."""
    with directory.runner_log.open("ab") as log:
        try:
            subprocess.Popen(
                [*self_command(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise RunnerError(f"the runner cannot start: {error.strerror}: check the user's process limit") from None
