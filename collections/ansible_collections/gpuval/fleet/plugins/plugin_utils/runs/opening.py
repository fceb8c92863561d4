"""Decides which run a validation opens or resumes, and adds new nodes to an existing run."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..core import stages
from ..core.stage_traits import traits_of
from ..core.text import some_of
from .folder import LATEST, NEW, RunError, check_run_id, is_in_time, is_open, is_unreported, read_object, runs_of

#: Version of gpuval that wrote a run.json without a version.
FIRST_VERSION = "1.0"


def new_run_id() -> str:
    return datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def choose_run_id(
    results: Path,
    requested: str,
    nodes: Mapping[str, Any],
    profile: str,
    narrowed_by: list[str],
    inventory: Sequence[str] = (),
    digests: Mapping[str, str] | None = None,
    places: Sequence[str] = (),
) -> str:
    """The id of the run to open or resume: `requested` (a new id for `new`), or if empty the inventory's newest run
    without a report that expects the same of the same `nodes`, {name: entry of run.json}; else a new id. `places`:
    names of cluster and namespace; `digests`: {extension: digest of its content}."""
    if requested == LATEST:
        requested = next((known.path.name for known in runs_of(results, inventory, opened=True)), NEW)
    if requested and requested != NEW:
        check_run_id(requested)
        return requested
    if requested == NEW:
        return new_run_id()
    for number, folder in enumerate(runs_of(results, inventory, opened=True)):
        run_document = read_object(folder.run_file)
        if not _is_placed(run_document, places):
            continue
        kept_choice = tuple(run_document.get(key) for key in ("profile", "narrowed_by", "extensions"))
        if kept_choice != (profile, narrowed_by, digests or None):
            continue
        try:
            run = folder.read_run()
            # without nodes that joined during the run, and that the inventory does not list
            before = {name: node for name, node in run["nodes"].items() if name in nodes or not node.get("joined_at")}
            if _asked(before) != _asked(nodes):
                continue
            # an older run that failed before a node began has nothing to resume
            if is_open(run) and is_in_time(folder, run) and (number == 0 or not folder.seen().never_started):
                return folder.path.name
            if not is_open(run):  # runs of these nodes before a reported one are out of date
                break
        except (RunError, ValueError):
            continue
    return new_run_id()


def ensure_placed(run: Mapping[str, Any], places: Sequence[str]) -> None:
    """Raise RunError if a run began in another namespace or cluster, whose nodes may have the same names. `places`:
    names of this cluster and namespace, the most exact one first."""
    if not _is_placed(run, places):
        raise RunError(
            f"run {run['run_id']} is placed in {run['origin']['namespace'] or 'SSH hosts'}, not {places[0]}: resume it "
            "with the settings that it had, or give another gpuval_run_id, or none"
        )


def _is_placed(run: Mapping[str, Any], places: Sequence[str]) -> bool:
    """Whether a run began in one of these clusters and namespaces; true if it has no origin, or without `places`."""
    namespace = (run.get("origin") or {}).get("namespace")
    return not places or namespace is None or namespace in places


def _asked(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{node: what run.json expects of it}, without labels and the time when the node joined the run."""
    return {
        name: {key: value for key, value in node.items() if key not in ("joined_at", "labels")}
        for name, node in nodes.items()
    }


def merge(
    run: dict[str, Any] | None, request: dict[str, Any], *, gangs_formed: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Add to `run` the nodes of `request`, a new run document, that it lacks; without a `run` return the request.
    Returns run and added names. Nodes that join one node bring multi-node stages. Raises RunError for an ended run that
    none joins, since its evidence is old, if multi-node groups exist, or if profile, extensions or version differ."""
    if run is None:
        return request, sorted(request["nodes"])
    if run["profile"] != request["profile"]:
        raise RunError(
            f"run {run['run_id']} has the profile {run['profile']}: give another gpuval_run_id for {request['profile']}"
        )
    if run.get("extensions") != request.get("extensions"):
        raise RunError(
            f"run {run['run_id']} was opened with other content of gpuval_extensions: restore that, or give another "
            "gpuval_run_id, or none"
        )
    joined = sorted(set(request["nodes"]) - set(run["nodes"]))
    if not joined and run["finished_at"] is not None and not is_unreported(run):
        raise RunError(
            f"run {run['run_id']} ended at {run['finished_at']}: `make report` shows its verdict; to validate again, "
            "give another gpuval_run_id, or none"
        )
    version = run.get("version", FIRST_VERSION)
    if version.partition(".")[0] != request.get("version", FIRST_VERSION).partition(".")[0]:
        raise RunError(
            f"run {run['run_id']} was begun by gpuval {version}, and {request['version']} does not resume it: run "
            "`make report`, which judges what its nodes did, then `make clean`, and validate again"
        )
    if not joined:
        return run, []
    if gangs_formed:
        raise RunError(
            f"run {run['run_id']} has formed its gangs, and {some_of(joined)} would be in none: validate all nodes "
            "that are to work together under another gpuval_run_id, or none"
        )
    new = {name: {**request["nodes"][name], "joined_at": request["created_at"]} for name in joined}
    nodes = {**run["nodes"], **new}
    # With a second node, a run that had one gets multi-node stages.
    of_nodes = (node["gang_stages"] for node in nodes.values() if node.get("gang_stages"))
    gang_stages = next(of_nodes, None) or run.get("gang_stages") or request.get("gang_stages")
    if gang_stages:
        nodes = {name: {**node, "gang_stages": node.get("gang_stages") or gang_stages} for name, node in nodes.items()}
    # --limit leaves out no node that this run expects; other reasons leave out stages of joining nodes
    made_good = {"limit", "stages"} if gang_stages and request.get("gang_stages") else {"limit"}
    narrowed = sorted({*run["narrowed_by"], *(set(request["narrowed_by"]) - made_good)})
    return {**run, "nodes": nodes, "narrowed_by": narrowed, "finished_at": None}, joined


def shortened(names: Iterable[str], task_vars: Mapping[str, Any], template: Callable[[str], Any]) -> list[str]:
    """Settings that make stages shorter than their profile does, so that PASS proves less: ``training_seconds 20 of
    300``, ``training_steps 10``. ``task_vars``: variables of the play; ``template``: evaluates a Jinja template."""
    shortened_settings = []
    usual = stages.variables(str(template("{{ gpuval_profile | default('') }}")))
    for stage in names:
        name = f"{stage}_seconds"
        default = usual.get(name)
        if default is not None and name in task_vars:
            seconds, of_profile = _number(template(f"{{{{ {name} }}}}")), _number(template(str(default)))
            if 0 < seconds < of_profile:
                shortened_settings.append(f"{name} {seconds:g} of {of_profile:g}")
        for limit in traits_of(stage).shortened_by:
            count = _number(template(f"{{{{ {limit} }}}}")) if limit in task_vars else 0
            if count > 0:
                shortened_settings.append(f"{limit} {count:g}")
    return shortened_settings


def _number(value: Any) -> float:
    """A setting's value as a number; 0 if it is none, which the check of settings reports."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
