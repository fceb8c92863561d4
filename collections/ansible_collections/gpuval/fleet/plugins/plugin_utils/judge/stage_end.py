"""How a stage of a node ended: its verdict, class and remedy, by a table of rules; and failures of several nodes at
once through one thing that they share: store, model, image, program, switch. Pure."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...module_utils.redaction import any_of
from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.text import some_of
from ..records import environment, failure_classes, launch_errors
from ..records.documents import FAILED_STATES, RUN_ENDED, Document, Record
from ..records.evidence import UNREAD
from ..records.failure_classes import NODE, OWN_PROGRAM, PROGRAM, FailureClass, class_named, named_cause, subject_of
from ..runs.settings import is_shipped
from .entries import Entry, gang_of, own_entry

IMAGE = "image"
NO_IMAGE, HARDWARE = "no_image", "hardware"
#: Start of the problem text of a record that was refused as evidence.
REFUSED = "record refused: "
#: States of a stage without a final record; lost contact with the node can explain them.
OPEN_STATES = ("missing", "pending", "running")
MAX_REASON = 600

#: Number of other nodes that must have passed a stage before a user's program that fails twice implicates the node.
MIN_PEERS = 2

_VALIDATE = "validate again"
_WITH_OTHERS = "validate again with others of its kind: with --limit alone a node is in no gang"
_OF_GANG = f"fix the node or link that the message and the search name, then {_WITH_OTHERS}"
_AGAIN_WITH_ALL = "run the job again on all of its nodes"
_OF_GANG_JOB = (
    f"read nodes/NODE/{{stage}}.log of the node that the message names, fix the cause, then {_AGAIN_WITH_ALL}"
)


@dataclass(frozen=True)
class StageEnd:
    """How a stage of a node ended: its last record, and why there is no better one.

    ``refusal``: why the record was refused. ``contact``: why the node could not be asked for its records.
    ``unstarted``: the failed launch of a member of a gang. ``lost_again``: how the node was lost when it should repeat
    a stage that had passed. ``began_again``: whether it should, and left no other record. ``of_gang``: nodes run the
    stage together, so its failure implicates none of them.
    ``cleaned``: a clean ended the run. ``resume``: how to resume a run that has not ended. ``peers_passed``: number of
    other nodes that passed the stage. ``shared``: the same failure on several nodes.
    """

    node: str
    stage: str
    record: Record | None = None
    refusal: str = ""
    contact: Document | None = None
    unstarted: Document | None = None
    lost_again: Document | None = None
    began_again: bool = False
    of_gang: bool = False
    cleaned: bool = False
    resume: str = ""
    peers_passed: int = 0
    shared: "SharedFailure | None" = None

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
        return is_shipped(self.stage)

    @functools.cached_property
    def cause(self) -> str:
        """The failure class of the cause, from the record, else from the message; empty if neither has one."""
        named = class_named(named_cause(self.record)) if self.record and self.failed else None
        if named and "record" in named.explains and (named.name != NO_IMAGE or lacks_image(self.record)):
            return named.name
        of_text = "failed" if self.failed and not self.of_gang else "missing"
        return self.text_class.name if of_text in self.text_class.explains else ""

    @property
    def failure_class(self) -> str:
        return self.cause or f"{self.stage}_{self.state}"

    @property
    def is_of_program(self) -> bool:
        """Whether the program is at fault: what a user's own program reports about the node is no proof."""
        unproven = not self.shipped and (not self.cause or subject_of(self.cause) == NODE)
        return self.failed and self.cause != HARDWARE and (self.cause == OWN_PROGRAM or unproven)

    @property
    def as_failed(self) -> "FailedStage | None":
        """The failure in a form that other nodes may share. None without failure, or if its cause is in the node: as
        for a shipped program that ran and found a fault, such as wrong results."""
        of_node = bool(self.cause) and subject_of(self.cause) == NODE and not self.is_of_program
        of_node |= self.shipped and self.state == "failure" and subject_of(self.failure_class) == NODE
        if not self.failed or self.of_gang or of_node:
            return None
        text = environment.texts(self.record["environment"] if self.record else {}, "cause.text")
        name = OWN_PROGRAM if self.is_of_program else self.failure_class
        return FailedStage(self.node, self.stage, name, one_line(text[0]) if text else self.text)

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier attempt of the stage failed, too."""
        attempts = self.record["attempts"] if self.record else ()
        number = self.record["attempt"] if self.record else 0
        return any(earlier["attempt"] < number and earlier["state"] in FAILED_STATES for earlier in attempts)

    @property
    def is_refused(self) -> bool:
        """Whether the final record was refused, so that an earlier record, or none, is the last."""
        return (self.is_open or self.began_again) and self.refusal.startswith(REFUSED)

    @property
    def unreached(self) -> Document | None:
        """The lost contact with the node, if it explains the end of the stage."""
        return self.lost_again or (self.contact if self.contact and explains(self.contact, self.state) else None)

    @functools.cached_property
    def text(self) -> str:
        """The end of the stage as text, from its record."""
        if self.is_open and self.cleaned:
            return f"{self.state}: {RUN_ENDED}"
        if self.record is None or (self.is_open and self.refusal.startswith(UNREAD)):
            return self.refusal or "no record"
        message = one_line(self.record["message"])
        if self.state == "success":
            return message
        text = f"{self.state}: {message}" if message else self.state
        return f"{gang_of(self.record) or 'a gang'}: {text}" if self.failed and self.of_gang else text

    @property
    def reason(self) -> str:
        """The end of the stage as text, with what the controller knows about it."""
        if self.shared:
            return self.shared.reason
        if self.unreached:
            failure = str(self.unreached["class"])
            whose = "pod" if self.unreached.get("pod") else ""
            whose = "job" if failure.startswith("slurm_") else "runner" if failure.startswith("runner_") else whose
            why = f"its {whose} ended" if whose else "the node was unreachable"
            text = "no second measurement" if self.lost_again else self.text
            return f"{text}; {why} ({failure}): {self.unreached['message']}"
        if self.is_refused and self.record:
            return f"{self.text}; {self.refusal}"
        return f"{self.text}; the run has not ended" if self.resume and self.is_open else self.text

    @functools.cached_property
    def text_class(self) -> FailureClass:
        return launch_errors.classify("", self.text)

    @property
    def other_work(self) -> str:
        """The processes that used the accelerators besides the stage, as text; empty for none."""
        return environment.accelerator_users(self.record["environment"]) if self.record else ""


class StageRule(NamedTuple):
    """A rule for the end of a stage: if ``applies`` holds, the stage gets its verdict, failure class and remedy."""

    name: str
    applies: Callable[[StageEnd], object]
    verdict: str
    remedy: Callable[[StageEnd], str]
    class_of: Callable[[StageEnd], str] = lambda end: end.failure_class


def _fill_remedy(end: StageEnd, remedy: str) -> str:
    """The remedy with node and stage filled in, for a job with the command that repeats it."""
    text = remedy.replace("{node}", end.node).replace("{stage}", end.stage)
    return text if end.shipped else text.replace(_VALIDATE, "repeat the command")


def _with_others(end: StageEnd, remedy: str) -> str:
    """The remedy of a launch for a member of a gang, which needs the others to validate again."""
    others = _WITH_OTHERS if end.shipped else _AGAIN_WITH_ALL
    return _fill_remedy(end, remedy.replace(failure_classes.AGAIN, f"then {others}"))


def _remedy_of_class(end: StageEnd, name: str = "") -> str:
    row = class_named(name or end.failure_class)
    return _fill_remedy(end, row.remedy if row else "")


def _remedy_of_state(end: StageEnd) -> str:
    return _remedy_of_class(end, f"{end.stage}_{end.state}")


#: The first rule that applies counts.
RULES = (
    StageRule(
        "contact lost", lambda end: end.unreached, "missing",
        lambda end: str((end.unreached or {})["remedy"]).replace("{node}", end.node),
        lambda end: end.cause or one_line((end.unreached or {})["class"], 40),
    ),
    StageRule("succeeded", lambda end: end.state == "success" and not end.is_refused, "pass", lambda _: ""),
    StageRule("run not ended", lambda end: end.resume and end.is_open, "missing", lambda end: end.resume),
    StageRule(
        "not started in a gang", lambda end: end.unstarted and end.is_open and not end.cleaned, "missing",
        lambda end: _with_others(end, str((end.unstarted or {})["remedy"])),
        lambda end: one_line((end.unstarted or {})["class"], 40),
    ),
    StageRule(
        "refused its part in a gang", lambda end: end.of_gang and "gang" in end.text_class.explains, "missing",
        lambda end: _with_others(end, f"{end.text_class.steps}, {failure_classes.AGAIN}"),
    ),
    StageRule(
        "own program of a gang", lambda end: end.of_gang and end.is_of_program, "missing",
        lambda end: _fill_remedy(end, _OF_GANG_JOB), lambda _: OWN_PROGRAM,
    ),
    StageRule(
        "no success of a gang", lambda end: end.of_gang, "missing",
        lambda end: _fill_remedy(end, _OF_GANG if end.shipped else _OF_GANG_JOB),
    ),
    StageRule("hardware", lambda end: end.cause == HARDWARE, "fail", _remedy_of_class),
    StageRule("beside other work", lambda end: end.failed and end.other_work, "missing", _remedy_of_state),
    StageRule(
        "cause outside the node", lambda end: end.failed and subject_of(end.failure_class) not in (NODE, PROGRAM),
        "missing", _remedy_of_class,
    ),
    StageRule(
        "shared with other nodes", lambda end: end.shared and not end.is_of_program, "missing",
        lambda end: _remedy_of_class(end, SHARED), lambda _: SHARED,
    ),
    StageRule(
        "own program that peers passed",
        lambda end: end.is_of_program and not end.shared and end.is_repeated and end.peers_passed >= MIN_PEERS,
        "fail", _remedy_of_state, lambda end: f"{end.stage}_{end.state}",
    ),
    StageRule(
        "own program", lambda end: end.is_of_program, "missing", lambda end: _remedy_of_class(end, OWN_PROGRAM),
        lambda _: OWN_PROGRAM,
    ),
    StageRule("failed", lambda end: end.failed, "fail", _remedy_of_class),
    StageRule(
        "ended by a clean", lambda end: end.is_open and end.cleaned, "missing",
        lambda end: _remedy_of_class(end, f"{end.stage}_cancelled"),
    ),
    StageRule(
        "record refused", lambda end: end.is_refused, "missing",
        lambda end: _remedy_of_class(end, f"{end.stage}_refused"), lambda end: f"{end.stage}_refused",
    ),
    StageRule("no end", lambda _: True, "missing", _remedy_of_class),
)  # fmt: skip


def judge_end(end: StageEnd) -> Entry:
    """The check of the stage's end by the first rule that applies, with the failure class if it did not end well."""
    rule = next(rule for rule in RULES if rule.applies(end))
    return own_entry(
        f"{end.stage}_state", end.stage, "state", rule.verdict, value=end.state, expected="success", reason=end.reason,
        remedy=rule.remedy(end), **({} if rule.verdict == "pass" else {"class": rule.class_of(end)}),
    )  # fmt: skip


