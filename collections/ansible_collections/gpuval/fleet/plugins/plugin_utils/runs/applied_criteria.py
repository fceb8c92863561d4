"""Keeps in a run's folder what it is judged by: criteria, baseline, and how groups of nodes compared before."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..core import extensions
from ..core.escape import safe_name
from . import folder as run_folder

CRITERIA_FILE = "run_criteria.json"
#: Folder below a run's .state to which its criteria and baseline are written as files.
JUDGING = "judging"
#: Max bytes of the criteria and baseline that a run keeps.
MAX_JUDGING_BYTES = 64 << 20
#: Max number of earlier runs to search for the one that a narrowed run is a part of.
MAX_RUNS_BEFORE = 50
#: Lists the criteria files of stages from gpuval_extensions, which another controller may not have.
_stage_files = partial(extensions.files, "stages", "files/criteria*.yml", shipped=False)


def standings(folder: run_folder.RunFolder) -> list[dict[str, Any]]:
    """How groups of nodes compared when the run, or the run that it is a part of, was judged before."""
    return list(kept_criteria(folder).get("standings", ()))


def kept_criteria(folder: run_folder.RunFolder) -> dict[str, Any]:
    """The document of criteria, baseline and standings in the run's folder; empty without one. Raises RunError."""
    remedy = "remove it, and give the run's gpuval_criteria and gpuval_baseline again"
    return run_folder.read_kept(folder.criteria_file, remedy) or {}


def standings_before(results: Path, run: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """How groups of nodes compared in the newest run in ``results`` with the profile and all nodes of ``run``, and the
    id of the run that ``run`` is then a part of. Empty without one."""
    newest = (folder for folder in run_folder.runs_of(results, opened=True) if folder.path.name != run["run_id"])
    for folder in islice(newest, MAX_RUNS_BEFORE):
        with suppress(run_folder.RunError):  # skip damaged runs
            before = folder.read_run()
            if before["profile"] == run["profile"] and run["nodes"].keys() <= before["nodes"].keys():
                earlier_standings = standings(folder)
                if earlier_standings:
                    return earlier_standings, before.get("part_of") or before["run_id"]
    return [], ""


def keep_criteria(
    folder: run_folder.RunFolder, criteria: Sequence[str], baseline: str, standings: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Copy criteria and baseline (paths) into the run's folder, since the files may change; what is empty here stays as
    it was there. Raises OSError for an unreadable file, RunError for files that are too large to keep."""
    path, document = folder.criteria_file, document_of(folder, criteria, baseline)
    if kept_standings := list(standings) or kept_criteria(folder).get("standings", []):
        document["standings"] = kept_standings
    data = (json.dumps(document) + "\n").encode()
    if len(data) > MAX_JUDGING_BYTES:
        raise run_folder.RunError(
            f"gpuval_criteria and gpuval_baseline take {len(data):,} bytes, a run keeps {MAX_JUDGING_BYTES:,} of them: "
            "make the baseline of fewer figures"
        )
    if not path.exists() or path.read_bytes() != data:
        run_folder.write_bytes(path, data)


def document_of(folder: run_folder.RunFolder, criteria: Sequence[str], baseline: str) -> dict[str, Any]:
    """The document gpuval.judging/1 with the text of the criteria and baseline files by which the run is judged. Those
    kept in its folder count where ``criteria`` (paths) or ``baseline`` (path) is empty."""
    kept_document = {"criteria": [], "baseline": None, **kept_criteria(folder)}
    criteria_paths = [*_stage_files(), *map(Path, criteria)] if criteria or not kept_document["criteria"] else []
    return {
        "schema": "gpuval.judging/1",
        "criteria": [_file(path) for path in criteria_paths] or kept_document["criteria"],
        "baseline": _file(Path(baseline)) if baseline else kept_document["baseline"],
    }


def _file(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    return {"name": path.name, "sha256": hashlib.sha256(data).hexdigest(), "text": data.decode()}


def judged_by(
    folder: run_folder.RunFolder, criteria: Sequence[str], baseline: str
) -> tuple[Sequence[str], str, list[str]]:
    """Paths of criteria and baseline by which to judge a run, and remarks on differences from an earlier judgement.
    What the run keeps from that counts where ``criteria`` or ``baseline`` is empty."""
    document = kept_criteria(folder)
    if not document:
        remark = (
            "the store has no criteria of the run beside the shipped ones: if its controller had gpuval_criteria or "
            "gpuval_baseline, set them here too"
        )
        return criteria, baseline, [remark] if folder.is_imported and not (criteria or baseline) else []
    judged_digests = [file["sha256"] for file in document["criteria"]]
    remarks = []
    if criteria:
        if [_digest(file) for file in [*map(str, _stage_files()), *criteria]] != judged_digests:
            remarks.append("gpuval_criteria differ from those that judged the run before: so may the verdict")
    else:
        criteria = write_criteria(document, folder.state / JUDGING)
    if baseline:
        if document["baseline"] is None or _digest(baseline) != document["baseline"]["sha256"]:
            remarks.append("gpuval_baseline differs from the one that judged the run before: so may the verdict")
    elif document["baseline"]:
        baseline = write_baseline(document, folder.state / JUDGING)
    return criteria, baseline, remarks


def write_criteria(document: Mapping[str, Any], target: Path) -> list[str]:
    """Write the criteria files in a ``gpuval.judging/1`` document into the folder ``target``. Returns their paths."""
    return [_written(target, f"{number}-", file) for number, file in enumerate(document["criteria"], start=1)]


def write_baseline(document: Mapping[str, Any], target: Path) -> str:
    """Write the baseline of a ``gpuval.judging/1`` document into the folder ``target``. Returns its path, or empty."""
    return _written(target, "", document["baseline"]) if document["baseline"] else ""


def _written(target: Path, number: str, file: Mapping[str, str]) -> str:
    path = target / f"{number}{safe_name(file['name'])}"
    run_folder.write_bytes(path, file["text"].encode())
    return str(path)


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
