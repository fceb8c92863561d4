"""One process of a job's step that a launcher starts over SSH: runs the command of the step or its script. If that
fails, it leaves a note for the job's program on this node: the launcher on another node may never notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from ..common.launch import RANK_DIRECTORY_VARIABLE
from ..common.result import write_atomically
from .launcher import CHANGED

#: File, in the folder that RANK_DIRECTORY_VARIABLE names, with the command, its folder and its environment.
FILE = "launch.json"
NOTE = "failed-{rank}.json"
DONE = "done-{step}-{rank}"
#: Prefixes of variables that launchers set for each process.
PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
NAMES = (
    *("RANK", "LOCAL_RANK", "LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
)


def main() -> int:
    folder = Path(os.environ[RANK_DIRECTORY_VARIABLE])
    launch = json.loads((folder / FILE).read_text(encoding="utf-8"))
    command = sys.argv[1:] or launch["command"]
    rank_variables = {name: value for name, value in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    changed = {"folder": "", "environment": {}, **json.loads(os.environ.get(CHANGED, "{}"))}
    rank_folder = Path(launch["folder"], changed["folder"])
    rank = rank_variables.get("RANK") or rank_variables.get("OMPI_COMM_WORLD_RANK") or str(os.getpid())
    try:
        process = subprocess.Popen(
            command, cwd=rank_folder, env={**launch["environment"], **changed["environment"], **rank_variables}
        )
    except OSError as error:
        return _failed(folder, rank, 127, f"{error.filename}: {error.strerror}: does the image have it?")
    ended: list[int] = []

    def hand_on(number: int, _frame: object) -> None:
        ended.append(number)
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    code = process.wait()
    code = 128 - code if code < 0 else code
    if not code:
        write_atomically(folder / DONE.format(step=launch["environment"]["GPUVAL_STEP"], rank=rank), "")
    return _failed(folder, rank, code, f"exit code {code}") if code and not ended else code


def _failed(folder: Path, rank: str, code: int, reason: str) -> int:
    print(f"rank {rank}: {reason}", file=sys.stderr, flush=True)
    write_atomically(folder / NOTE.format(rank=rank), json.dumps({"message": f"rank {rank}: {reason}"}))
    return code


if __name__ == "__main__":
    sys.exit(main())
