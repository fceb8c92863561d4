"""Installs on a node what workloads without an image need: a Python environment with PyTorch, and system packages. Each
environment is a folder of its own, named by the digest of what it has, with a stamp that is written last; the link
`environment` then changes at once, so an installation that ends early leaves the former one in use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from .. import node_launch, node_packages, requirement_trial, web_files
from ..hardware import collect
from ..hardware.tools import run_bounded
from ..image_archive import extract, sha256_of
from ..node_directory import (
    ENVIRONMENT,
    NodeError,
    base_directory,
    check_private,
    make_private,
    one_at_once,
    runs_at_work,
    take_lock,
    workload_python,
    write_private,
)

#: Versions of Python that the locked packages and PyTorch have builds for.
PYTHONS = ">=3.11,<3.14"
#: Bytes of an environment and its downloads, by vendor, and the factor by which an archive of wheels grows unpacked.
NEEDED_BYTES, UNPACKED = {"cpu": 3 << 30, "nvidia": 14 << 30, "amd": 28 << 30}, 5
#: Local versions of PyTorch's builds by vendor; the one of PyPI, for CUDA, has none.
BUILDS = {"cpu": r"\+cpu", "nvidia": r"(?:\+cu\d+)?", "amd": r"\+rocm[\d.]+"}
#: Environment variables for uv and DeepSpeed's build; the last lets imports leave bytecode for later imports.
SETTINGS = {"UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1", "DS_BUILD_OPS": "0", "PYTHONDONTWRITEBYTECODE": ""}
IMPORT_SECONDS = 300
#: Modules whose import shows that a Python environment works; the first is imported at each call.
MODULES = ("torch", "deepspeed", "transformers", "accelerate")
TRIAL = """
import importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
versions = {name: importlib.import_module(name).__version__ for name in sys.argv[1:]}
sees_gpu = sys.modules["torch"].cuda.is_available()
print("\\n" + json.dumps({"Python": sys.version.split()[0], **versions, "sees_gpu": sees_gpu}), file=answer)
"""


class EnvironmentAnswer(TypedDict, total=False):
    #: What the node's Python environment has, or would have.
    summary: str
    #: Texts on what workloads still lack on the node.
    remarks: list[str]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a node's Python environment has. `torch`: requirement of PyTorch; `locked`: text of the locked packages with
    their hashes; `vendor`: that of the node's GPUs, or `cpu`."""

    vendor: str
    has_driver: bool
    torch: str
    locked: str
    torch_index: str = ""
    torch_backend: str = "auto"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def uv_wheel(self) -> str:
        """Regular expression for the file name of uv's wheel for this machine."""
        (version,) = re.findall(r"^uv==([\w.]+)", self.locked, re.MULTILINE)
        return rf"uv-{re.escape(version)}-py3-none-manylinux[\w.]*_{platform.machine()}\.whl"

    def torch_wheel(self, names: Iterable[str]) -> str:
        """The file name of PyTorch's wheel for vendor and machine, if possible for a Python that this machine has."""
        version = re.escape(self.torch.partition("==")[2])
        pattern = rf"torch-{version}{BUILDS[self.vendor]}-cp3(\d+)-cp3\d+-\w*linux\w*_{platform.machine()}\.whl"
        fitting = [match for match in (re.fullmatch(pattern, name) for name in names) if match]
        if not fitting:
            raise NodeError(
                f"no wheel of {self.torch} for {self.vendor} on {platform.machine()} in the archive of wheels"
            )
        return max(fitting, key=lambda match: bool(shutil.which(f"python3.{match[1]}")))[0]

    def commands(self, path: Path, scratch: Path, index: str, wheel: str = "") -> list[list[str]]:
        """The calls of uv that make the environment at `path`: from `index`, or from the wheels in `scratch`, of which
        `wheel` is PyTorch's. Wheels that were built for an archive have other hashes than the locked ones."""
        python = re.sub(r".*-cp3(\d+)-.*", r"3.\1", wheel) if wheel else PYTHONS
        offline = ["--offline"] if wheel else []
        source = [*offline, "--no-index", "--find-links", str(scratch)] if wheel else ["--default-index", index]
        install = ["pip", "install", "--python", str(path / "bin/python"), *source]
        locked = ["--no-deps", "--no-verify-hashes" if wheel else "--require-hashes", "-r", str(scratch / "locked.txt")]
        build = ["--torch-backend", "cpu" if self.vendor == "cpu" else self.torch_backend]
        if self.torch_backend == "auto" and self.vendor == "nvidia" and not self.has_driver:
            build = []  # uv would choose the one for CPUs; PyPI's is for CUDA
        torch = [*(["--index", self.torch_index] if self.torch_index else build), self.torch]
        venv = ["venv", "--clear", "--python", python, *offline, str(path)]
        return [venv, [*install, *locked], [*install, *([str(scratch / wheel)] if wheel else torch)]]