def lacks_image(record: Document | None) -> bool:
    """Whether the stage's image is missing, which proves nothing about the node and no retry repairs. A missing image
    that the program itself reports after its start does not count."""
    if record is None or record["state"] != "crash" or record["environment"].get("fault") != NO_IMAGE:
        return False
    return record["stage"] == IMAGE or (record["exit_code"] is None and record["signal"] is None)


def explains(contact: Document, state: str) -> bool:
    """Whether the lost contact is why the stage has no better end. In a pod that ended, the state is `cancelled`."""
    return state in OPEN_STATES or (state == "cancelled" and bool(contact.get("pod")))


#: Equal failures have a shared cause on at least this many nodes, and this share of those that ran the stage.
MIN_NODES, MIN_SHARE = 2, 0.5
#: The class of a shared failure whose cause no record names.
SHARED = "shared"
_WORDS = re.compile(r"([\w-]+(?:\.[\w-]+)*)")
#: Numbers that differ between nodes: addresses, ids, UUIDs, figures, and indexes of ranks and parts.
_NUMBER = re.compile(r"(?<![a-z])(?=[a-f:.,-]*\d)[0-9a-fx:.,-]*[0-9a-f]|\d+", re.IGNORECASE)


class FailedStage(NamedTuple):
    """A failed stage of a node, with the failure class and the text of its cause."""

    node: str
    stage: str
    failure_class: str
    text: str


