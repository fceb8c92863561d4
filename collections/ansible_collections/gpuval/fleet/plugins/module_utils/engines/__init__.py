"""Container engines: each is a class in a file of this folder, or in an extension's folder `engines`. Also packed into
the runner as `gpuval_node`, with the engines of the run's extensions."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from ..hardware.tools import Run
from ..hardware.tree import Tree
from ..visible_text import one_line
from . import docker, podman  # noqa: F401 - Ansible packs for a module only what is imported by name
from ._engine import CDI_DIRECTORIES, PROBE_SECONDS, ContainerEngine, EngineError, parse_json, remedy_of, version_of


@cache
def engine_types() -> dict[str, type[ContainerEngine]]:
    """Return the classes of container engines by name, in the order in which the runtime ``auto`` tries them."""
    files = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    classes = {value for file in files for value in vars(file).values() if isinstance(value, type)}
    engines = (kind for kind in classes if issubclass(kind, ContainerEngine) and kind.name)
    return {engine.name: engine for engine in sorted(engines, key=lambda engine: (engine.order, engine.name))}


def facts(tree: Tree, run: Run) -> dict[str, Any]:
    """Return the facts on containers: the node's engines (None if not installed), and what gives GPUs to containers."""
    return {
        **{name: engine(name, run=run).installed() for name, engine in engine_types().items()},
        "containerd": version_of(run, "containerd", "--version"),
        "nvidia_container_toolkit": version_of(run, "nvidia-ctk", "--version"),
        "cdi_specs": [
            f"/{directory}/{name}"
            for directory in CDI_DIRECTORIES[:2]  # /run/cdi and /var/run/cdi are one folder
            for name in tree.entries(f"/{directory}")
            if name.endswith((".json", ".yaml", ".yml"))
        ],
    }


def plain(reference: str) -> str:
    """Return an image reference without prefixes that engines add, and with the default tag if it has none."""
    for prefix in ("docker.io/", "library/", "localhost/"):
        reference = reference.removeprefix(prefix)
    last = reference.rpartition("/")[2]
    return reference if ":" in last or "@" in last else f"{reference}:latest"


def engine_of(command: str) -> ContainerEngine:
    """Return the container engine with a command such as `podman`, without running it. Unknown ones count as docker."""
    return engine_types().get(command, ContainerEngine)(command)


def of_runtime(runtime: str) -> list[ContainerEngine]:
    """Return the container engines that a plan's runtime (`auto`, or an engine's name) allows, the preferred first."""
    return [engine_of(command) for command in (engine_types() if runtime == "auto" else (runtime,))]


def probe(engine: ContainerEngine) -> ContainerEngine:
    """Check that a container engine answers; return it with its facts and real type: podman may have docker's name.
    Raises ``EngineError`` saying what to do."""
    answer = engine.ask("info", "--format={{json .}}", limit=PROBE_SECONDS)
    printed = parse_json(answer.stdout)
    info = printed if isinstance(printed, dict) else {}
    for kind in (type(engine), *engine_types().values()):
        facts = kind.parse_info(info)
        if facts is not None:
            return kind(engine.command, facts)
    reason = one_line(answer.stderr or " ".join(info.get("ServerErrors") or []), 300)
    silence = f"{engine.command} does not answer: {reason or f'exit code {answer.returncode}'}"
    raise EngineError(silence + remedy_of(reason))


def select(runtime: str) -> ContainerEngine:
    """Return the container engine for a plan's runtime: the named one, for ``auto`` the first that answers. Raises
    ``EngineError`` saying why no engine can be used."""
    problems = []
    for engine in of_runtime(runtime):
        try:
            return probe(engine)
        except EngineError as error:
            problems.append(str(error))
    raise EngineError(
        f"no container engine: {'; '.join(problems)}. Install docker or podman on the node and let this user use it, "
        "or run without images (gpuval_runtime: host)"
    )
