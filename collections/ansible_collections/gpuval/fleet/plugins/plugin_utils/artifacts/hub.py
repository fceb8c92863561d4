"""Fetches a repository of the Hugging Face hub in a child process. The hub's client retries for as long as the hub
tells it to wait, and shows nothing meanwhile; as a thread it could not be ended."""

import logging
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes
from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest

from ..core.processes import Parent
from ..store.rclone import COPY_SECONDS

LOOK_SECONDS, PROGRESS_SECONDS = 1.0, 30.0
#: Seconds without data after which a download from the hub fails, also before the first answer.
SILENCE_SECONDS = 120.0
#: Files not downloaded. Meta's checkpoints (original/) hold the same weights again and double the size of a Llama.
IGNORED = ["original/*", ".gitattributes", *(f"*{suffix}" for suffix in manifest.RUNS_CODE)]


@dataclass(frozen=True)
class HubAnswer:
    """The `commit` of a download from the hub; or why it failed: the client's `error` (a name or a text), and the hub's
    HTTP `status`."""

    commit: str = ""
    error: str = ""
    status: int | None = None


def fetch(
    repository: str,
    root: Path,
    *,
    revision: str | None,
    token: str | None,
    silence_seconds: float,
    say: Callable[[str], object],
) -> HubAnswer:
    """Download a repository to the folder `root`; fails if nothing arrives for `silence_seconds`. `say` gets a line of
    progress every half minute."""
    log = root.parent / "hub.log"
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    child = fork.Process(target=_work, args=(writer, log, repository, root, revision, token), daemon=True)
    child.start()
    writer.close()
    parent, began = Parent(), time.monotonic()
    state_before, heard, spoke = (0, 0), began, began
    try:
        while not reader.poll(LOOK_SECONDS):
            parent.check()
            now, state = time.monotonic(), _written(root)
            if state != state_before:
                state_before, heard = state, now
            if now - heard >= silence_seconds:
                # HTTP status of the last request that the client retries
                codes = re.findall(r"HTTP Error (\d{3})\b", log.read_text(encoding="utf-8", errors="replace"))
                status = int(codes[-1]) if codes else None
                return HubAnswer(error=f"nothing arrived for {silence_seconds:.0f} s", status=status)
            if now - began >= COPY_SECONDS:
                return HubAnswer(error=f"not complete after {COPY_SECONDS} s")
            if now - spoke >= PROGRESS_SECONDS:
                quiet = f", nothing new for {now - heard:.0f} s" if now - heard >= PROGRESS_SECONDS else ""
                say(f"{repository}: {human_bytes(state_before[0])} downloaded{quiet}")
                spoke = now
        answer: HubAnswer = reader.recv()
    except EOFError:
        answer = HubAnswer(error="its process ended early: out of memory or disk?")
    finally:
        child.kill()
        child.join(10)  # a child that waits for a dead file system outlives SIGKILL
        reader.close()
        log.unlink(missing_ok=True)
    return answer


def _work(writer: Pipe, log: Path, repository: str, root: Path, revision: str | None, token: str | None) -> None:
    """Download a hub's repository in the child process, with its output in `log`; send a HubAnswer to `writer`."""
    with log.open("w", encoding="utf-8") as output:
        sys.stdout = sys.stderr = output
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - importing takes a second, seldom needed

        logging.getLogger("huggingface_hub").addHandler(logging.StreamHandler(output))
        try:
            commit = HfApi(token=token).model_info(repository, revision=revision, timeout=SILENCE_SECONDS).sha
            snapshot_download(repository, revision=commit, token=token, local_dir=root, ignore_patterns=IGNORED)
            answer = HubAnswer(commit=commit or "")
        except Exception as error:  # the client raises its transport's own errors, which differ between versions
            answer = _refusal(error)
        writer.send(answer)


def _refusal(error: BaseException) -> HubAnswer:
    """Return the HubAnswer for an error or its cause: the client hides the hub's answer in an error about its cache."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    before = error.__cause__ or error.__context__
    if not status and before is not None:
        return _refusal(before)
    words = error.strerror if isinstance(error, OSError) else None
    return HubAnswer(error=words or type(error).__name__, status=status)


def _written(root: Path) -> tuple[int, int]:
    """Return the bytes of all files below `root`, and the time of the last change in nanoseconds."""
    total = newest = 0
    for where, _folders, names in os.walk(root):
        for name in names:
            with suppress(OSError):  # renamed meanwhile
                status = Path(where, name).stat()
                total, newest = total + status.st_size, max(newest, status.st_mtime_ns)
    return total, newest
