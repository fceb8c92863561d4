"""How a stage of a node ended: its verdict, class and remedy, by a table of rules; and failures of several nodes at
once through one thing that they share: store, model, image, program, switch. Pure."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..core.escape import one_line
from ..core.text import some_of
from ..records import environment, launch_errors
from ..records.documents import FAILED_STATES, RUN_ENDED, Document, Record
from ..records.evidence import UNREAD
from ..records.failure_classes import NODE, OWN_PROGRAM, PROGRAM, FailureClass, class_named, named_cause, subject_of
from ..runs.settings import is_shipped
from .entries import Entry, gang_of, own_entry

IMAGE = "image"
NO_IMAGE, HARDWARE = "no_image", "hardware"
#: Begins the problem of a record that is no evidence.
REFUSED = "record refused: "
#: States without a last record. A lost contact with the node explains them.
OPEN_STATES = ("missing", "pending", "running")
MAX_REASON = 600

#: So many other nodes must have passed a stage before a repeated failure of the user's own program is the node's.
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
    """The last record of a stage, and what is known of why there is no better one.

    ``refusal``: why its record was refused. ``contact``: why the node could not be asked for its records;
    ``lost_again``: how it was lost when it was to repeat a stage that had passed; ``began_again``: whether it was to,
    and left no other record. ``of_gang``: nodes run the stage together, so its failure implicates none of them.
    ``cleaned``: a clean ended the run; ``resume``: how to resume a run that has not ended. ``peers_passed``: how many
    other nodes passed the stage; ``shared``: the failure that it shares with some.
    """

    node: str
    stage: str
    record: Record | None = None
    refusal: str = ""
    contact: Document | None = None
    lost_again: Document | None = None
    began_again: bool = False
    of_gang: bool = False
    cleaned: bool = False
    resume: str = ""
    peers_passed: int = 0
    shared: SharedFailure | None = None

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
        """The class of what made it fail, or of what is missing, by its record, else by its text; empty for none."""
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
        """Whether the program is at fault: what a program of the user's own says of the node is no proof."""
        unproven = not self.shipped and (not self.cause or subject_of(self.cause) == NODE)
        return self.failed and self.cause != HARDWARE and (self.cause == OWN_PROGRAM or unproven)

    @property
    def as_failed(self) -> FailedStage | None:
        """The failure as other nodes may share it; None where it is none, or its cause speaks of the node. A shipped
        program that ran and found fault, such as wrong results, speaks of its node."""
        of_node = bool(self.cause) and subject_of(self.cause) == NODE and not self.is_of_program
        of_node |= self.shipped and self.state == "failure" and subject_of(self.failure_class) == NODE
        if not self.failed or self.of_gang or of_node:
            return None
        text = environment.texts(self.record["environment"] if self.record else {}, "cause.text")
        name = OWN_PROGRAM if self.is_of_program else self.failure_class
        return FailedStage(self.node, self.stage, name, one_line(text[0]) if text else self.text)

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier attempt of the node failed, too."""
        attempts = self.record["attempts"] if self.record else ()
        number = self.record["attempt"] if self.record else 0
        return any(earlier["attempt"] < number and earlier["state"] in FAILED_STATES for earlier in attempts)

    @property
    def is_refused(self) -> bool:
        """Whether the record of its end was refused, so that an earlier one, or none, is the last."""
        return (self.is_open or self.began_again) and self.refusal.startswith(REFUSED)

    @property
    def unreached(self) -> Document | None:
        """The lost contact, where it explains the end."""
        return self.lost_again or (self.contact if self.contact and explains(self.contact, self.state) else None)

    @functools.cached_property
    def text(self) -> str:
        """The end in words, as the record has it."""
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
        """The end in words, with what the controller knows of it."""
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
        """Who else used the accelerators; empty for none."""
        return environment.accelerator_users(self.record["environment"]) if self.record else ""


class StageRule(NamedTuple):
    """Where ``applies`` holds, its verdict, class and remedy count."""

    name: str
    applies: Callable[[StageEnd], object]
    verdict: str
    remedy: Callable[[StageEnd], str]
    class_of: Callable[[StageEnd], str] = lambda end: end.failure_class


def _repeated(end: StageEnd, remedy: str) -> str:
    """The remedy with the node and stage; `make job` may have started the stage of a job."""
    text = remedy.replace("{node}", end.node).replace("{stage}", end.stage)
    return text if end.shipped else text.replace(_VALIDATE, "repeat the command")


def _remedy_of_class(end: StageEnd, name: str = "") -> str:
    row = class_named(name or end.failure_class)
    return _repeated(end, row.remedy if row else "")


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
        "refused its part in a gang", lambda end: end.of_gang and "gang" in end.text_class.explains, "missing",
        lambda end: f"{end.text_class.steps}, then {_WITH_OTHERS if end.shipped else _AGAIN_WITH_ALL}",
    ),
    StageRule(
        "own program of a gang", lambda end: end.of_gang and end.is_of_program, "missing",
        lambda end: _repeated(end, _OF_GANG_JOB), lambda _: OWN_PROGRAM,
    ),
    StageRule(
        "no success of a gang", lambda end: end.of_gang, "missing",
        lambda end: _repeated(end, _OF_GANG if end.shipped else _OF_GANG_JOB),
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
    """The check of the stage's end, by the first rule that applies; with the class of what did not end well."""
    rule = next(rule for rule in RULES if rule.applies(end))
    return own_entry(
        f"{end.stage}_state", end.stage, "state", rule.verdict, value=end.state, expected="success", reason=end.reason,
        remedy=rule.remedy(end), **({} if rule.verdict == "pass" else {"class": rule.class_of(end)}),
    )  # fmt: skip


