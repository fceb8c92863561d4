"""The gang document, ``results/<inventory>/<run_id>/gangs/gangs.json``: members of multi-node tests, rounds, findings.

A restarted controller resumes from it, and the verdict reads it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from ..core import schemas
from ..core.escape import one_line
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from . import fabrics

SCHEMA = "gpuval.gangs/1"
FOLDER = "gangs"
FILE = "gangs.json"
#: Kinds of rounds: the gangs, the search for bad nodes, and the gangs again without bad nodes.
GANGS, SEARCH, AGAIN = "gangs", "search", "again"
#: The stages in which a node's report shows what a search found: over the network, and over NVLink.
FABRIC, FABRIC_NVLINK = SEARCH_STAGES = ("fabric", "fabric_nvlink")
#: The search's class for a node that is certainly bad.
BAD = "bad"
#: Prefix of the reason if an error on the controller ended the gangs.
ABORTED = "the gangs were aborted"


def key_of(run: Mapping[str, Any]) -> str:
    """The object key of a run's gang document in the store."""
    return f"{run['folder']}/{FOLDER}/{FILE}"


def read(run: RunFolder) -> dict[str, Any] | None:
    """Read the gang document; None if the run has no gangs so far. Raises RunError."""
    try:
        document = run_folder.read_json(run.gangs_file)
        schemas.validate("gangs", document, what="it")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise run.damaged(run.gangs_file, error) from error
    problem = problem_of(document, run.read_run()["nodes"])
    if problem:
        raise run_folder.RunError(f"{run.gangs_file}: {problem}: restore the file, or validate again as a new run")
    return document


def problem_of(document: Mapping[str, Any], nodes: Collection[str]) -> str:
    """A mistake that the schema cannot express, else empty: nodes outside the run or gang, or left out by a search.

    Names of nodes become paths, so names from outside the run must be refused.
    """
    gangs = {name: [member["node"] for member in members] for name, members in document["gangs"].items()}
    members = {node for listed in gangs.values() for node in listed}
    cliques = fabrics.cliques(document["gangs"])
    searched = gangs | {name: [member["node"] for member in group] for name, group in cliques.items()}
    listings = [*document["searches"].items(), *document["findings"].items()]
    for where, listed, allowed in (
        ("gangs", chain(*gangs.values()), nodes),
        *((where, document[where], nodes) for where in ("left_out", "alone")),
        *((f"round {item['name']}", chain(*item["gangs"].values()), members) for item in document["rounds"]),
        *((f"the search of {name}", one["nodes"], frozenset(searched.get(name, ()))) for name, one in listings),
    ):
        for node, count in Counter(iter(listed)).items():
            if count > 1 or node not in allowed:
                return one_line(f"{where}: {node} {'is listed twice' if count > 1 else 'does not belong to it'}")
    lacking = (name for name, one in listings if name not in searched or len(one["nodes"]) < len(searched[name]))
    return next((f"the search of {name} lacks nodes of its gang" for name in lacking), "")


def write(run: RunFolder, document: Mapping[str, Any]) -> None:
    schemas.validate("gangs", document, what=FILE)
    run_folder.write_json(run.gangs_file, document)


def round_folder(run: RunFolder, name: str) -> RunFolder:
    """The folder of a gang's round, which is a run of its own within the run's folder."""
    return RunFolder(run.path / FOLDER / name)


def stage_of(entry: Mapping[str, Any]) -> str:
    """The stage of a search, from its entry in ``rounds`` or ``findings`` of the gang document."""
    return str(entry.get("stage", FABRIC))


def bad_nodes(document: Mapping[str, Any] | None) -> set[str]:
    """Names of the nodes that a search found bad."""
    findings = (document or {}).get("findings", {}).values()
    return {node for found in findings for node, known in found["nodes"].items() if known == BAD}


def known_folders(run: RunFolder) -> list[RunFolder]:
    """Folders of all rounds of a run's gangs on disk, even without an entry in the gang document: to clean them."""
    return [RunFolder(path) for path in sorted((run.path / FOLDER).glob("*")) if path.is_dir()]


def round_folders(run: RunFolder, document: Mapping[str, Any] | None) -> list[RunFolder]:
    """Folders of the rounds in the gang document that have started, in order."""
    folders = (round_folder(run, item["name"]) for item in (document or {}).get("rounds", ()))
    return [folder for folder in folders if folder.run_file.exists()]