@dataclass(frozen=True)
class SharedFailure:
    """A stage's failure that several nodes share; ``ran``: number of nodes on which the stage ended."""

    stage: str
    failure_class: str
    text: str
    nodes: tuple[str, ...]
    ran: int

    @property
    def reason(self) -> str:
        return f"{len(self.nodes)} of {self.ran} nodes ended alike: {self.text}"

    def entry(self) -> Entry:
        """The fleet's check for the failure, about what its nodes share."""
        row = class_named(self.failure_class)
        return own_entry(
            f"{self.stage}_shared", self.stage, "state", "missing", part="fleet", value=len(self.nodes),
            expected="success on most nodes", reason=f"{self.reason} ({some_of(self.nodes)})",
            remedy=(row.steps if row else "").replace("{stage}", self.stage).replace("{node}", self.nodes[0]),
            **{"class": self.failure_class},
        )  # fmt: skip


def find_shared(failed: Iterable[FailedStage], ran: Mapping[str, int]) -> dict[tuple[str, str], SharedFailure]:
    """For each (node, stage) the failure that the node shares with others. ``ran``: for each stage the number of nodes
    on which it ended. A failure class that is about the node becomes that of a shared failure."""
    ends = list(failed)
    names = {end.node for end in ends}
    groups = values_by_key(((end.stage, end.failure_class, normalised(end.text, names)), end) for end in ends)
    shared = {}
    for (stage, name, _), group in groups.items():
        if len(group) >= max(MIN_NODES, MIN_SHARE * ran[stage]):
            first = group[0].node
            text = group[0].text
            if re.search("[A-Za-z]", first):  # 7 is an exit code, too
                text = "".join("the node" if part == first else part for part in _WORDS.split(text))
            of_what = SHARED if subject_of(name) == NODE else name
            failure = SharedFailure(stage, of_what, text, tuple(end.node for end in group), ran[stage])
            shared.update({(node, stage): failure for node in failure.nodes})
    return shared


