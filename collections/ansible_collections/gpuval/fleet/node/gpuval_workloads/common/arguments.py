"""Reads what a workload gets from the runner: command-line arguments, environment variables, the model's folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from .result import WorkloadFailure

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def workload_parser(name: str, description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``python -m gpuval_workloads.NAME``, which exits with code 2 for a wrong option."""
    return argparse.ArgumentParser(prog=f"python -m gpuval_workloads.{name}", description=description, epilog=epilog)


def positive_int(text: str) -> int:
    """Return the integer above 0 in a text. Raises ``ArgumentTypeError``."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_float(text: str) -> float:
    """Return the finite number above 0 in a text. Raises ``ArgumentTypeError``."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def required_variable(environ: Mapping[str, str], name: str) -> str:
    """Return the value of a variable that the runner sets. Raises ``WorkloadFailure`` if it is missing or empty."""
    value = environ.get(name)
    if not value:
        raise WorkloadFailure(f"{name} is not set: start this workload through the gpuval runner, which sets it")
    return value


def model_path(environ: Mapping[str, str], folder: str) -> Path:
    """Return the path of a model's folder in the model cache. Raises ``WorkloadFailure`` for a name with slashes."""
    if not _FOLDER_NAME.fullmatch(folder):
        raise WorkloadFailure(f"{folder!r} is not a model folder: give a name like models--org--name, without slashes")
    return Path(required_variable(environ, "GPUVAL_MODELS_DIR")) / folder
