"""Argument types of the command lines."""

from __future__ import annotations

import argparse


def positive_int(text: str) -> int:
    """Return a whole number above 0. Raises what argparse turns into a message."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_float(text: str) -> float:
    """Return a finite number above 0. Raises what argparse turns into a message."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
