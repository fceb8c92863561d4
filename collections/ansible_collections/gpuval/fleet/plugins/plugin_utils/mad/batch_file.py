"""Batch files of Slurm among the scripts of models: their options, which sbatch would read."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from .documents import MadError

SUFFIXES = (".slurm", ".sbatch")
_MARK = "#SBATCH"
_OPTIONS = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\n)*?" + _MARK.encode())
#: Options that describe steps, which srun reads from variables as sbatch sets them. The others are about the job.
_OF_STEPS = (
    *("-N --nodes", "-n --ntasks", "-c --cpus-per-task", "-G --gpus", "-m --distribution", "--gres", "--hint"),
    *(f"--ntasks-per-{unit}" for unit in ("node", "gpu", "socket", "core")),
    *("--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--cpus-per-gpu", "--threads-per-core"),
)
_PARSER = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
for _names in _OF_STEPS:
    _PARSER.add_argument(*_names.split())


@dataclass(frozen=True)
class BatchFile:
    """`nodes` 0 is not specified. `variables` are those of srun. `unused` are options about the job."""

    nodes: int
    variables: Mapping[str, str]
    unused: tuple[str, ...]


def read(name: str, data: bytes, where: str) -> BatchFile | None:
    """None for other scripts. Raises MadError for an option that cannot be read."""
    if not (name.endswith(SUFFIXES) or _OPTIONS.match(data)):
        return None
    lines = data.decode(errors="replace").splitlines()  # sbatch reads no further than the first command
    head = itertools.takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines)
    try:
        words = [shlex.split(line.removeprefix(_MARK), comments=True) for line in head if line.startswith(_MARK)]
        parsed, unparsed = _PARSER.parse_known_args([*itertools.chain(*words)])
        nodes = int((parsed.nodes or "0").partition("-")[0])
    except (ValueError, argparse.ArgumentError) as error:
        raise MadError(f"{where}: {name}: #SBATCH: {str(error).lower()}: correct the option") from error
    options = {key.upper(): text for key, text in vars(parsed).items() if text is not None and key != "nodes"}
    variables = {f"SLURM_{key}": text for key, text in options.items()}
    variables |= {f"SRUN_{key}": text for key, text in options.items() if key == "CPUS_PER_TASK"}
    unused = {word.partition("=")[0].lstrip("-") for word in unparsed if word.startswith("-")}
    return BatchFile(nodes, variables, tuple(sorted(unused)))
