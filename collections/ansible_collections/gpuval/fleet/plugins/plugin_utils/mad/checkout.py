"""Git repositories on the controller: cloned with a deadline; nothing of them is executed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ..core.escape import one_line
from .errors import MadError

SECONDS = 900
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
#: Hooks, other transports and programs that a repository's own settings could name. Large files stay pointers.
SAFE = (
    *("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false"),
)


def is_address(text: str) -> bool:
    """Whether git clones it; else it is a folder."""
    return bool(_ADDRESS.fullmatch(text))


def clone(url: str, target: Path, revision: str = "", *, what: str, submodules: bool = False) -> str:
    """Clone one revision without history, and leave `.git` out. Returns the commit. Raises MadError."""
    if shutil.which("git") is None:
        raise MadError(f"{what}: the controller has no git, which clones {one_line(url)}: install it")
    if revision.startswith("-"):
        raise MadError(f"{what}: {revision!r} is no revision")
    target.mkdir(parents=True)
    _git(target, what, "init", "--quiet")
    _git(target, what, "fetch", "--quiet", "--depth", "1", "--", url, revision or "HEAD")
    _git(target, what, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    if submodules and (target / ".gitmodules").is_file():
        _git(target, what, "remote", "add", "origin", url)  # addresses of submodules may be relative to it
        _git(target, what, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
    commit = _git(target, what, "rev-parse", "HEAD").strip()
    for path in [*target.rglob(".git")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return commit


def _git(folder: Path, what: str, *arguments: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30")
    try:
        done = subprocess.run(
            ["git", *SAFE, "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env=environment,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MadError(
            f"{what}: git {arguments[0]} took more than {SECONDS} s: check the network and the host"
        ) from None
    if done.returncode:
        raise MadError(f"{what}: git {arguments[0]} failed: {one_line(done.stderr[-400:])}: check address and revision")
    return done.stdout
