"""The program of $GPUVAL_LAUNCHER: runs mpirun, which runs a step's command once for each process of all nodes, with
the script's folder and variables. Standard library only: a step's script runs this file with any PYTHONPATH."""

import json
import os
import sys
from pathlib import Path

VARIABLE = "GPUVAL_LAUNCHER"
#: Environment variable with the working folder and variables that a step's script changed, as JSON.
CHANGED = "GPUVAL_CHANGED"
#: Variables that the shell sets for itself, which are not passed to mpirun's processes.
OWN = ("_", "PWD", "OLDPWD", "SHLVL")


def main() -> None:
    folder = Path(os.environ["GPUVAL_JOB_DIR"])
    launch = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    before = launch["environment"]
    variables = {name: value for name, value in os.environ.items() if name not in OWN and before.get(name) != value}
    current = Path.cwd().resolve()
    inside = folder.resolve() in (current, *current.parents)
    changed = {
        "folder": os.path.relpath(current, folder.resolve()) if inside else str(current),
        "environment": variables,
    }
    rank = [sys.executable, "-m", "gpuval_workloads.job.rank", *sys.argv[1:]]
    environment = {**before, **launch["settings"], CHANGED: json.dumps(changed)}
    os.execve(launch["launcher"][0], [*launch["launcher"], "-x", CHANGED, *rank], environment)  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
