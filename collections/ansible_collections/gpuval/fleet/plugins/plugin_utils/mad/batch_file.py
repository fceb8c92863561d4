"""Batch files of Slurm among the scripts of models: their options, which sbatch would read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from .documents import MadError

SUFFIXES = (".slurm", ".sbatch")
_OPTIONS = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\n)*?#SBATCH")
_LETTERS = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "m": "distribution"}
#: Options that describe steps, which srun reads from variables as sbatch sets them. The others are about the job.
_OF_STEPS = re.compile(r"ntasks.*|cpus-per-(?:task|gpu)|gpus.*|gres|distribution|hint|threads-per-core")


@dataclass(frozen=True)
class BatchFile:
    """`nodes` 0 is not specified. `variables` are those of srun. `unused` are options about the job."""

    nodes: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def read(name: str, data: bytes, where: str) -> BatchFile | None:
    """None for other scripts. Raises MadError for an option that cannot be read."""
    if not (name.endswith(SUFFIXES) or _OPTIONS.match(data)):
        return None
    options: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break  # sbatch reads no further
        if line.startswith("#SBATCH"):
            options |= _options(line.removeprefix("#SBATCH"), f"{where}: {name}: {line.strip()}")
    nodes = options.pop("nodes", "0").partition("-")[0]
    if not nodes.isdigit():
        raise MadError(f"{where}: {name}: #SBATCH --nodes={nodes} is no number: write --nodes=2")
    given = {key: text for key, text in options.items() if _OF_STEPS.fullmatch(key)}
    variables = {f"SLURM_{key.upper().replace('-', '_')}": text for key, text in given.items()}
    variables |= {"SRUN_CPUS_PER_TASK": given["cpus-per-task"]} if "cpus-per-task" in given else {}
    return BatchFile(int(nodes), variables, tuple(sorted(options.keys() - given.keys())))


def _options(text: str, what: str) -> dict[str, str]:
    """Values by long names. Raises MadError."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise MadError(f"{what}: {str(error).lower()}: quote it as for a shell") from error
    found: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("--"):
            last, _, found[last] = word[2:].partition("=")
        elif word.startswith("-"):
            last = _LETTERS.get(word[1:2], word[:2])
            found[last] = word[2:]
        else:
            found[last] = word
    return found
