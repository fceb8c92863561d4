"""The JSON objects of records (gpuval.record/1) and series (gpuval.series/1), as typed dictionaries."""

from __future__ import annotations

from typing import Any, Optional, TypedDict


class _Figure(TypedDict):
    name: str
    value: Optional[float]
    unit: str
    scope: str


class RecordMetric(_Figure, total=False):
    """A figure in its base unit; scope ``node``, ``gpu:<index>``, ``rank:<n>`` or ``link:<name>``; ``revision`` of its
    definition, where that is not the first."""

    revision: int


class RecordCurve(TypedDict):
    """One series: y over x."""

    name: str
    unit: str
    scope: str
    x_unit: str
    x: list[float]
    y: list[Optional[float]]


class RecordDocument(TypedDict):
    """A record as it is written."""

    schema: str
    run_id: str
    node: str
    stage: str
    workload: str
    attempt: int
    nonce: str
    state: str
    message: str
    started_at: Optional[str]
    updated_at: str
    finished_at: Optional[str]
    duration_seconds: Optional[float]
    command: list[str]
    image: Optional[str]
    exit_code: Optional[int]
    signal: Optional[str]
    metrics: list[RecordMetric]
    fingerprints: dict[str, str]
    environment: dict[str, Any]
    artifacts: list[str]
    attempts: list[RecordDocument]
