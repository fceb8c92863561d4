"""Documents that come from nodes, once they were checked: what a record and a metric hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

#: What JSON holds by key: a run, a report, an entry of one.
Document = Mapping[str, Any]


class NodeMetric(TypedDict):
    """One figure of a part: node, gpu:3, rank:0 or link:name. None is a figure that is not a number. Figures of one
    name and different revisions (1 where none is given) are measured differently."""

    name: str
    value: float | None
    unit: str
    scope: str
    revision: NotRequired[int]


class Record(TypedDict):
    """gpuval.record/1: one stage on one node; ``attempts`` are the earlier ones, whole."""

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
    metrics: list[NodeMetric]
    fingerprints: dict[str, str]
    environment: dict[str, Any]
    artifacts: list[dict[str, Any]]
    attempts: list[Record]
    #: Of the plan by which the stage ran.
    nonce: NotRequired[str]
    #: Of each metric the unit that the node wrote, where one was another notation.
    units_as_written: NotRequired[list[str]]
    #: Of an earlier attempt of a gang: the round that it was in, and whether the gang had other members.
    of_round: NotRequired[str]
    unrelated: NotRequired[bool]


class EvidenceProblem(TypedDict):
    """Why a document, or a whole stage, is no evidence; node and stage where they are known."""

    node: str | None
    stage: str | None
    reason: str


#: A stage in one of these states does not change any more.
FINAL_STATES = frozenset({"success", "failure", "crash", "timeout", "skipped", "cancelled"})
#: The stage ran and did not succeed.
FAILED_STATES = frozenset({"failure", "crash", "timeout"})
#: Launch states in which a runner is, or was, at work on the node.
LAUNCHED = frozenset({"started", "finished"})
#: Why a stage of a run that was cleaned while it worked has no end.
RUN_ENDED = "the run was ended by another command (clean)"
#: A stage in one of these states proves nothing yet.
UNFINISHED = frozenset({"pending", "running"})