def lacks_image(record: Document | None) -> bool:
    """Whether a stage proves nothing about the node, and a retry is no use: its image is not there. One that the
    work claims after it began does not count."""
    if record is None or record["state"] != "crash" or record["environment"].get("fault") != NO_IMAGE:
        return False
    return record["stage"] == IMAGE or (record["exit_code"] is None and record["signal"] is None)


def explains(contact: Document, state: str) -> bool:
    """Whether a lost contact is why a stage has no better end; in a pod that is ended it says `cancelled`."""
    return state in OPEN_STATES or (state == "cancelled" and bool(contact.get("pod")))


#: Nodes that fail alike share the cause if there are so many, and so large a share of those that ran the stage.
MIN_NODES, MIN_SHARE = 2, 0.5
#: The class of a shared failure whose cause no record names.
SHARED = "shared"
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
#: Addresses, ids, UUIDs and figures differ between nodes; so do the ranks and parts that they number.
_NUMBER = re.compile(r"(?<![a-z])(?=[a-f:.,-]*\d)[0-9a-fx:.,-]*[0-9a-f]|\d+", re.IGNORECASE)


class FailedStage(NamedTuple):
    """The end of a stage that failed, and what it says of the cause."""

    node: str
    stage: str
    failure_class: str
    text: str


@dataclass(frozen=True)
class SharedFailure:
    """One failure of several nodes in a stage, which ``ran`` nodes brought to an end."""

    stage: str
    failure_class: str
    text: str
    nodes: tuple[str, ...]
    ran: int

    @property
    def reason(self) -> str:
        return f"{len(self.nodes)} of {self.ran} nodes ended alike: {self.text}"

    def entry(self) -> Entry:
        """The finding about what they share, for the fleet."""
        row = class_named(self.failure_class)
        return own_entry(
            f"{self.stage}_shared", self.stage, "state", "missing", part="fleet", value=len(self.nodes),
            expected="success on most nodes", reason=f"{self.reason} ({some_of(self.nodes)})",
            remedy=(row.steps if row else "").replace("{stage}", self.stage).replace("{node}", self.nodes[0]),
            **{"class": self.failure_class},
        )  # fmt: skip


def find_shared(failed: Iterable[FailedStage], ran: Mapping[str, int]) -> dict[tuple[str, str], SharedFailure]:
    """By node and stage the failure that it shares with other nodes; ``ran``: by stage the nodes that ended it. A class
    that speaks of the node becomes that of a shared failure."""
    ends = list(failed)
    names = {end.node for end in ends}
    groups: dict[tuple[str, str, str], list[FailedStage]] = defaultdict(list)
    for end in ends:
        groups[end.stage, end.failure_class, normalised(end.text, names)].append(end)
    shared = {}
    for (stage, name, _), group in groups.items():
        if len(group) >= max(MIN_NODES, MIN_SHARE * ran[stage]):
            text = _renamed(group[0].text, {group[0].node}, "the node")
            of_what = SHARED if subject_of(name) == NODE else name
            failure = SharedFailure(stage, of_what, text, tuple(end.node for end in group), ran[stage])
            shared.update({(node, stage): failure for node in failure.nodes})
    return shared


