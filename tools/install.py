#!/usr/bin/env python3
"""Make an environment, if it is not ready, install requirements/NAME.txt into it, and set a mark in it.

    python3 tools/install.py .venv-node/.ready node

Commands that need the same environment wait for each other. Locked packages come by hash. uv installs them, from the
package index itself, into the environment; pip does where uv cannot be had, or fails. Both use the site's indexes: uv
gets what pip's configuration names, pip what uv's variables name.

PyTorch is not locked, since its build depends on the machine:

* no GPU: the build for CPUs (VERSION+cpu), from the site's indexes, else from PyTorch's. Never CUDA, which is 3 GB.
* NVIDIA: the build of the site's indexes; on PyPI that is CUDA.
* AMD: the build for ROCm, which uv chooses from PyTorch's indexes.
* UV_TORCH_BACKEND=cpu, cu130, rocm7.2, auto...: that build, from PyTorch's indexes.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import pci  # noqa: E402
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree  # noqa: E402
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import files  # noqa: E402

FOLDER = ROOT / "requirements"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: Options of pip that name sources of packages, and the variables with which uv names the same, the usual one first.
SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
}
#: The same of options that say how to reach them.
CONNECTION = {
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("ALL_PROXY",),
}
#: pip compiles and compares all indexes; uv does both when asked.
UV_AS_PIP = {
    "UV_COMPILE_BYTECODE": "1",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    "UV_PYTHON_DOWNLOADS": "never",
}
PROGRESS_SECONDS = 20
LOCK_SECONDS = 3600


class InstallError(Exception):
    """The environment cannot be made; the message says what to do. output: of the programs that failed."""

    def __init__(self, message: str, output: str = ""):
        super().__init__(message)
        self.output = output


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install requirements/NAME.txt into an environment.")
    parser.add_argument("mark", type=Path, help="file in the environment's folder")
    parser.add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)
    mark, environment, begun = options.mark, options.mark.parent, time.time()
    say(f"Installing requirements/{options.name}.txt into {environment}")
    late = InstallError("another command has been making it for an hour: end that one")
    try:
        with files.locked(environment.with_name(f"{environment.name}.lock"), LOCK_SECONDS, late):
            if not mark.exists() or mark.stat().st_mtime < begun:  # else another command has installed the same
                install(environment, options.name)
                mark.touch()
    except (InstallError, OSError) as error:
        print(f"{getattr(error, 'output', '')}\n{environment} is not ready: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"  {environment}: done after {time.time() - begun:.0f} s")
    return 0


def install(environment: Path, name: str) -> None:
    """Make the environment unless it is marked ready and its Python is there, and install. Raises InstallError."""
    make = [sys.executable, "-m", "venv", "--clear", str(environment)]  # what a cut-off installation left of it goes
    is_made = (environment / ".ready").exists() and (environment / "bin/python").exists()
    if not is_made and (output := execute(make, f"{environment}: venv")):
        raise InstallError("Python could not make it (on Debian and Ubuntu: apt install python3-venv)", output)
    installer = Installer(environment)
    locked = FOLDER / "locked" / f"{name}.txt"
    if output := installer.install("--require-hashes", "--no-deps", "-r", str(locked)):
        raise InstallError(f"{locked.relative_to(ROOT)} could not be installed, see above", output)
    if version := torch_version(name):
        installer.install_torch(version, FOLDER / f"{name}.txt")


class Installer:
    """uv, where it can be had, and pip of an environment, with the site's settings."""

    def __init__(self, environment: Path):
        """environment: folder with Python and pip; uv is installed into it."""
        self._environment = environment
        python = str(environment / "bin/python")
        listing = subprocess.run(
            [python, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=300, check=False
        )
        self._settings = site_settings(listing.stdout, os.environ)
        self._variables = {**UV_AS_PIP, **variables(self._settings, os.environ)}
        self._programs = {"pip": [python, "-m", "pip", "install", "--quiet"]}
        by_hash = ["--only-binary", ":all:", "--require-hashes", "--no-deps", "-r", str(FOLDER / "locked/uv.txt")]
        if refusal := execute([*self._programs["pip"], *by_hash], f"{environment}: pip", self._variables):
            say(f"  {environment}: no uv ({refusal.splitlines()[-1]}): pip installs, which takes minutes")
        else:
            uv = [str(environment / "bin/uv"), "pip", "install", "--quiet", "--python", python]
            uv += ["--no-index"] if "no-index" in self._settings else []
            self._programs = {"uv": uv, **self._programs}

    def install(self, *arguments: str) -> str:
        """Install by uv, else by pip. Returns the output of those that failed, empty when one succeeded."""
        outputs = []
        for name, program in self._programs.items():
            if name == "pip" and "--torch-backend" in arguments:
                output = "it needs uv"
            else:
                output = execute([*program, *arguments], f"{self._environment}: {name}", self._variables)
            if not output:
                return ""
            if name == "uv":
                say(f"  {self._environment}: uv failed ({output.splitlines()[-1].strip()}): pip tries")
            outputs.append(output)
        return "\n".join(outputs)

    def install_torch(self, version: str, requirements: Path) -> None:
        """Install the build for this machine. Raises InstallError."""
        vendor, backend = gpu_vendor(Tree()), os.environ.get("UV_TORCH_BACKEND", "")
        has_sources = bool(SOURCES.keys() & self._settings.keys())
        outputs = []
        for arguments in torch_attempts(version, str(requirements), vendor, backend, has_sources):
            output = self.install(*arguments)
            if not output:
                return
            outputs.append(output)
        raise InstallError(
            f"PyTorch {version} for {backend or vendor or 'a machine without GPUs'} could not be installed, see above: "
            "name an index that has it (PIP_EXTRA_INDEX_URL=URL) or another build (UV_TORCH_BACKEND=cpu, cu130, ...)",
            "\n".join(outputs),
        )


def torch_version(name: str) -> str:
    """The pinned version of PyTorch in requirements/NAME.txt and the files that it names; empty without."""
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        version = torch_version(line[3:].removesuffix(".txt")) if line.startswith("-r ") else ""
        if version or line.startswith("torch=="):
            return version or line.removeprefix("torch==")
    return ""


def torch_attempts(
    version: str, requirements: str, vendor: str, backend: str, has_sources: bool
) -> Sequence[Sequence[str]]:
    """The ways to get PyTorch, to be tried in this order: arguments of `pip install`.

    requirements: file that names it. vendor: of this machine's GPUs, empty without. backend: UV_TORCH_BACKEND.
    has_sources: the site names indexes or folders of its own.
    """
    if backend or vendor == "amd":  # pip would take PyPI's build, which is for CUDA
        return [("--torch-backend", backend or "auto", "-r", requirements)]
    if vendor == "nvidia":
        return [("-r", requirements)]
    package = ("--no-deps", f"torch=={version}+cpu")  # what it depends on is locked
    return [package] * has_sources + [("--index-url", CPU_INDEX, *package)]


def gpu_vendor(tree: Tree) -> str:
    """nvidia or amd, if the machine has such GPUs, with or without a driver; else empty: PyTorch's CPU build is right.

    Gaudi's PyTorch is on no index.
    """
    vendors = {device.vendor for device in pci.accelerators(tree) if device.certain}
    if pci.has_nvidia_outside_pci(tree):
        vendors.add("nvidia")
    return next((vendor for vendor in ("nvidia", "amd") if vendor in vendors), "")


def site_settings(listing: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The site's settings by option of pip: from pip's configuration, else from variables of uv.

    listing: output of `pip config list`. Several values of an option have spaces between them, as in pip's own.
    """
    settings = {}
    for option, names in SOURCES.items():
        if value := next((environ[name] for name in names if environ.get(name)), ""):
            # uv separates folders by commas, and takes names for indexes: NAME=URL
            settings[option] = re.sub(
                r"(?<!\S)[\w-]+=", "", value.replace(",", " ") if option == "find-links" else value
            )
    options = (*SOURCES, *CONNECTION, "no-index")
    for section in ("global", "install", ":env:"):  # the last one has precedence
        for line in listing.splitlines():
            name, _, value = line.partition("=")
            if name.removeprefix(f"{section}.") in options:
                settings[name.removeprefix(f"{section}.")] = " ".join(str(ast.literal_eval(value)).split())
    return {option: value for option, value in settings.items() if value not in ("", "0", "false")}


def variables(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that give the site's settings to the tool that lacks them; what is set in environ stays."""
    lacking = {}
    for option, names in (SOURCES | CONNECTION).items():
        if option in settings:
            lacking[f"PIP_{option.upper().replace('-', '_')}"] = settings[option]
            if not any(environ.get(name) for name in names):
                lacking[names[0]] = settings[option].replace(" ", "," if option == "find-links" else " ")
    return {**lacking, **environ}


def execute(command: Sequence[str], subject: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a command, with a line every 20 s to show that it works. Returns its output if it fails, else empty."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        with process:
            while True:
                try:
                    if process.wait(PROGRESS_SECONDS) == 0:
                        return ""
                    break
                except subprocess.TimeoutExpired:
                    say(f"  {subject} works, {time.monotonic() - begun:.0f} s")
        output.seek(0)
        return output.read().strip() or f"{command[0]} failed with status {process.returncode}"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
