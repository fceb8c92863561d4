"""Container engines and what lets containers see GPUs."""

from __future__ import annotations

import json
import re
from typing import Any, Optional

from .tools import Run
from .tree import Tree

#: Container engines that gpuval runs stages with, the one to prefer first.
ENGINES = ("docker", "podman")
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?[\w.+~-]*)")


def facts(tree: Tree, run: Run) -> dict[str, Any]:
    """Versions by engine (None when absent); docker also says whether its daemon answers this user."""
    return {
        "docker": _docker(run),
        "podman": _version(run, "podman", "--version"),
        "containerd": _version(run, "containerd", "--version"),
        "nvidia_container_toolkit": _version(run, "nvidia-ctk", "--version"),
        "cdi_specs": [
            f"{directory}/{name}"
            for directory in CDI_DIRECTORIES
            for name in tree.entries(directory)
            if name.endswith((".json", ".yaml", ".yml"))
        ],
    }


def plain(reference: str) -> str:
    """An image's reference without what engines add to it; with the tag that they mean where there is none."""
    for prefix in ("docker.io/", "library/", "localhost/"):
        reference = reference.removeprefix(prefix)
    last = reference.rpartition("/")[2]
    return reference if ":" in last or "@" in last else f"{reference}:latest"


def _docker(run: Run) -> Optional[dict[str, Any]]:
    result = run("docker", "version", "--format", "{{json .}}")
    if result.missing:
        return None
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        answer = {}
    client, server = (answer.get(part) or {} for part in ("Client", "Server"))
    usable = result.ok and bool(server.get("Version"))
    return {
        "client_version": client.get("Version"),
        "server_version": server.get("Version"),
        "usable": usable,
        "problem": None if usable else result.complaint,
    }


def _version(run: Run, tool: str, argument: str) -> Optional[str]:
    result = run(tool, argument)
    match = _VERSION.search(result.stdout) if result.ok else None
    return match.group(1) if match else None