def node_environment(
    module: Any,
    state: str,
    directory: str,
    python: str,
    requirements: Any,
    packages: Sequence[str] = (),
    **options: Any,
) -> EnvironmentAnswer:
    """Install the environment of a node and system `packages` (`present`), report what stages lack (`examined`), or
    remove the environment (`absent`). A `python` other than `auto` is the site's own, and stays."""
    base, until = base_directory(directory), time.monotonic() + options.get("timeout_seconds", 0)
    answer: dict[str, Any] = {"changed": False, "summary": "", "remarks": []}
    os.environ.update(SETTINGS)
    try:
        if os.path.lexists(base):
            check_private(base)  # before a program in it is run, or a file written
        if state == "absent":
            return {**answer, "changed": remove(base, module.check_mode)}
        if state == "present" and python == "auto":
            answer = NodeEnvironment(directory, **options).install(module.check_mode)
        elif state == "present":
            answer["summary"] = f"{python} of gpuval_workload_python is left alone"
        if state == "present":
            add_packages(answer, packages, until, module.check_mode)
        if not (state == "present" and module.check_mode):
            lacks = node_launch.lacking(
                {"plan": {"python": workload_python(python, base)}, "requirements": requirements}
            )
            answer["remarks"] += [lacks["message"]] if lacks else []
            starts = node_packages.TRIALS.values() if packages else ()
            needs = (need for trial in requirements for need in trial["needs"] if need.get("start") in starts)
            if any(map(requirement_trial.problem_of, needs)):
                raise NodeError("; ".join(reversed(answer["remarks"])))
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}") from error
    return answer


def add_packages(answer: dict[str, Any], packages: Sequence[str], until: float, check_mode: bool) -> None:
    """Install missing system packages until the monotonic time `until`, and add them, or a remark, to the answer."""
    missing = node_packages.missing_of(packages)
    problem = "" if check_mode or not missing else node_packages.install_packages(missing, until - time.monotonic())
    answer["remarks"] += [problem] if problem else []
    answer["changed"] |= bool(missing and not problem)
    texts = [f"{name} would be installed" if check_mode and name in missing else name for name in packages]
    answer["summary"] = ", ".join([answer["summary"], *([] if problem else texts)])


