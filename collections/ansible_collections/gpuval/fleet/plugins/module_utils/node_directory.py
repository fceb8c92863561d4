"""The folder of a run on a node, its locks, and calls of the runner in it, for Ansible modules."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .hardware.tree import read_text

#: Seconds after which a runner command counts as hung.
RUNNER_SECONDS = 120

#: Seconds that a launch or a clean waits for other launches and cleans on the same machine.
ONE_AT_ONCE_SECONDS = 120
MAKE_TRIES = 100
MOST_OF_HOLDER = 300

#: Files that a launch on a node writes into the folder of a run.
LAUNCH_FILES = frozenset(
    {"runner.pyz", "workloads.zip", "store.json", "ca.pem", "rclone.conf", "plan.json", "controller"}
)
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
#: Link to the Python environment of `make environment`, in gpuval's folder.
ENVIRONMENT = "environment"
#: Folder with the SSH keys of the run, which may exist before a launch.
KEYS = "ssh"
#: Folder with the secrets of jobs, a file for each stage until it ends.
SECRETS = "secrets"

#: Variables of the controller's secrets, which a runner on the controller's machine does not inherit.
PRIVATE_PREFIXES = ("AWS_", "RCLONE_", "ANSIBLE_", "HF_TOKEN", "HUGGING_FACE", "VAULT_", "GPUVAL_")

#: Variables that a stage inherits from the runner: names, and how names begin and end.
INHERITED = {
    *("PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH"),
    "GPUVAL_VOLUMES",
    *("SLURM_JOB_ID", "SLURM_CONF"),  # with the others, launchers would use Slurm
}
INHERITED_BEGINNINGS = (
    *("LC_", "CUDA", "NVIDIA_", "HIP_", "HSA_", "ROCM", "ROCR_", "HABANA", "PT_HPU", "OMP_", "MKL_"),
    *("NCCL_", "RCCL_", "GLOO_", "NVSHMEM_", "UCX_", "FI_", "TORCH", "PYTORCH", "DS_", "VLLM_"),
)
INHERITED_ENDINGS = ("_proxy", "_PROXY")


class NodeError(Exception):
    """A request that the node cannot fulfil; the message says what to change."""


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the runner's environment that a stage inherits."""
    return {
        name: value
        for name, value in environment.items()
        if name in INHERITED or name.startswith(INHERITED_BEGINNINGS) or name.endswith(INHERITED_ENDINGS)
    }


def base_directory(chosen):
    """Return gpuval's folder on this node: `chosen`, or a default that survives a reboot, is local to the node (a home
    may be on NFS), and needs no setup."""
    if chosen:
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/gpuval")
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as any number
        user = str(os.geteuid())
    return Path("/var/tmp") / f"gpuval-{user}"  # noqa: S108 - make_private and check_private see that it is ours


def workload_python(chosen, base):
    """Return the Python of workloads: `chosen`, or for `auto` that of the environment in gpuval's folder `base`, else
    `python3`. Programs in a folder that others can write are not used."""
    if chosen != "auto":
        return chosen
    installed = base / ENVIRONMENT / "bin/python"
    with contextlib.suppress(NodeError, OSError):
        check_private(base)
        if installed.exists():
            return str(installed)
    return "python3"


def make_private(path):
    """Create `path` with mode 0700, or check that it is a folder of this user that others cannot write."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        remedy = "Set gpuval_node_dir to a folder you may write."
        raise NodeError(f"{path} cannot be made: {error.strerror}. {remedy}") from error
    check_private(path)


def check_private(path):
    """Raise NodeError unless `path` is a folder of this user that others cannot write: programs in it are run."""
    try:
        status = path.lstat()
    except OSError as error:
        raise NodeError(f"{path} cannot be read: {error.strerror}. Was the node cleaned or reinstalled?") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NodeError(f"{path} is not a folder of this user alone: remove it, or set gpuval_node_dir to another one")


def run_folders(base, run_id=""):
    """Yield the folders base/run/node of one run or of all runs, if files in them prove that they are a run's."""
    for parent in [base / run_id] if run_id else sorted(base.iterdir()):
        if parent.is_symlink() or not parent.is_dir() or not os.access(parent, os.R_OK | os.X_OK):
            continue
        for path in sorted(parent.iterdir()):
            if path.is_symlink() or not path.is_dir():
                continue
            plan = read_document(path / "plan.json")
            identity = (plan.get("schema"), plan.get("run_id"), plan.get("node"))
            is_planned = identity == ("gpuval.plan/1", parent.name, path.name)
            if is_planned or (holds_only_launch(path) and (run_id or _begun(path))):
                check_private(path)
                yield path


def runs_at_work(base, but):
    """Return `{run id: text on start and owner}` for runs other than `but` whose runner works on this node now (holds
    the lock of its folder)."""
    holders = {}
    for path in run_folders(base):
        if path.parent.name == but or path.parent.name in holders or not _is_locked(path):
            continue
        since = read_document(path / "lock").get("since")
        words = f" since {since}" if since else ""
        with contextlib.suppress(OSError, ValueError):
            words += f", started by {(path / 'controller').read_text(encoding='utf-8').strip()}"
        holders[path.parent.name] = words[:MOST_OF_HOLDER]
    return dict(sorted(holders.items()))


def _is_locked(path):
    """Whether a runner holds the lock of a run's folder."""
    try:
        with (path / "lock").open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no lock was made yet, or the folder is being removed
    return False


