"""How a stage of a node ended: its verdict, class and remedy, by a table of rules. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.escape import one_line
from ..records import environment, launch_errors
from ..records.documents import Record
from ..records.failure_classes import AGAIN, FailureClass
from ..records.states import FAILED_STATES, RUN_ENDED
from ..runs import datasets, plans, settings
from .entries import Entry, gang_of, own_entry

IMAGE = "image"
WRONG_DIGEST, NO_PACKAGE, DISK_FULL, NO_IMAGE = "wrong_digest", "no_package", "disk_full", "no_image"
NO_RCLONE, STORE_INCOMPLETE, NO_SERVER = "no_rclone", "store_incomplete", "no_server"
#: States without a last record. A lost contact with the node explains them.
OPEN_STATES = ("missing", "pending", "running")
MAX_REASON = 600

#: Classes in the text of a stage that failed, which say more than the stage that met them first.
_OF_FAILED = frozenset({"no_engine", DISK_FULL, "read_only", WRONG_DIGEST})
#: Classes in the text of a stage that proves nothing: what it met, lacked, or gave way to.
_OF_MISSING = frozenset({"store_away", NO_PACKAGE, NO_IMAGE, DISK_FULL, "foreign_work"})
#: Classes of launches in a gang whose own remedy is better.
_REFUSED_GANG = (NO_PACKAGE, NO_IMAGE, "other_run", "foreign_work")
#: Faults that a stage may report in the state `failure`; others count for a crash only.
_FAULTS_OF_FAILURE = (NO_RCLONE, STORE_INCOMPLETE, NO_SERVER)

_VALIDATE = "validate again"
#: By kind of stage and `environment.fault`: what proves nothing about the node, because the store, the registry, the
#: archive or a package is at fault.
_BLAMELESS = {
    (IMAGE, "delivery"): f"check that the image exists and can be pulled: fix the cause named above, {AGAIN}",
    (plans.LOADING, NO_RCLONE): f"install rclone as named above, {AGAIN}",
    ("inference", NO_SERVER): f"install the packages named above, {AGAIN}",
    (plans.LOADING, STORE_INCOMPLETE): f"bring the model into the store (`make models`), {AGAIN}",
    (plans.LOADING, "store_away"): (
        f"correct gpuval_s3_read_access_key (`make prepare` tests it and its secret), {AGAIN}"
    ),
}
_BRING_IMAGE = f"bring the image to the node as named above, {AGAIN}"
_FREE_SPACE = "free space on the node where the message says, or set gpuval_node_dir or gpuval_models_dir, " + AGAIN
_WITH_OTHERS = "validate again with others of its kind: with --limit alone a node is in no gang"
_OF_GANG = f"fix the node or link that the message and the search name, then {_WITH_OTHERS}"
_AGAIN_WITH_ALL = "run the job again on all of its nodes"
_OF_GANG_JOB = (
    f"read nodes/NODE/{{stage}}.log of the node that the message names, fix the cause, then {_AGAIN_WITH_ALL}"
)
_OF_STATE = {
    "failure": f"read nodes/{{node}}/{{stage}}.log, fix the cause named above, {AGAIN}",
    "crash": f"read the end of nodes/{{node}}/{{stage}}.log and the kernel log of the node, {AGAIN}",
    "timeout": "read in nodes/{node}/{stage}.log where it stopped; raise the time limit if it is healthy but slow",
    "skipped": f"fix the stage that it waited for, {AGAIN}",
    "cancelled": f"{_VALIDATE} with --limit {{node}}",
    "pending": f"raise gpuval_deadline_seconds (the run ended before the stage began), {AGAIN}",
    "running": f"raise gpuval_deadline_seconds (the run ended before the stage did), {AGAIN}",
    "missing": f"check that the node is up and reaches the store, {AGAIN}",
}


@dataclass(frozen=True)
class StageEnd:
    """The last record of a stage, and what is known of why there is no better one.

    ``refusal``: why its record was refused. ``contact``: why the node could not be asked for its records. ``of_gang``:
    nodes run the stage together, so its failure implicates none of them. ``cleaned``: a clean ended the run;
    ``resume``: how to resume a run that has not ended.
    """

    node: str
    stage: str
    record: Record | None = None
    refusal: str = ""
    contact: Mapping[str, Any] | None = None
    of_gang: bool = False
    cleaned: bool = False
    resume: str = ""

    @property
    def state(self) -> str:
        return self.record["state"] if self.record else "missing"

    @property
    def failed(self) -> bool:
        return self.state in FAILED_STATES

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def shipped(self) -> bool:
        return self.stage in settings.SHIPPED_STAGES

    @property
    def of_dataset(self) -> bool:
        return self.stage.startswith(datasets.STAGE)

    @property
    def kind(self) -> str:
        """The stage, or the shipped one that it is a kind of."""
        return plans.LOADING if self.of_dataset else self.stage

    @property
    def fault(self) -> str:
        """What its program names as the cause, where that counts for its state; empty for none."""
        fault = str(self.record["environment"].get("fault")) if self.record else ""
        counts = self.state == "crash" or (self.state == "failure" and fault in _FAULTS_OF_FAILURE)
        return fault if counts else ""

    @property
    def unreached(self) -> Mapping[str, Any] | None:
        """The lost contact, where it explains the end."""
        return self.contact if self.contact and explains(self.contact, self.state) else None

    @functools.cached_property
    def text(self) -> str:
        """The end in words, as the record has it."""
        if self.is_open and self.cleaned:
            return f"{self.state}: {RUN_ENDED}"
        if self.record is None:
            return self.refusal or "no record"
        message = one_line(self.record["message"])
        if self.state == "success":
            return message
        text = f"{self.state}: {message}" if message else self.state
        return f"{gang_of(self.record) or 'a gang'}: {text}" if self.failed and self.of_gang else text

    @property
    def reason(self) -> str:
        """The end in words, with what the controller knows of it."""
        if self.unreached:
            return f"{self.text}; {_lost_in_words(self.unreached)}"
        return f"{self.text}; the run has not ended" if self.resume and self.is_open else self.text

    @functools.cached_property
    def text_class(self) -> FailureClass:
        return launch_errors.classify("", self.text)

    @property
    def other_work(self) -> str:
        """Who else used the accelerators; empty for none."""
        return environment.accelerator_users(self.record["environment"]) if self.record else ""

    def fill(self, remedy: str) -> str:
        return remedy.format(node=self.node, stage=self.stage)


class StageRule(NamedTuple):
    """Where ``applies`` holds, its verdict and remedy count.

    The reason may name one of ``classes``; else ``class_of`` gives the class.
    """

    name: str
    applies: Callable[[StageEnd], object]
    verdict: str
    remedy: Callable[[StageEnd], str]
    classes: Collection[str] = _OF_MISSING
    class_of: Callable[[StageEnd], str] = lambda end: f"{end.stage}_{end.state}"


class StageJudgement(NamedTuple):
    """The entry of a stage's end, and the class that its rule gives it."""

    entry: Entry
    failure_class: str


