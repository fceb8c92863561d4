"""The folder of a run on a node, as modules see it, and the runner in it."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

#: What a runner command may take before it counts as hanging.
RUNNER_SECONDS = 120

#: What a launch writes into the folder of a run, in this order.
LAUNCH_FILES = frozenset({"runner.pyz", "workloads.zip", "store.json", "ca.pem", "rclone.conf", "plan.json"})

#: The controller's own secrets do not travel into the runner where node and controller are one machine.
PRIVATE_PREFIXES = ("AWS_", "RCLONE_", "ANSIBLE_", "HF_TOKEN", "HUGGING_FACE", "VAULT_", "GPUVAL_")


class NodeError(Exception):
    """The node cannot do what is asked; the message says what to change."""


def base_directory(chosen):
    """The folder of gpuval on this node.

    The default survives a reboot, belongs to the node alone (a home may be shared by NFS), and needs no setting up.
    """
    if chosen:
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/gpuval")
    user = pwd.getpwuid(os.geteuid()).pw_name
    return Path("/var/tmp") / f"gpuval-{user}"  # noqa: S108 - make_private and check_private see that it is ours


def make_private(path):
    """Create `path` with mode 0700, or check that it is a folder of ours that others cannot write."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NodeError(
            f"{path} cannot be made: {error.strerror}. Set gpuval_node_dir to a folder you may write."
        ) from error
    check_private(path)


def check_private(path):
    """See that `path` is a folder of ours that others cannot write: programs in it are run, and files are removed."""
    try:
        status = path.lstat()
    except OSError as error:
        raise NodeError(f"{path} cannot be read: {error.strerror}. Was the node cleaned or reinstalled?") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NodeError(f"{path} is not a folder of this user alone: remove it, or set gpuval_node_dir to another one")


def run_folders(base, run_id=""):
    """Folders base/run/node of one run or of all, as far as what lies in them says that they are."""
    for parent in [base / run_id] if run_id else sorted(base.iterdir()):
        if parent.is_symlink() or not parent.is_dir() or not os.access(parent, os.R_OK | os.X_OK):
            continue
        for path in sorted(parent.iterdir()):
            if path.is_symlink() or not path.is_dir():
                continue
            if _names_itself(path) or (holds_only_launch(path) and (run_id or (path / "runner.pyz").is_file())):
                check_private(path)
                yield path


def runs_at_work(base, but):
    """Ids of other runs than `but` whose runner works on this node now: it holds the lock of its folder."""
    found = set()
    for path in run_folders(base):
        if path.parent.name == but:
            continue
        try:
            with (path / "lock").open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found.add(path.parent.name)
        except OSError:
            continue  # no lock was ever made, or the folder is being removed
    return sorted(found)


def holds_only_launch(path):
    """Whether a launch died here before it wrote the plan: nothing was ever started."""
    return {entry.name.removesuffix(".new") for entry in path.iterdir()} <= LAUNCH_FILES - {"plan.json"}


def _names_itself(path):
    """Whether the plan in `path` is that of this very folder."""
    try:
        plan = json.loads((path / "plan.json").read_text(encoding="utf-8"))
        return (plan["schema"], plan["run_id"], plan["node"]) == ("gpuval.plan/1", path.parent.name, path.name)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_private(path, data):
    """Write `data` (bytes) atomically with mode 0600. Returns whether the content changed."""
    try:
        if path.read_bytes() == data:
            return False
    except FileNotFoundError:
        pass
    draft = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        draft.replace(path)
    except OSError as error:
        raise NodeError(
            f"{path} cannot be written: {error.strerror}. Free space there, or set gpuval_node_dir."
        ) from error
    return True


def call_runner(directory, *arguments, text=None):
    """Run the runner that lies in `directory`. Returns what it prints, as JSON."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PRIVATE_PREFIXES)}
    command = [sys.executable, str(directory / "runner.pyz"), *arguments]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=RUNNER_SECONDS,
            env=environment,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            f"the runner did not answer `{arguments[0]}` within {RUNNER_SECONDS} s: is the node overloaded?"
        ) from error
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        tail = (done.stderr or done.stdout).strip()[-800:]
        raise NodeError(
            f"the runner failed at `{arguments[0]}` (exit {done.returncode}): {tail or 'no output'}"
        ) from error
