"""Containers of a stage, found by their labels: ending the client is not enough."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

LABEL_RUN, LABEL_NODE, LABEL_STAGE = "gpuval.run", "gpuval.node", "gpuval.stage"
COMMAND_SECONDS = 60.0

Execute = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]


class EngineError(Exception):
    """The container engine did not do what it was asked to."""


def _execute(argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(argv),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )


def labels(run_id: str, node: str, stage: str = "") -> dict[str, str]:
    """Return the labels of a run's containers on a node, or of one stage's."""
    found = {LABEL_RUN: run_id, LABEL_NODE: node}
    return {**found, LABEL_STAGE: stage} if stage else found


@dataclass(frozen=True)
class Engine:
    """Docker or podman by its command."""

    command: str
    execute: Execute = _execute

    def run_argv(
        self,
        image: str,
        argv: Sequence[str],
        *,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        mounts: Mapping[Path, str],
        devices: Sequence[str] = (),
    ) -> list[str]:
        """Return the command that runs argv in a container; `mounts` maps a host path to ``path[:ro]`` inside."""
        command = [self.command, "run", "--rm", "--init", "--network=host", "--ipc=host"]
        command += [f"--label={name}={value}" for name, value in sorted(labels.items())]
        command += [f"--volume={host}:{inside}" for host, inside in mounts.items()]
        command += [f"--env={name}={value}" for name, value in sorted(environment.items())]
        command += list(devices)
        return [*command, f"--entrypoint={argv[0]}", image, *argv[1:]]

    def list_argv(self, labels: Mapping[str, str]) -> list[str]:
        """Return the command that lists the ids of all containers with these labels, stopped ones too."""
        filters = [f"--filter=label={name}={value}" for name, value in sorted(labels.items())]
        return [self.command, "ps", "--all", "--quiet", "--no-trunc", *filters]

    def stop_argv(self, ids: Sequence[str], grace_seconds: float) -> list[str]:
        """Return the command that ends containers: TERM, a grace, KILL."""
        return [self.command, "stop", f"--time={max(0, round(grace_seconds))}", *ids]

    def remove_argv(self, ids: Sequence[str]) -> list[str]:
        """Return the command that kills and removes containers with their anonymous volumes."""
        return [self.command, "rm", "--force", "--volumes", *ids]

    def stop(self, labels: Mapping[str, str], grace_seconds: float = 0.0) -> list[str]:
        """End and remove all containers with these labels; returns their ids. Raises ``EngineError`` when some stay."""
        ids = self._list(labels)
        if ids and grace_seconds > 0:
            self._call(self.stop_argv(ids, grace_seconds), grace_seconds + COMMAND_SECONDS)
        if ids:
            self._call(self.remove_argv(ids), COMMAND_SECONDS)
        left = self._list(labels) if ids else []
        if left:
            raise EngineError(f"{self.command} could not remove containers {', '.join(i[:12] for i in left)}")
        return ids

    def _list(self, labels: Mapping[str, str]) -> list[str]:
        done = self._call(self.list_argv(labels), COMMAND_SECONDS)
        if done.returncode != 0:
            raise EngineError(f"{self.command} ps failed: {done.stderr.strip()[-300:]}")
        return done.stdout.split()

    def _call(self, argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
        try:
            return self.execute(argv, limit)
        except FileNotFoundError:
            raise EngineError(f"{self.command} is not installed on this node") from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"{' '.join(argv[:2])} did not answer within {limit:.0f} s") from None
        except OSError as error:
            raise EngineError(f"{self.command}: {error.strerror}") from error
