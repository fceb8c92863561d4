"""Parser and argument types of the workloads' command lines."""

from __future__ import annotations

import argparse


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