def names_in_run(base, run_id, node, boot_id_file=BOOT_ID_FILE):
    """Return other node names under which this machine works or worked in the same run: the inventory lists the machine
    more than once. Raises NodeError if another machine works in `base`, whose state would count as this machine's."""
    boot = boot_id(boot_id_file)
    names = []
    for path in run_folders(base, run_id):
        if path.name == node:
            continue
        last_boot = str(read_document(path / "state.json").get("boot") or "")  # when a runner last started
        if _is_locked(path):
            if boot and last_boot and last_boot != boot:
                raise NodeError(f"{base} is shared with another machine, on which {path.name} is at work")
            names.append(path.name)
        elif boot and last_boot == boot:
            names.append(path.name)
    return names


def boot_id(path: Path = BOOT_ID_FILE) -> str:
    """Return the kernel's id of this boot of this machine; empty without one."""
    return (read_text(path) or "")[:64]


@contextlib.contextmanager
def one_at_once(base, seconds=ONE_AT_ONCE_SECONDS):
    """Hold the lock of `base`: launches and cleans on one machine, under any node name, wait for each other. Raises
    NodeError when the lock stays held for `seconds`, FileNotFoundError when `base` is gone."""
    deadline = time.monotonic() + seconds
    while True:
        descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not take_lock(descriptor, deadline):
                raise NodeError(f"another launch or clean has been at work in {base} for more than {seconds:.0f} s")
            try:
                if not os.path.samestat(os.fstat(descriptor), base.lstat()):
                    continue
            except FileNotFoundError:  # a clean removed the folder meanwhile
                continue
            yield
            return
        finally:
            os.close(descriptor)


def take_lock(descriptor: int, deadline: float) -> bool:
    """Lock an open file or folder until it is closed; False if others hold it until the deadline (monotonic clock)."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True


@contextlib.contextmanager
def one_launch_at_once(base):
    """Create gpuval's folder `base` on a node and hold its lock, as `one_at_once`."""
    for _ in range(MAKE_TRIES):
        make_private(base)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(one_at_once(base))
            except FileNotFoundError:  # a clean removed the folder again
                continue
            yield
            return
    raise NodeError(f"{base} is removed as often as it is made: is a clean under way? Launch again after it")


def holds_only_launch(path):
    """Whether a folder has only files of a launch that died before it wrote the plan: nothing was ever started."""
    drafts = {f"{name}.new" for name in LAUNCH_FILES}
    return {entry.name for entry in path.iterdir()} <= LAUNCH_FILES - {"plan.json"} | drafts | {KEYS, SECRETS}


def _begun(path):
    """Whether a folder without a plan is a run's: it has a launch's first file, perhaps partial, or the run's keys."""
    ours = (path / "runner.pyz", path / "runner.pyz.new", path / KEYS / "gpuval.json")
    return any(file.is_file() and not file.is_symlink() for file in ours)


def read_document(path):
    """Return the JSON object in a file of a run's folder; an empty one if the file is missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


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
        remedy = "Free space there, or set gpuval_node_dir."
        raise NodeError(f"{path} cannot be written: {error.strerror}. {remedy}") from error
    return True


def within(seconds, function, *arguments):
    """Call `function` in a separate process for at most `seconds`: a file system or driver that hangs blocks only that.
    Returns the function's result, which must fit into JSON. Raises the function's NodeError, or one after `seconds`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            nothing = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):  # the connection must not wait for a hung process
                os.dup2(nothing, handle)
            try:
                answer = {"value": function(*arguments)}
            except NodeError as error:
                answer = {"error": str(error)}
            except OSError as error:
                answer = {"error": f"{error.filename or ''}: {error.strerror or error}"}
            except Exception as error:  # reported by the parent
                answer = {"error": f"{type(error).__name__} on the node: {error}"}
            with os.fdopen(writing, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    text = _read_until(reading, time.monotonic() + seconds)
    if text is None:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        raise NodeError(
            f"the node did not answer within {seconds:.0f} s: a file system, a driver or the container engine hangs"
        )
    os.waitpid(child, 0)
    try:
        answer = json.loads(text)
    except ValueError:
        raise NodeError("the launch exited unexpectedly on the node (out of memory?)") from None
    if "error" in answer:
        raise NodeError(answer["error"])
    return answer["value"]


def _read_until(handle, deadline):
    """Return all data of a file descriptor until its writer closes it; None when the deadline comes first."""
    data = b""
    with os.fdopen(handle, "rb", buffering=0) as stream:
        while True:
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not select.select([stream], [], [], seconds)[0]:
                return None
            block = stream.read(1 << 16)
            if not block:
                return data
            data += block


def call_runner(directory, *arguments, text=None):
    """Run a command of the runner in `directory`, with `text` as its input. Returns the JSON that it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PRIVATE_PREFIXES)}
    command = [sys.executable, str(directory / "runner.pyz"), *arguments]
    options = {"input": text, "text": True, "env": environment, "cwd": "/", "timeout": RUNNER_SECONDS}
    try:
        process = subprocess.run(command, capture_output=True, check=False, errors="replace", **options)
        return json.loads(process.stdout)
    except subprocess.TimeoutExpired as error:
        problem = f"the runner did not answer `{arguments[0]}` within {RUNNER_SECONDS} s: is the node overloaded?"
        raise NodeError(problem) from error
    except ValueError as error:
        tail = (process.stderr or process.stdout).strip()[-800:] or "no output"
        raise NodeError(f"the runner failed at `{arguments[0]}` (exit {process.returncode}): {tail}") from error
