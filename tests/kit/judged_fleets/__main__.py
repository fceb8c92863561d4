"""Writes what is judged of each fleet into a folder: `python -m tests.kit.judged_fleets DIR [NAME ...]`."""

import os
import sys
from pathlib import Path

import tests.conftest  # noqa: F401  (makes the collection importable)


def main(arguments):
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of warnings, and of copied stages, is that of sets
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    from tests.kit.judged_fleets import catalogue

    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    names = arguments[1:] or sorted(catalogue.FLEETS)
    for name in names:
        (folder / f"{name}.json").write_text(catalogue.canonical_text(catalogue.judge_fleet(name)))
    print(f"{len(names)} fleets in {folder}")


main(sys.argv[1:])
