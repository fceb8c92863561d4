"""Commands that open a shell on a node of a run, or follow the log of a stage."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import escape
from ..core.errors import GpuvalError
from ..runs.folder import RunFolder, read_object

SHELL, FOLLOW = "shell", "follow"
#: Number of lines at the end of a log to show.
LINES = 200
#: Starts a shell in a container that may lack bash.
_ANY_SHELL = "command -v bash >/dev/null && exec bash; exec sh"


class ReachError(GpuvalError):
    """A shell on a node or the log of a stage cannot be opened; the message has the reason."""


def stage_at_work(stages: Sequence[str], states: Mapping[str, str]) -> str:
    """The name of a node's running stage, else of the last one that ran, else of the first."""
    running = [stage for stage in stages if states.get(stage) == "running"]
    begun = [stage for stage in stages if states.get(stage, "pending") not in ("pending", "skipped")]
    return (running or begun[-1:] or list(stages))[0]


def followed_stages(folder: RunFolder, node: str, stages: Sequence[str], stage: str = "") -> list[str]:
    """Names of the stages whose logs to follow: `stage` if one is requested, else all from the running one on."""
    if stage:
        return [stage]
    states = {name: read_object(folder.evidence_file(node, name)).get("state", "pending") for name in stages}
    return list(stages[stages.index(stage_at_work(stages, states)) :])


def over_ssh(
    task: str, folder: RunFolder, node: str, followed: Sequence[str], connection: Sequence[str], become_user: str
) -> list[str]:
    """The command that opens a shell or follows logs on a node of a run over SSH, or on this host. Arguments as of
    `on_host`. Raises ReachError."""
    ended = folder.read_run()["finished_at"] is not None
    if task == FOLLOW and ended and node in folder.read_cleaned():
        kept = folder.evidence_file(node, followed[0]).parent
        raise ReachError(f"`make clean` removed the run's folder on the node. Its records and logs are in {kept}")
    directory = folder.read_launch(node).get("directory")
    return on_host(task, directory, followed, connection, become_user, ended=ended)


def on_host(
    task: str,
    directory: str | None,
    stages: Sequence[str],
    connection: Sequence[str],
    become_user: str = "",
    *,
    as_words: bool = False,
    ended: bool = False,
) -> list[str]:
    """The words of the command that opens a shell (`task` SHELL) or shows logs of `stages` (FOLLOW) on a node.
    `connection`: ssh with its options and host, empty for this host; `as_words`: it takes words (srun) in place of a
    shell line. `directory`: the run's folder on the node, None if the run never started there. `ended`: the run has
    ended, so logs do not grow. `become_user`: user that owns folder and logs."""
    if task == FOLLOW and not directory:
        raise ReachError("the run was not started on this node: it has no log yet")
    if task == SHELL:
        prefix = f"cd {shlex.quote(directory)}; " if directory else ""
        remote = f'{prefix}exec "${{SHELL:-/bin/sh}}"'
    else:
        logs = shlex.join(f"{directory}/logs/{stage}.log" for stage in stages)
        follows = "" if ended else "-F "
        remote = f"exec tail -n {LINES} {follows}{logs} 2>/dev/null"  # tail warns of logs that do not exist yet
    if become_user:  # only a shell can ask for the password
        asks = "" if task == SHELL else "-n "
        remote = f"sudo {asks}-u {shlex.quote(become_user)} sh -c {shlex.quote(remote)}"
    if task == SHELL:
        return [connection[0], "-t", *connection[1:], remote] if connection else ["sh", "-c", remote]
    return cleaned([*connection, remote] if connection and not as_words else [*connection, "sh", "-c", remote])


def cleaned(words: Sequence[str]) -> list[str]:
    """The words of a command whose output comes from a node, with a filter that removes terminal escape sequences."""
    cleaner = shlex.join([sys.executable, "-I", escape.__file__])
    return ["sh", "-c", f"{shlex.join(words)} 2>&1 | {cleaner}"]


def kubectl(access: Mapping[str, str], *words: str) -> list[str]:
    """The words of a kubectl command; `access`: kubeconfig, context and namespace, empty for kubectl's own."""
    return ["kubectl", *(f"--{name}={value}" for name, value in access.items() if value), *words]


def in_pod(task: str, access: Mapping[str, str], pod: str, container: str) -> list[str]:
    """The words of the kubectl command for a shell in a pod's container, or for its log. `access`: as of `kubectl`."""
    if task == SHELL:
        words = ("exec", "--stdin", "--tty", pod, f"--container={container}", "--", "sh", "-c", _ANY_SHELL)
        return kubectl(access, *words)
    return cleaned(kubectl(access, "logs", "--follow", f"--tail={LINES}", pod, f"--container={container}"))


def newest(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)


def containers(pod: Mapping[str, Any]) -> dict[str, str]:
    """{container: waiting, running or terminated} of a pod, init containers first."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return {one["name"]: next(iter(one.get("state") or {}), "waiting") for one in statuses}


def container_after(pod: Mapping[str, Any], container: str) -> str | None:
    """The first container of a pod after ``container`` that has started; None if one still may, empty if none will."""
    states = containers(pod)
    later = list(states)[list(states).index(container) + 1 :] if container in states else []
    begun = [name for name in later if states[name] != "waiting"]
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return begun[0] if begun else "" if ended or not later else None


def container_of(task: str, pod: Mapping[str, Any], container: str) -> str:
    """The container of a pod to open: ``container``, else the running one, else (for a log) the last one."""
    states = containers(pod)
    phase = (pod.get("status") or {}).get("phase", "Unknown")
    about = f"pod {pod['metadata']['name']} ({phase})"
    running = [name for name, state in states.items() if state == "running"]
    begun = [name for name, state in states.items() if state != "waiting"]
    if container and container not in states:
        raise ReachError(f"{about} has no container {container}, but {', '.join(states) or 'none yet'}")
    allowed = running if task == SHELL else begun
    chosen = [container] if container else (running or begun)[-1:]
    if chosen and chosen[0] in allowed:
        return chosen[0]
    states_text = ", ".join(f"{name} {state}" for name, state in states.items()) or "no container yet"
    verb = "runs" if task == SHELL else "has begun"
    raise ReachError(f"{container or 'no stage'} {'does not run' if container else verb} in {about}: {states_text}")


def beyond(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The lines that a log gained between two reads of its end: those of `after` that are not in `before`."""
    for start in range(len(before) + 1):
        tail = list(before[start:])
        if tail == list(after[: len(tail)]):
            return list(after[len(tail) :])
    return list(after)