def normalised(text: str, names: Collection[str]) -> str:
    """The text with placeholders for all that differs between nodes: their ``names``, numbers, addresses, ranks."""
    return _NUMBER.sub("#", _names_pattern(frozenset(names)).sub("NODE", text))


@functools.lru_cache(maxsize=8)
def _names_pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Pattern of names with their domains, also within names that are composed of run and node."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{any_of(names)})(?![A-Za-z0-9])(?:\.[A-Za-z][\w-]*)*")


FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED = "flaky", "out_of_memory", "disk_full", "interrupted"
#: The store, the network, the site or a program of the user's own was at fault.
NOT_THE_NODE = "not_the_node"
#: In messages of the runner and the controller about a stage that the kernel killed because memory was short.
_OOM = re.compile(r"\b(?:probably )?out of memory: the |\bOOMKilled\b")
#: The runner's messages for a container that ended with its pod, and for a stage that a new pod finds cut off.
_ENDED_WITH_POD = "its container ended without a final record"
_CUT_OFF = "cut off (last seen "


class EarlierAttempt(NamedTuple):
    """An attempt before the last. ``earlier``: it has a lower number than the last. ``cut_off``: an end from outside
    cut off work of the same attempt, so that a passed stage may have run again with it. ``slow``: it passed and was
    slow; else it passed and was only repeated to compare a slow node."""

    record: Document
    earlier: bool
    cut_off: bool = False
    slow: bool = True

    @property
    def state(self) -> str:
        return str(self.record["state"])

    @property
    def message(self) -> str:
        return str(self.record.get("message") or "")

    @property
    def failure_class(self) -> str:
        """The failure class of the attempt's end."""
        stage = self.record["stage"]
        return named_cause(self.record) or (f"{stage}_{self.state}" if is_shipped(stage) else OWN_PROGRAM)


def retried_for(record: Document, of_node: Iterable[Document] = (), *, slow: bool = True) -> str | None:
    """The worst cause of the record's earlier attempts; None if none of them began and failed. ``of_node``: the records
    of all stages of the node. ``slow``: whether attempts that passed were slow."""
    cut_off = {_turn(attempt.record) for other in of_node for attempt in _attempts(other) if _was_interrupted(attempt)}
    attempts = (
        attempt._replace(cut_off=_turn(attempt.record) in cut_off, slow=slow)
        for attempt in _attempts(record)
        if not attempt.record.get("unrelated")
    )
    causes = {next(cause for cause, applies in RETRY_RULES if applies(attempt)) for attempt in attempts}
    return next((cause for cause in RETRY_CAUSES if cause in causes), None)


def _attempts(record: Document) -> list[EarlierAttempt]:
    return [EarlierAttempt(attempt, attempt["attempt"] < record["attempt"]) for attempt in record["attempts"]]


def _turn(attempt: Document) -> tuple[str, int]:
    """The key of stages that ran in one attempt of a node: the round of their gang, and the attempt's number."""
    return str(attempt.get("of_round", "")), attempt["attempt"]


def _was_interrupted(attempt: EarlierAttempt) -> bool:
    # With the same attempt number no new pod, but a machine that came back (from a reboot) cut the stage off.
    new_pod = attempt.message.startswith(_CUT_OFF) and attempt.earlier
    return attempt.state in ("running", "cancelled") or _ENDED_WITH_POD in attempt.message or new_pod


#: The first rule that applies counts; None is no cause for a retry.
RETRY_RULES: tuple[tuple[str | None, Callable[[EarlierAttempt], object]], ...] = (
    (None, lambda attempt: attempt.state in ("pending", "skipped")),
    (None, lambda attempt: attempt.state == "success" and (attempt.cut_off or not attempt.slow)),
    # A heartbeat of the same attempt is no earlier attempt: only the pod shows that it ended.
    (None, lambda attempt: attempt.state == "running" and not attempt.earlier),
    (INTERRUPTED, _was_interrupted),
    (
        DISK_FULL,
        lambda attempt: attempt.state == "crash" and launch_errors.classify("", attempt.message).name == DISK_FULL,
    ),
    (OUT_OF_MEMORY, lambda attempt: attempt.state == "crash" and _OOM.search(attempt.message)),
    (NOT_THE_NODE, lambda attempt: subject_of(attempt.failure_class) != NODE),
    (FLAKY, lambda attempt: True),
)
#: Causes of retries, the worst first.
RETRY_CAUSES = (FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED, NOT_THE_NODE)
