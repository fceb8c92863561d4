"""What became of a run's gangs, kept in ``results/<run_id>/gangs/gangs.json``: who works with whom, in which rounds,
what the search found. A controller that is started again goes on by it, and the verdict reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

SCHEMA = "gpuval.gangs/1"
FOLDER = "gangs"
FILE = "gangs.json"
#: Kinds of rounds: the gangs themselves, the search, the gangs again without those that were found bad.
GANGS, SEARCH, AGAIN = "gangs", "search", "again"
#: The stage of a node that a search has looked at.
FABRIC = "fabric"
#: What the search calls a node of which it is certain.
BAD = "bad"
#: What begins the reason of nodes whose gangs ended by an error of the controller.
BROKE_OFF = "the gangs broke off"


def folder_of(run: RunFolder) -> Path:
    return run.path / FOLDER


def file_of(run: RunFolder) -> Path:
    return folder_of(run) / FILE


def key_of(run: Mapping[str, Any]) -> str:
    """The document's key in the store."""
    return f"{run['folder']}/{FOLDER}/{FILE}"


def read(run: RunFolder) -> dict[str, Any] | None:
    """The document; None for a run that has formed no gangs yet. Raises schemas.Invalid, or RunError."""
    try:
        document = run_folder.read_json(file_of(run))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise run_folder.RunError(f"{file_of(run)} is damaged: {error}") from error
    schemas.validate("gangs", document, what=str(file_of(run)))
    return document


def write(run: RunFolder, document: Mapping[str, Any]) -> None:
    schemas.validate("gangs", document, what=FILE)
    run_folder.write_json(file_of(run), document)


def round_folder(run: RunFolder, name: str) -> RunFolder:
    """A round is a run of its own below the run."""
    return RunFolder(folder_of(run) / name)


def bad_nodes(document: Mapping[str, Any] | None) -> set[str]:
    """Those that a search found bad."""
    findings = (document or {}).get("findings", {}).values()
    return {node for found in findings for node, known in found["nodes"].items() if known == BAD}


def known_folders(run: RunFolder) -> list[RunFolder]:
    """Those of all rounds that there are, whatever became of the document: what is cleaned is what is there."""
    return [RunFolder(path) for path in sorted(folder_of(run).glob("*")) if path.is_dir()]


def round_folders(run: RunFolder, document: Mapping[str, Any] | None) -> list[RunFolder]:
    """Those of all rounds that have begun, in their order."""
    folders = (round_folder(run, item["name"]) for item in (document or {}).get("rounds", ()))
    return [folder for folder in folders if folder.run_file.exists()]