def _template(remedy: str) -> Callable[[StageEnd], str]:
    return lambda end: end.fill(remedy)


def _remedy_of_state(end: StageEnd, state: str = "") -> str:
    remedy = end.fill(_OF_STATE[state or end.state])
    # `make job` may have started the stage of a job
    return remedy if end.shipped or end.of_dataset else remedy.replace(_VALIDATE, "repeat the command")


def _remedy_of_work(end: StageEnd) -> str:
    return end.fill(end.text_class.remedy) if _has_wrong_digest(end) else _remedy_of_state(end)


def _remedy_of_gang_refusal(end: StageEnd) -> str:
    return f"{end.text_class.steps}, then {_WITH_OTHERS if end.shipped else _AGAIN_WITH_ALL}"


def _has_wrong_digest(end: StageEnd) -> bool:
    return end.of_dataset and end.state == "failure" and end.text_class.name == WRONG_DIGEST


#: The first rule that applies counts.
RULES = (
    StageRule("succeeded", lambda end: end.state == "success", "pass", lambda _: "", classes=()),
    StageRule(
        "contact lost", lambda end: end.unreached, "missing",
        lambda end: str((end.unreached or {})["remedy"]).replace("{node}", end.node),
        class_of=lambda end: one_line((end.unreached or {})["class"], 40),
    ),
    StageRule("run not ended", lambda end: end.resume and end.is_open, "missing", lambda end: end.resume),
    StageRule(
        "no image", lambda end: lacks_image(end.record) and not end.of_gang, "missing", _template(_BRING_IMAGE),
    ),
    StageRule(
        "cause outside the node", lambda end: (end.kind, end.fault) in _BLAMELESS, "missing",
        lambda end: end.fill(_BLAMELESS[end.kind, end.fault]),
    ),
    StageRule(
        "disk full", lambda end: end.state == "crash" and not end.of_gang and end.text_class.name == DISK_FULL,
        "missing", _template(_FREE_SPACE),
    ),
    StageRule(
        "refused its part in a gang", lambda end: end.of_gang and end.text_class.name in _REFUSED_GANG, "missing",
        _remedy_of_gang_refusal,
    ),
    StageRule(
        "no success of a gang", lambda end: end.of_gang, "missing",
        lambda end: end.fill(_OF_GANG if end.shipped else _OF_GANG_JOB),
    ),
    StageRule("beside other work", lambda end: end.failed and end.other_work, "missing", _remedy_of_work),
    StageRule("failed", lambda end: end.failed, "fail", _remedy_of_work, classes=_OF_FAILED),
    StageRule(
        "ended by a clean", lambda end: end.is_open and end.cleaned, "missing",
        lambda end: _remedy_of_state(end, "cancelled"),
    ),
    StageRule("no end", lambda _: True, "missing", _remedy_of_state),
)  # fmt: skip