class NodeEnvironment:
    """The environment for a node. `wheels`: SHA-256 and bytes of an archive of wheels, and its URL with the authority
    of its certificate; empty for packages from `index`."""

    def __init__(
        self, directory: str, vendor: str, index: str, timeout_seconds: float, wheels: Mapping[str, Any], **spec: Any
    ) -> None:
        facts = {"vendor": "cpu", "count": 0} if vendor == "cpu" else collect.collect()["accelerator"]
        if facts["vendor"] not in BUILDS:
            raise NodeError(f"PyTorch for {facts['vendor']} is on no package index: nothing was changed")
        self.spec = EnvironmentSpec(facts["vendor"], facts["count"] > 0, **spec)
        self.index, self.wheels, self.base = index, wheels, base_directory(directory)
        self.folder = self.base / "environments"
        self.path, self.scratch = self.folder / self.spec.digest, self.folder / "scratch"
        self.link = self.base / ENVIRONMENT
        self.stamp = self.path / "complete"
        self.until = time.monotonic() + timeout_seconds

    def install(self, check_mode: bool) -> dict[str, Any]:
        """Make sure that the Python environment is complete, works and is in use. Returns the step's answer."""
        answer: dict[str, Any] = {}
        with contextlib.suppress(NodeError):  # a broken environment is made again
            answer = self.try_imports(MODULES[:1], IMPORT_SECONDS) if self.stamp.exists() else {}
        if answer and self.is_linked():
            return {**answer, "changed": False}
        if check_mode:
            return {"changed": True, "summary": f"{self.spec.torch} and others would be installed", "remarks": []}
        make_private(self.base)
        make_private(self.folder)
        with installing(self.folder):
            answer = answer or self.make()
            self.use()
        return {**answer, "changed": True}

    def is_linked(self):
        return self.link.resolve() == self.path.resolve()

    def make(self):
        """Make the environment, and return the answer. After a failure, downloads from an index stay for a retry."""
        needed = NEEDED_BYTES[self.spec.vendor] + UNPACKED * self.wheels.get("bytes", 0)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            what = f"PyTorch for {self.spec.vendor} and the other packages need up to {needed / 1e9:.1f} GB"
            raise NodeError(f"disk full: {self.folder} has {free / 1e9:.1f} GB free, and {what}")
        if self.is_linked():  # it failed its trial, but a run may use it
            with idle(self.base):
                self.link.unlink()
        self.stamp.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        make_private(self.scratch)
        write_private(self.scratch / "locked.txt", self.spec.locked.encode())
        if self.wheels:
            self.unpack()
        uv, names = self.uv(), [path.name for path in self.scratch.glob("*.whl")]
        folders = {"UV_CACHE_DIR": self.folder / "cache", "UV_PYTHON_INSTALL_DIR": self.folder / "pythons"}
        os.environ.update({name: str(path) for name, path in folders.items()})
        wheel = self.spec.torch_wheel(names) if self.wheels else ""
        for words in self.spec.commands(self.path, self.scratch, self.index, wheel):
            output_of(f"uv {words[0]}", [uv, *words], self.until - time.monotonic())
        answer = self.try_imports(MODULES, self.until - time.monotonic())
        write_private(self.stamp, answer["summary"].encode())
        for path in (self.scratch, self.folder / "cache"):
            shutil.rmtree(path, ignore_errors=True)
        return answer

    def unpack(self):
        """Download the archive of wheels, which must be the controller's, into the scratch folder."""
        archive = self.scratch / "wheels.tar"
        web_files.download(self.wheels["url"], archive, self.until, self.wheels["authority"])
        if sha256_of(archive) != self.wheels["sha256"]:
            raise NodeError("hash mismatch: the archive of wheels that came is not the controller's")
        extract(archive, self.scratch)
        archive.unlink()

    def uv(self):
        """Return the path of uv, from its wheel, whose hash is locked."""
        path = next((path for path in self.scratch.glob("uv-*") if re.fullmatch(self.spec.uv_wheel, path.name)), None)
        if not path:
            path = self.scratch / "uv.zip"
            if self.wheels:
                raise NodeError(
                    f"no wheel of uv for {platform.machine()} in the archive of wheels: {self.spec.uv_wheel}"
                )
            url = web_files.find_file(f"{self.index.rstrip('/')}/uv/", self.spec.uv_wheel)
            web_files.download(url, path, self.until)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in self.spec.locked:
            raise NodeError(f"hash mismatch: the wheel of uv has SHA-256 {digest}, which is not locked")
        program = self.scratch / "uv"
        with zipfile.ZipFile(path) as wheel:
            program.write_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith("/scripts/uv"))))
        program.chmod(0o700)
        return str(program)

    def try_imports(self, modules, seconds):
        """Import modules in the environment. Returns the answer. Raises NodeError."""
        command = [str(self.path / "bin/python"), "-c", TRIAL, *modules]
        tried = json.loads(output_of("the import of PyTorch", command, seconds).rstrip().rpartition("\n")[2])
        is_blind = not tried.pop("sees_gpu") and self.spec.has_driver
        remark = "PyTorch sees no GPU: update the driver, or set environment_torch_backend to a build for it"
        summary = ", ".join(f"{name} {version}" for name, version in tried.items())
        return {"summary": summary, "remarks": [remark] if is_blind else []}

    def use(self):
        """Link the environment and remove all others, unless a run is at work, which may use the previous one."""
        with idle(self.base):
            draft = self.base / f"{ENVIRONMENT}.new"
            draft.unlink(missing_ok=True)
            draft.symlink_to(Path(self.folder.name, self.path.name))
            draft.replace(self.link)
            for path in self.folder.iterdir():
                if path.is_dir() and path not in (self.path, self.folder / "pythons"):
                    shutil.rmtree(path)


@contextlib.contextmanager
def idle(base):
    """Hold the lock of `base` while no run is at work in it. Raises NodeError if one is."""
    with one_at_once(base):
        for run, holder in runs_at_work(base, "").items():
            raise NodeError(node_launch.BUSY.format(run=run, holder=holder))
        yield


@contextlib.contextmanager
def installing(folder):
    """Hold the lock of the environments in `folder`. Raises NodeError if another installation holds it."""
    with (folder / "lock").open("w") as stream:
        if not take_lock(stream.fileno(), 0):
            raise NodeError("another `make environment` is installing on this node")
        yield


def output_of(name, command, seconds):
    """Run a command, with `name` in messages, for at most `seconds`; return its output. Raises NodeError."""
    done = run_bounded(name, command, max(0.1, seconds))
    if not done.ok:
        raise NodeError(
            f"{name} failed: {' '.join(done.stderr.split())[-1500:] if done.returncode else done.complaint}"
        )
    return done.stdout


def remove(base, check_mode):
    """Remove all Python environments of a node. Returns whether there were any."""
    folder = base / "environments"
    if not folder.is_dir() or check_mode:
        return folder.is_dir()
    with idle(base), installing(folder):
        (base / ENVIRONMENT).unlink(missing_ok=True)
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # not empty
        base.rmdir()
    return True
