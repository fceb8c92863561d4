"""The child process of a replay: judges the run in an evidence bundle with the bundle's data files."""

import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path

from ..core import extensions, processes, schemas
from ..core.errors import GpuvalError
from ..gang import document, judging
from ..judge import baseline, criteria
from ..report import judged, write_file
from ..runs import applied_criteria
from ..runs.folder import RunFolder
from . import EXTENSIONS

#: Maximum size of the address space: a document may expand without limit in a YAML or JSON parser.
MAX_BYTES = 8 << 30


def main(folder: Path, run_path: Path) -> None:
    """Judge the run at ``run_path`` as `judge` does, and print the version of gpuval that judged before."""
    with suppress(ValueError):  # the user's own limit is lower
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    gc.disable()  # none of millions of objects is garbage before the end
    processes.MIN_NODES = sys.maxsize  # no further process: each would copy most of the memory
    try:
        print(judge(folder, RunFolder(run_path)))
    except (GpuvalError, ValueError, LookupError, RecursionError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def judge(data_folder: Path, run_folder: RunFolder) -> str:
    """Judge a run with the data in ``data_folder``; write report.json there. Returns the first judgement's version."""
    extensions.use(sorted((data_folder / EXTENSIONS).glob("*")))
    run, facts = run_folder.read_run(), judging.kept_facts(run_folder)
    if facts is None:
        raise GpuvalError("the bundle has no .state/judgement.json")
    kept = facts.given or applied_criteria.kept_criteria(run_folder) or {"criteria": [], "baseline": None}
    schemas.validate("judging", {"schema": "gpuval.judging/1", **kept}, what="run_criteria.json")
    checks = criteria.beside_shipped(applied_criteria.write_criteria(kept, data_folder / applied_criteria.JUDGING))
    baseline_file = applied_criteria.write_baseline(kept, data_folder / applied_criteria.JUDGING)
    baseline_read = baseline.read(Path(baseline_file), run["run_id"]) if baseline_file else None
    gangs = document.read(run_folder)
    inputs = judging.read_inputs(run_folder, run, checks, gangs=gangs, baseline=baseline_read, facts=facts)
    write_file(data_folder / "report.json", judged.judge(inputs).lines())
    return facts.version
