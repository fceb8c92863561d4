"""Types of the documents that come from nodes, such as records and metrics, once they were checked."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

#: A JSON object: a run, a report, or an entry of either.
Document = Mapping[str, Any]


class NodeMetric(TypedDict):
    """One figure of a part (``scope``): node, gpu:3, rank:0 or link:name. The value None stands for no number (NaN).
    ``revision``: the definition by which the metric was measured, default 1."""

    name: str
    value: float | None
    unit: str
    scope: str
    revision: NotRequired[int]


class Record(TypedDict):
    """A stage's record on one node (gpuval.record/1); ``attempts``: the complete records of earlier attempts."""

    schema: str
    run_id: str
    node: str
    stage: str
    workload: str
    attempt: int
    state: str
    message: str
    started_at: str | None
    updated_at: str
    finished_at: str | None
    duration_seconds: float | None
    command: list[str]
    image: str | None
    exit_code: int | None
    signal: str | None
    metrics: Sequence[NodeMetric]
    fingerprints: dict[str, str]
    environment: dict[str, Any]
    artifacts: list[dict[str, Any]]
    attempts: list["Record"]
    #: Nonce of the plan by which the stage ran.
    nonce: NotRequired[str]
    #: The unit of each metric as the node wrote it, if any of them was changed to the usual notation.
    units_as_written: NotRequired[list[str]]
    #: For an earlier attempt of a gang: the round of the gang, and whether its members were others than now.
    of_round: NotRequired[str]
    unrelated: NotRequired[bool]


class EvidenceProblem(TypedDict):
    """Why a document, or a whole stage, was refused as evidence; node and stage if known."""

    node: str | None
    stage: str | None
    reason: str


#: Final states: a stage in one of these states does not change any more.
FINAL_STATES = frozenset({"success", "failure", "crash", "timeout", "skipped", "cancelled"})
#: States of stages that ran and did not succeed.
FAILED_STATES = frozenset({"failure", "crash", "timeout"})
#: Launch states in which a runner is, or was, at work on the node.
LAUNCHED = frozenset({"started", "finished"})
#: The reason that a report gives for a stage without an end, if a clean ended its run.
RUN_ENDED = "the run was ended by another command (clean)"
#: States of stages that prove nothing yet.
UNFINISHED = frozenset({"pending", "running"})