def normalised(text: str, names: Collection[str]) -> str:
    """The text without what differs between nodes: their ``names``, numbers, addresses, ranks."""
    return _NUMBER.sub("#", _renamed(text, names, "NODE"))


def _renamed(text: str, names: Collection[str], name: str) -> str:
    return _WORD.sub(lambda word: name if word[0] in names else word[0], text)


FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED = "flaky", "out_of_memory", "disk_full", "interrupted"
#: The store, the network, the site or a program of the user's own was at fault.
NOT_THE_NODE = "not_the_node"
#: In what the runner and the controller write about a stage that the kernel killed for want of memory.
_OOM = re.compile(r"\b(?:probably )?out of memory: the |\bOOMKilled\b")
#: The runner's words for a container that ended together with its pod, and for a record that a new pod finds at work.
_ENDED_WITH_POD = "its container ended without a final record"
_CUT_OFF = "cut off (last seen "


class EarlierAttempt(NamedTuple):
    """An attempt before the last: its record, and whether it has a lower number than the last. ``cut_off``: an end from
    outside cut off work of the same attempt, so that a stage that had passed may have run again with it. ``slow``: it
    passed, and was slow; else it was measured again beside a node that was."""

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
        """The class of its end."""
        stage = self.record["stage"]
        return named_cause(self.record) or (f"{stage}_{self.state}" if is_shipped(stage) else OWN_PROGRAM)


def retried_for(record: Document, of_node: Iterable[Document] = (), *, slow: bool = True) -> str | None:
    """The worst cause of the record's earlier attempts; None without any that began and failed. ``of_node``: the
    records of all stages of the node. ``slow``: attempts that passed were slow."""
    cut_off = {_turn(attempt.record) for other in of_node for attempt in _attempts(other) if _was_interrupted(attempt)}
    causes = {
        _retry_cause(attempt._replace(cut_off=_turn(attempt.record) in cut_off, slow=slow))
        for attempt in _attempts(record)
        if not attempt.record.get("unrelated")
    }
    return next((cause for cause in RETRY_CAUSES if cause in causes), None)


def _attempts(record: Document) -> list[EarlierAttempt]:
    return [EarlierAttempt(attempt, attempt["attempt"] < record["attempt"]) for attempt in record["attempts"]]


def _turn(attempt: Document) -> tuple[str, int]:
    """What stages of a node ran in together: the round of their gang, and the number of the attempt."""
    return str(attempt.get("of_round", "")), attempt["attempt"]


def _was_interrupted(attempt: EarlierAttempt) -> bool:
    # Within one attempt a machine that came back, after a reboot for instance, cut the stage off.
    new_pod = attempt.message.startswith(_CUT_OFF) and attempt.earlier
    return attempt.state in ("running", "cancelled") or _ENDED_WITH_POD in attempt.message or new_pod


def _found_a_full_disk(attempt: EarlierAttempt) -> bool:
    return attempt.state == "crash" and launch_errors.classify("", attempt.message).name == DISK_FULL


#: The first rule that applies counts; None is no cause for a retry.
RETRY_RULES: tuple[tuple[str | None, Callable[[EarlierAttempt], object]], ...] = (
    (None, lambda attempt: attempt.state in ("pending", "skipped")),
    (None, lambda attempt: attempt.state == "success" and (attempt.cut_off or not attempt.slow)),
    # A heartbeat of the same attempt is no earlier attempt: the end is known from the pod alone.
    (None, lambda attempt: attempt.state == "running" and not attempt.earlier),
    (INTERRUPTED, _was_interrupted),
    (DISK_FULL, _found_a_full_disk),
    (OUT_OF_MEMORY, lambda attempt: attempt.state == "crash" and _OOM.search(attempt.message)),
    (NOT_THE_NODE, lambda attempt: subject_of(attempt.failure_class) != NODE),
    (FLAKY, lambda attempt: True),
)
#: From the worst.
RETRY_CAUSES = (FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED, NOT_THE_NODE)


def _retry_cause(attempt: EarlierAttempt) -> str | None:
    return next(cause for cause, applies in RETRY_RULES if applies(attempt))
