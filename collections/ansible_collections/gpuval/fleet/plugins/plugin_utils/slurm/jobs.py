"""gpuval's Slurm jobs as squeue shows them, and what the state of each job means for its node. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.escape import one_line
from ..records import evidence, launch_errors
from ..records.digests import stated_in
from ..records.evidence import EvidenceRefused
from ..records.failure_classes import row_of
from ..runs import plans

#: Output format of squeue: id, state, reason, and last the comment, which may contain the separator.
FORMAT = "%i|%T|%r|%k"
_COMMENT = re.compile(r"gpuval:([A-Za-z0-9._-]+):([A-Za-z0-9._-]+):(\d{1,4})(?: (.*))?")
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD", "CONFIGURING", "EXPEDITING"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
AT_WORK = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"}) | SUSPENDED
#: Failure class of each state of an ended job. Classes in RETRYABLE prove nothing about the node.
ENDED = {
    "BOOT_FAIL": "slurm_node_failed",
    "CANCELLED": "slurm_cancelled",
    "DEADLINE": "slurm_pending",  # the job never began: a running job reaches its time limit first
    "LAUNCH_FAILED": "slurm_node_failed",
    "NODE_FAIL": "slurm_node_failed",
    "OUT_OF_MEMORY": "slurm_out_of_memory",
    "PREEMPTED": "slurm_preempted",
    "RECONFIG_FAIL": "slurm_node_failed",
    "REQUEUE_HOLD": "slurm_requeued",
    "REVOKED": "slurm_cancelled",
    "SPECIAL_EXIT": "slurm_requeued",
    "TIMEOUT": "slurm_time_limit",
}
RETRYABLE = frozenset({"slurm_preempted", "slurm_node_failed"})
#: Exit codes of the job's script: the node refused the plan (reason in the job's comment), has no Python, or no srun.
REFUSED, NO_PYTHON, NO_SRUN = 96, 127, 95
MAX_NOTE = 8000
#: Slurm's reasons for pending jobs that can never start: a per-job limit of an association, QOS or partition.
_OVER_LIMIT = re.compile(r"(?:Assoc|QOS)\w+PerJob(?:Limit)?|Partition(?:Time|Node)Limit")


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job: one attempt on one node, or on a gang with the leader `node`. `note`: what the node wrote into the
    job's comment, untrusted."""

    id: int
    state: str
    reason: str
    run_id: str
    node: str
    attempt: int
    note: str = ""

    @property
    def stated(self) -> dict[str, list[str]]:
        """The digests of results that the node wrote into the job's comment at its end (records/digests.py)."""
        try:
            return stated_in(json.loads(self.note or "{}"))
        except (ValueError, RecursionError):
            return {}

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def over_limit(self) -> bool:
        return self.waits and bool(_OVER_LIMIT.fullmatch(self.reason))

    @property
    def suspended(self) -> bool:
        return self.state in SUSPENDED

    @property
    def ended(self) -> bool:
        return self.state not in WAITING and self.state not in AT_WORK


@dataclass(frozen=True)
class JobEnd:
    """Why a Slurm job ended without all records, or was refused by its node. `name`: the failure class."""

    name: str
    message: str
    remedy: str
    refused: bool = False

    @classmethod
    def of(cls, name: str, message: str, node: str, *, refused: bool = False) -> "JobEnd":
        """The end of a job with the failure class `name`, and that class's remedy for this node."""
        return cls(name, message, row_of(name).remedy.replace("{node}", node), refused)

    @property
    def launch(self) -> dict[str, str]:
        """Failure class, message and remedy of the end, as fields of the node's launch file."""
        return {"class": self.name, "message": self.message, "remedy": self.remedy}

    @property
    def retryable(self) -> bool:
        return self.name in RETRYABLE


def members_of(run: Mapping[str, Any], node: str) -> list[str]:
    """The nodes that share a Slurm job with this node, leader first: in a multi-node round its gang, else only it."""
    gang = plans.gang_of(run, node)
    return [member["node"] for member in gang["members"]] if gang else [node]


def comment(run_id: str, node: str, attempt: int) -> str:
    """The comment that identifies a job as one attempt of a run on a node."""
    return f"gpuval:{run_id}:{node}:{attempt}"


def parse(text: str) -> dict[int, SlurmJob]:
    """gpuval's jobs in squeue's output, by id."""
    jobs = {}
    for line in text.splitlines():
        job_id, state, reason, comment_text = (*line.split("|", 3), "", "", "")[:4]
        if (mark := _COMMENT.match(comment_text.strip())) and job_id.isdigit():
            reason, note = one_line(reason.strip("()"), 200), one_line(mark[4] or "", MAX_NOTE)
            jobs[int(job_id)] = SlurmJob(int(job_id), state, reason, mark[1], mark[2], int(mark[3]), note)
    return jobs


def of_run(jobs: Mapping[int, SlurmJob], run_id: str) -> dict[tuple[str, int], SlurmJob]:
    """A run's jobs by (node, attempt); of several jobs of an attempt, the newest."""
    return {(job.node, job.attempt): job for _id, job in sorted(jobs.items()) if job.run_id == run_id}


def describe_pending(job: SlurmJob) -> str:
    return f"job {job.id} is {job.state.lower()} ({job.reason or 'Slurm gives no reason'})"


def end_of(job: SlurmJob, code: int | None, *, waited: str = "") -> JobEnd:
    """Why a job ended whose node lacks final records. `code`: exit code, None if unknown; `waited`: text of
    `describe_pending` from the job's last pending state."""
    if job.over_limit:
        name = "slurm_too_short" if re.search("Wall|Time", job.reason) else "slurm_refused"
        return JobEnd.of(name, f"{describe_pending(job)}, which never ends: cancelled", job.node, refused=True)
    if code == REFUSED and job.note:
        launch = launch_errors.described(_refusal(job.note))
        return JobEnd(launch["class"], launch["message"], launch["remedy"], refused=True)
    if code == NO_PYTHON:
        return JobEnd.of("no_python", f"job {job.id}: no Python 3.9 or newer on the node", job.node, refused=True)
    name = ENDED.get(job.state, "slurm_job_failed")
    message = f"job {job.id} ended: {job.state}"
    if name == "slurm_pending" and waited:
        message = f"{waited} until the deadline"
    elif job.reason not in ("", "None"):
        message += f" ({job.reason})"
    if job.state == "COMPLETED":
        name, message = "store_away", f"{message}, and its last records are not in the store"
    elif name == "slurm_job_failed" and code is not None:
        message += f", exit code {code}" if code != NO_SRUN else ": no srun in PATH, nor where this controller has it"
    return JobEnd.of(name, message, job.node, refused=name == "slurm_pending")


def _refusal(note: str) -> dict[str, Any]:
    """The launch that a node wrote into its job's note when it refused the plan; `note` is untrusted."""
    try:
        answer = {"directory": "", "launch": {"state": "refused", **json.loads(note)}}
        return evidence.accept_answer("launch_answer", answer)["launch"]
    except (ValueError, TypeError, EvidenceRefused):
        return {"state": "refused", "message": note}
