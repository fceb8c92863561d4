"""Clones git repositories on the controller, with a time limit and without executing them, and finds credentials."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..core.escape import one_line
from ..runs import job_secrets
from .documents import MadError, shown
from .models import MadModel

#: File of credentials. A model with `cred` gets one of them, in its container and to clone its code.
CREDENTIALS_FILE = "credential.json"
#: Time limit of one git command.
SECONDS = 900
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=30"
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
#: Messages by which git and SSH report a missing or wrong login.
_REFUSED = re.compile(r"Authentication failed|could not read (?:Username|Password)|Permission denied|error: 403")
#: Transports allowed for addresses in a repository, also of submodules: the encrypted ones.
TRANSPORTS = "https:ssh"
#: Transports allowed for the address that the user sets.
ALL_TRANSPORTS = f"{TRANSPORTS}:http:git:file"
_NOT_ALLOWED = re.compile(r"transport '\S+' not allowed")
#: git options that disable hooks and programs named by a repository's settings. Git LFS files stay pointers.
SAFE = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false"),
)
#: Credential helper of git: answers only for the address's host, with values from the environment.
_HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" '
    '"$GPUVAL_GIT_USERNAME" "$GPUVAL_GIT_PASSWORD"; }; f'
)


@dataclass(frozen=True)
class Login:
    """An account at the host of a repository, with a password for HTTP or a file with a key for SSH."""

    username: str = ""
    password: str = field(default="", repr=False)
    key_file: str = ""

    def options(self, url: str) -> list[str]:
        """git options that log in to this address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not self.password:
            return []
        helper = f"credential.{parts.scheme}://{parts.netloc}.helper"
        return ["-c", f"{helper}=", "-c", f"{helper}={_HELPER}"]

    def environment(self) -> dict[str, str]:
        """Environment variables for git: user name and password, or the SSH command with the key."""
        variables = {"GPUVAL_GIT_USERNAME": self.username, "GPUVAL_GIT_PASSWORD": self.password}
        if self.key_file:
            user = f"-l {shlex.quote(self.username)} " if self.username else ""
            variables["GIT_SSH_COMMAND"] = f"{SSH} {user}-i {shlex.quote(self.key_file)} -o IdentitiesOnly=yes"
        return variables


def is_address(text: str) -> bool:
    """Whether a text is an address that git can clone, and not the path of a folder."""
    return bool(_ADDRESS.fullmatch(text))


def clone(
    url: str, target: Path, revision: str = "", *, what: str, login: Login | None = None, transports: str = TRANSPORTS
) -> str:
    """Clone one revision (empty: HEAD) into `target`, with submodules, without history and `.git`. `what`: subject of
    messages; `transports`: allowed protocols. Returns the commit. Raises MadError."""
    if shutil.which("git") is None:
        raise MadError(f"{what}: the controller has no git, which clones {one_line(url)}: install it")
    if revision.startswith("-"):
        raise MadError(f"{what}: {revision!r} is no revision")
    target.mkdir(parents=True)
    _git(target, what, "init", "--quiet")
    fetch = ("fetch", "--quiet", "--depth", "1", "--", url, revision or "HEAD")
    _git(target, what, *fetch, url=url, login=login, transports=transports)
    _git(target, what, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    if (target / ".gitmodules").is_file():
        _git(target, what, "remote", "add", "origin", url)  # addresses of submodules may be relative to this one
        update = ("submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
        _git(target, what, *update, url=url, login=login)
    commit = _git(target, what, "rev-parse", "HEAD").strip()
    for path in [*target.rglob(".git")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return commit


def _git(
    folder: Path, what: str, *arguments: str, url: str = "", login: Login | None = None, transports: str = TRANSPORTS
) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    environment["GIT_ALLOW_PROTOCOL"] = transports
    environment.setdefault("GIT_SSH_COMMAND", SSH)
    options: Sequence[str] = login.options(url) if login else ()
    environment |= login.environment() if login else {}
    try:
        process = subprocess.run(
            ["git", *SAFE, *options, "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env=environment,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"took more than {SECONDS} s: check the network and the host"
        raise MadError(f"{what}: git {arguments[0]} {problem}") from None
    if process.returncode:
        printed = process.stderr.replace(login.password, "***") if login and login.password else process.stderr
        raise MadError(f"{what}: git {arguments[0]} failed: {one_line(printed[-400:])}: {_git_remedy(printed, login)}")
    return process.stdout


def _git_remedy(error_text: str, login: Login | None) -> str:
    if _NOT_ALLOWED.search(error_text):
        return "use https:// or SSH in models.json and .gitmodules"
    if not _REFUSED.search(error_text):
        return "check address and revision"
    if login:
        return "check username and password in credential.json"
    return "the repository needs a login: name a credential (cred of a model), or set up git's credential helper or SSH"


def credentials_for(model: MadModel, document: Mapping[str, Any]) -> dict[str, str]:
    """{variable NAME_KEY: value} of a model's credential; empty if it names none. `document`: credential.json. Raises
    MadError for a credential that is missing or cannot be used."""
    if not model.cred:
        return {}
    entry = document.get(model.cred)
    values = job_secrets.flat({model.cred: entry}) if isinstance(entry, Mapping) else {}
    if not values:
        ask = f", or ask {model.owner}" if model.owner else ""
        raise MadError(
            f"{model.where}: cred: {CREDENTIALS_FILE} (or gpuval_secrets_file) has no {shown(model.cred)}: add it with "
            f"its username and password{ask}"
        )
    problems = [text for name, value in values.items() if (text := job_secrets.problem(name, value))]
    if problems:
        raise MadError(f"{model.where}: cred: {'; '.join(problems)}")
    return values


def login_for(model: MadModel, document: Mapping[str, Any]) -> Login | None:
    """The login to clone the model's code with, from `document` (credential.json); None for public code."""
    texts = credentials_for(model, document)
    keys = ("USERNAME", "PASSWORD", "SSH_KEY_FILE")
    return Login(*(texts.get(f"{model.cred}_{key}", "") for key in keys)) if texts else None