def judge_end(end: StageEnd) -> StageJudgement:
    """The check of the stage's end, by the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(end))
    entry = own_entry(
        f"{end.stage}_state", end.stage, "state", rule.verdict, value=end.state, expected="success", reason=end.reason,
        remedy=rule.remedy(end),
    )  # fmt: skip
    return StageJudgement(entry, _class_of(end, rule))


def _class_of(end: StageEnd, rule: StageRule) -> str:
    if lacks_image(end.record):
        return NO_IMAGE
    named = launch_errors.classify("", one_line(end.reason, MAX_REASON)).name if rule.classes else ""
    return named if named in rule.classes else rule.class_of(end)


def class_of_entry(check: Mapping[str, Any]) -> str:
    """The class of a stage's end in a report, by its reason."""
    classes = _OF_FAILED if check["verdict"] == "fail" else _OF_MISSING
    named = launch_errors.classify("", check["reason"]).name
    return named if named in classes else f"{check['stage']}_{check['value']}"


def lacks_image(record: Mapping[str, Any] | None) -> bool:
    """Whether a stage proves nothing about the node, and a retry is no use: its image is not there. One that the
    work claims after it began does not count."""
    if record is None or record["state"] != "crash" or record["environment"].get("fault") != NO_IMAGE:
        return False
    return record["stage"] == IMAGE or (record["exit_code"] is None and record["signal"] is None)


def explains(contact: Mapping[str, Any], state: str) -> bool:
    """Whether a lost contact is why a stage has no better end; in a pod that is ended it says `cancelled`."""
    return state in OPEN_STATES or (state == "cancelled" and bool(contact.get("pod")))


def _lost_in_words(contact: Mapping[str, Any]) -> str:
    why = "its pod ended" if contact.get("pod") else "the node was unreachable"
    why = "its runner ended" if str(contact["class"]).startswith("runner_") else why
    return f"{why} ({contact['class']}): {contact['message']}"
