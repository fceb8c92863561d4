"""Batch scripts of Slurm jobs: a shell script that finds a Python, and behind it runner, workloads and plan. A gang's
job starts this shell script on each member by `srun`, which passes all of it on standard input. Pure."""

import base64
import math
import shlex
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SettingError
from ..runs import plans
from ..ssh import node_program
from . import jobs

#: Maximum bytes of a script that sbatch accepts by default (max_script_size).
MAX_BYTES = 4 << 20
MARK = "#GPUVAL"
NAME_CHARACTERS = 60
#: Nice value of jobs on idle nodes: all other jobs start first.
NICE = 10_000
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "/usr/bin/python3")
_CHOICES = ("partition", "account", "qos", "reservation")
VARIABLES = tuple(f"gpuval_slurm_{name}" for name in (*_CHOICES, "output", "arguments"))
#: sbatch options that users may not set, since gpuval sets them.
OWN = (
    *("--exclusive", "--nodelist", "--time", "--deadline", "--comment", "--job-name", "--parsable", "--wrap"),
    *("--array", "--export"),
)

#: srun options for a gang: the end of one member does not end the others, which report the lost member themselves.
_STEP = (
    *("--ntasks-per-node=1", "--export=ALL", "--mem=0", "--cpu-bind=none", "--mpi=none"),
    *("--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
)
_PROGRAM = """\
import base64, io, json, os, subprocess, sys, zlib
script = sys.stdin.buffer if sys.argv[1] == "-" else open(sys.argv[1], "rb")
data = zlib.decompress(base64.b64decode(script.read().rpartition(b"\\n@MARK@\\n")[2]))
stream = io.BytesIO(data)
runner = stream.read(int(stream.readline()))
handle = os.memfd_create("gpuval-runner")
with open(handle, "wb", closefd=False) as memory:
    memory.write(runner)
sys.path[0] = "/proc/%d/fd/%d" % (os.getpid(), handle)
from gpuval_node.node_launch import main_in_job
def refuse(refusal):
    names = [os.environ["SLURMD_NODENAME"] + ":"] if sys.argv[1] == "-" else []
    text = " ".join(names + refusal["message"].split())
    print(text, file=sys.stderr, flush=True)
    note({**refusal, "message": text[:900]})
def note(document):
    comment = sys.argv[2] + " " + json.dumps(document)
    words = ["scontrol", "update", "JobId=" + os.environ["SLURM_JOB_ID"], "Comment=" + comment]
    try:
        subprocess.run(words, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
sys.exit(main_in_job(runner, stream, refuse, None if sys.argv[1] == "-" else note))
""".replace("@MARK@", MARK)


@dataclass(frozen=True)
class JobSettings:
    """Settings by which a node's jobs are submitted: partition, account, QOS and the like."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    output: str = "/dev/null"
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "JobSettings":
        """The settings in a node's variables. Raises SettingError."""
        texts = {name: str(values[f"gpuval_slurm_{name}"] or "") for name in _CHOICES}
        arguments = values["gpuval_slurm_arguments"] or []
        if isinstance(arguments, str) or not all(str(word).startswith("--") for word in arguments):
            raise SettingError("gpuval_slurm_arguments is a list of options of sbatch: write [--option=value]")
        arguments = tuple(map(str, arguments))
        refused = [option for option in (argument.partition("=")[0] for argument in arguments) if option in OWN]
        if refused:
            raise SettingError(f"gpuval_slurm_arguments: gpuval sets {refused[0]} itself: remove it")
        return cls(**texts, output=str(values["gpuval_slurm_output"] or "/dev/null"), arguments=arguments)


def arguments(
    settings: JobSettings,
    run_id: str,
    nodes: Sequence[str],
    attempt: int,
    seconds: float,
    wall: float = math.inf,
    *,
    idle: bool = False,
) -> list[str]:
    """Options of sbatch for a job. `nodes`: several for a gang, leader first. `seconds`: left of the run, which become
    the job's time limit, unless Slurm's own limit `wall` (seconds) is less. `idle`: all other jobs start first. Slurm
    removes a job that has not begun by the end of the run, also without a controller."""
    minutes = max(1, int(-(-seconds // 60) if wall >= seconds else wall // 60))
    chosen = {name: getattr(settings, name) for name in _CHOICES}
    return [
        "--exclusive",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--mem=0",
        f"--nodelist={','.join(nodes)}",
        *(["--ntasks-per-node=1", "--no-kill"] if len(nodes) > 1 else []),
        f"--time={minutes}",
        f"--deadline=now+{int(seconds) + 60 * minutes}",
        f"--job-name=gpuval-{run_id}"[:NAME_CHARACTERS],
        f"--comment={jobs.comment(run_id, nodes[0], attempt)}",
        "--no-requeue",
        "--export=NIL",
        "--chdir=/",
        "--input=/dev/null",
        f"--output={settings.output}",
        *(f"--{name}={value}" for name, value in chosen.items() if value),
        *([f"--nice={NICE}"] if idle else []),
        *settings.arguments,
    ]


def batch(parameters: Mapping[str, Any], runner: bytes, workloads: bytes, comment: str, gpus: int = 0) -> bytes:
    """The batch script of a job. `parameters`: of the program on the node, or {"members": {node: parameters}} for a
    gang. `runner`, `workloads`: zip files. `gpus`: number of GPUs to request for each member. Raises PlanError if the
    script is too large for Slurm."""
    members = parameters.get("members", ())
    values = {
        "PYTHONS": " ".join(map(shlex.quote, PYTHONS)),
        "PROGRAM": shlex.quote(_PROGRAM),
        "COMMENT": shlex.quote(comment),
        "SOURCE": "-" if members else '"$0"',
        "NO_PYTHON": str(jobs.NO_PYTHON),
    }
    shell = _template("job", values)
    if members:
        # Even in an exclusive job, a step gets only the GPUs that it requests.
        options = [f"--nodes={len(members)}", f"--ntasks={len(members)}", *_STEP]
        options += [f"--gres=gpu:{gpus}"] if gpus else []
        values = {"NO_SRUN": str(jobs.NO_SRUN), "OPTIONS": " ".join(options), "SHELL": shlex.quote(shell)}
        shell = _template("gang", values)
    payload = base64.encodebytes(zlib.compress(node_program.data(parameters, runner, workloads)))
    script = shell.encode() + b"\n" + MARK.encode() + b"\n" + payload
    if len(script) > MAX_BYTES:
        raise plans.PlanError(
            f"the batch script has {len(script):,} bytes, and Slurm takes {MAX_BYTES:,}: choose fewer stages"
            + (" or set a smaller gpuval_gang_size" if members else "")
        )
    return script


def _template(name: str, values: Mapping[str, str]) -> str:
    """The shell script NAME.sh with `values` in place of @WORD@. It finds Slurm's commands in PATH, else in the folder
    where this machine has them."""
    shell = "#!/bin/sh\n" + Path(__file__).with_name(f"{name}.sh").read_text(encoding="utf-8")
    srun = shutil.which("srun")
    for word, value in {"SLURM": shlex.quote(f":{Path(srun).parent}") if srun else "", **values}.items():
        shell = shell.replace(f"@{word}@", value)
    return shell
