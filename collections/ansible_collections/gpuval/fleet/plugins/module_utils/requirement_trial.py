"""Tries modules and programs that stages need, by import or start, in any Python 3: ``python -c SOURCE DOCUMENT``.
DOCUMENT is a JSON list of needs, each with ``import`` or ``start``; the last line printed is a JSON list: why each need
is not met, or empty texts."""

import glob
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

START_SECONDS = 20
MAX_REASON = 200
#: Messages of a loader about a program that cannot start here, whatever its exit code.
LOADER = re.compile(r"error while loading shared libraries|version `\S+' not found|cannot execute")
CANNOT_START = (126, 127)


def main(document):
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of imported modules is no part of the answer
    print("\n" + json.dumps([problem_of(need)[:MAX_REASON] for need in document]), file=answer)


def problem_of(need):
    """Return why a need is not met here; empty if it is met, or the node lacks the path ``where``."""
    if need.get("where") and not glob.glob(need["where"]):  # noqa: PTH207 - it may be absolute
        return ""
    return import_problem(need["import"]) if "import" in need else start_problem(need["start"].split())


def import_problem(text):
    """Return why modules cannot be imported. ``a+b|c``: all modules of the first alternative whose first module is
    installed. ``a>=2`` requires a version."""
    alternatives = [alternative.replace(" ", "").split("+") for alternative in text.split("|")]
    chosen = [parts for parts in alternatives if importlib.util.find_spec(re.split(r"[.>]", parts[0])[0])]
    if not chosen:
        return "not installed"
    reasons = (module_problem(*part.partition(">=")[::2]) for part in chosen[0])
    return next((reason for reason in reasons if reason), "")


def module_problem(name, minimum):
    """Return why a module cannot be imported, or is older than version `minimum` (may be empty); empty if it serves."""
    try:
        importlib.import_module(name)
        from importlib.metadata import version  # noqa: PLC0415 - Python 3.7 has none

        installed = version(name) if minimum else ""
    except RuntimeError:  # may be the GPU's fault, which the stage will show
        return ""
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{name} cannot be imported: {type(error).__name__}: {lines[0]}"
    return f"{name} {installed} is installed" if numbers(installed) < numbers(minimum) else ""


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def start_problem(words):
    """Return why a command, given as words, cannot be started on this machine; empty if it can."""
    path = shutil.which(words[0], path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")
    if path is None:
        return "not found, or not executable"
    try:
        run = subprocess.run(
            [path, *words[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=START_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return ""
    match = LOADER.search(run.stdout)
    if not match and run.returncode not in CANNOT_START:
        return ""
    line = next((line for line in run.stdout.splitlines() if LOADER.search(line)), f"exit code {run.returncode}")
    return f"cannot be started: {line.strip()}"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
