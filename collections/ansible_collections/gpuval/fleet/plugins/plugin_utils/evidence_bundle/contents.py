"""The files of an evidence bundle: originals of the run's files that a judgement read, and the data files used.

run/        the run's folder as far as it is evidence, with report.json
data/       criteria, SKUs, failures and further data files of the collection
extensions/ the same of the extensions' stages and schedulers; no code
"""

import filecmp
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core import extensions
from ..core.errors import reason_of
from ..core.paths import COLLECTION
from ..gang import document as gang_document
from ..gang import judging
from ..runs.folder import RunFolder
from . import DATA, EXTENSIONS, RUN, EvidenceBundleError
from .verify_bundle import STATEMENT

FOLDER = "evidence_bundle"
#: Data files that a judgement may read, in the collection and in an extension.
DATA_FILES = (
    "failures/*.yml", "networks/*.yml", "skus/**/*.yml", "roles/*/files/*.yml", "roles/*/defaults/main.yml",
    "plugins/plugin_utils/*/failures.yml",
)  # fmt: skip
EXTENSION_FILES = ("stages/*/files/*.yml", "schedulers/*/failures.yml")
_STAGE_FILE = re.compile(r"[a-z][a-z0-9_]{0,31}(\.json|\.log|\.series\.json)", re.ASCII)
#: Files copied between two lines of progress.
FILES_PER_LINE = 5000


class BundleSources:
    """The files for the evidence bundle of a judged run. ``paths``: {path in the bundle: file to copy}."""

    def __init__(self, folder: RunFolder) -> None:
        """List the files. Raises EvidenceBundleError or RunError if one that a bundle needs is missing or damaged."""
        run = folder.read_run()
        judge_again = f"run `make report RUN={run['run_id']}`, then `make evidence RUN={run['run_id']}`"
        if run["finished_at"] is None:
            ends = "its own controller ends it by `make report`; then here " if folder.is_imported else ""
            raise EvidenceBundleError(f"run {run['run_id']} has not ended: {ends}{judge_again}")
        if not (folder.path / "report.json").is_file() or judging.kept_facts(folder) is None:
            raise EvidenceBundleError(f"run {run['run_id']} has no report of this release: {judge_again}")
        gangs = gang_document.read(folder)
        rounds = [(below, below.read_run()) for below in gang_document.round_folders(folder, gangs)]
        of_run = [path for below, of_round in [(folder, run), *rounds] for path in _files_of_run(below, of_round)]
        paths = {f"{RUN}/{path.relative_to(folder.path).as_posix()}": path for path in of_run}
        paths |= {f"{DATA}/{name}": path for name, path in _data_files(COLLECTION, DATA_FILES)}
        for extension in extensions.folders():
            named = _data_files(extension, EXTENSION_FILES)
            paths |= {f"{EXTENSIONS}/{extension.name}/{name}": path for name, path in named}
        self.folder, self.paths = folder, dict(sorted(paths.items()))

    @property
    def target(self) -> Path:
        return self.folder.path / FOLDER

    def is_made(self) -> bool:
        """Whether the run's evidence bundle exists with the same content."""
        there = {path.relative_to(self.target).as_posix() for path in self.target.rglob("*") if not path.is_dir()}
        return there == {*self.paths, STATEMENT} and all(
            filecmp.cmp(path, self.target / name, shallow=False) for name, path in self.paths.items()
        )

    def copy(self, target: Path, say: Callable[[str], None]) -> None:
        """Copy all files into the new folder ``target``. ``say`` gets lines of progress. Raises EvidenceBundleError."""
        try:
            target.mkdir(mode=0o700)
            for number, (name, path) in enumerate(self.paths.items(), start=1):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / name)
                if number % FILES_PER_LINE == 0 or number == len(self.paths):
                    say(f"evidence bundle: {number:,} of {len(self.paths):,} files copied")
        except OSError as error:
            raise EvidenceBundleError(f"{target}: the files cannot be copied: {reason_of(error)}") from error


def _files_of_run(folder: RunFolder, run: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the evidence files of a run, or of one round of its multi-node tests. Only files that are named here are
    evidence, so that keys, logins and the state of the watch stay out."""
    candidates = [
        *(folder.run_file, folder.problems_file, folder.gangs_file, folder.path / "report.json"),
        *(judging.facts_file(folder), folder.criteria_file, folder.verdict_file),
    ]
    for name in run["nodes"]:
        candidates += [file_of(name) for file_of in (folder.launch_file, folder.plan_file, folder.digests_file)]
        paths = sorted((folder.path / "nodes" / name).glob("*"))
        candidates += [path for path in paths if _STAGE_FILE.fullmatch(path.name)]
    yield from (path for path in candidates if path.is_file() and not path.is_symlink())


def _data_files(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[str, Path]]:
    paths = (path for pattern in patterns for path in folder.glob(pattern))
    yield from ((path.relative_to(folder).as_posix(), path) for path in paths if path.is_file())


def make(sources: BundleSources, check: Callable[[Path], str], say: Callable[[str], None]) -> None:
    """Make or replace an evidence bundle. ``check``: judges again from the new folder and returns the problem, empty if
    none; a bundle with a problem is removed. Raises EvidenceBundleError."""
    with replacing(sources.target) as draft:
        sources.copy(draft, say)
        say("evidence bundle: judging again from its files")
        problem = check(draft)
        if problem:
            run_id = sources.folder.path.name
            raise EvidenceBundleError(
                f"the report of run {run_id} does not come out of its evidence again ({problem}): run "
                f"`make report RUN={run_id}`, then `make evidence RUN={run_id}`"
            )


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a folder to make, which replaces the folder `target` unless the context raises."""
    for path in target.parent.glob(f".{target.name}.*"):  # left by a command that was killed
        shutil.rmtree(path, ignore_errors=True)
    draft, old = (target.with_name(f".{target.name}.{secrets.token_hex(4)}") for _ in range(2))
    try:
        yield draft
        if target.exists():
            target.rename(old)
        draft.rename(target)
    finally:
        for path in (draft, old):
            shutil.rmtree(path, ignore_errors=True)
