"""Why a node was not launched, as one word with a remedy, from what Ansible, ssh, sudo and the node reported.

The class is what a report is sorted and counted by; the message stays for people. Patterns are held against real texts
of ansible-core, OpenSSH and sudo (tests/unit/records/data). A text that nothing matches has the class of its
launch state: an unknown failure never counts as a known one. Pure but for reading ``failures/launch.yml``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.escape import one_line
from . import failure_classes
from .documents import LAUNCHED
from .failure_classes import AGAIN, FailureClass, find

MESSAGE_CHARACTERS = 600
#: Placeholder in the remedy of no_package if the stages are unknown.
SOME_STAGES = "STAGE,STAGE"
#: Start of the message about a node that the controller's watch loop gave up as lost.
LOST = "lost contact: "

_GROUPS = failure_classes.read(failure_classes.LAUNCH)
#: Failure classes of messages, in the order in which their patterns are tried.
CLASSES = _GROUPS["messages"]
#: Failure classes of launches by name, including those without a pattern.
NAMED = {known.name: known for group in _GROUPS.values() for known in group}

#: Names of failure classes before any login: the node has no files of the run.
BEFORE_LOGIN = frozenset(known.name for known in CLASSES if known.before_login)

#: Failure classes of a node lost during a run without drain or preemption: the node is at fault even if it comes back.
NODE_LOST = frozenset({"slurm_node_failed", "node_lost", "container_lost"})

#: Failure classes of a lost runner, which the node may have caused.
RUNNER_LOST = frozenset({"runner_ended", "runner_out_of_memory"})
#: Max interruptions of a node that a launch keeps, as in launch.schema.json.
MAX_INTERRUPTIONS = 9
#: Names of failure classes after which the node has no file of the run.
NOTHING_WRITTEN = BEFORE_LOGIN | {"old_python", "not_linux"}
#: Failure class of a launch that was refused because another run is at work on the node.
OTHER_RUN = "other_run"
_AT_WORK = re.compile(r"\brun ([A-Za-z0-9][A-Za-z0-9._-]{0,62}) is at work on this node", re.ASCII)
#: Failure classes by the state of a launch, for messages that no pattern matches.
_FALLBACK = {"unreachable": "unreachable", "refused": "plan_refused", "failed": "launch_failed"}
_SENT = re.compile(
    r'^(?:Task failed: )?(?:Data could not be sent to remote host "[^"]*"\. '
    r"Make sure this host can be reached over ssh:|Failed to connect to the host via ssh:)\s*"
)
_FAILED = re.compile(r"^Task failed: ")
_CHANGED = re.compile(r"The fingerprint for the (\S+) key sent by the remote host is\s+(\S+?)\.?\s")
_OFFENDING = re.compile(r"Offending \S+ key in (\S+)")
#: Ansible's message for a module whose interpreter never started.
_NO_ANSWER = "Module result deserialization failed: No start of json char found"


def classify(state: str, message: str) -> FailureClass:
    """The failure class of a launch that did not start, from its message, else from its state."""
    return _with_run(find(message, CLASSES) or NAMED[_FALLBACK.get(state, "not_started")], message)


def other_run(message: str) -> str:
    """The id of the run that is at work on the node, from the node's refusal; else empty."""
    match = _AT_WORK.search(message)
    return match[1] if match else ""


def _with_run(failure: FailureClass, message: str) -> FailureClass:
    """The failure class, whose remedy's commands get the id of the other run that ``message`` names."""
    run_id = other_run(message) if failure.name == OTHER_RUN else ""
    return replace(failure, steps=failure.steps.replace("RUN=ID", f"RUN={run_id}")) if run_id else failure


def plain(message: str) -> str:
    """An error message of Ansible or ssh as one line, without the phrases that Ansible puts around every message."""
    text = _SENT.sub("", message, count=1)
    if text != message and not text.strip():
        return "the connection broke off while the node was asked, and ssh gave no reason"
    text = _FAILED.sub("", text)
    if "@ " in text and "IDENTIFICATION HAS CHANGED" in text:
        key, offending = _CHANGED.search(text + " "), _OFFENDING.search(text)
        key_text = f": the node shows the {key[1]} key {key[2]}" if key else ""
        other_key = f", another one than in {offending[1]}" if offending else ""
        return f"REMOTE HOST IDENTIFICATION HAS CHANGED{key_text}{other_key}"
    text = text.partition(" In some cases, you may have been able to authenticate")[0]
    text = text.removeprefix(_NO_ANSWER).strip() or text
    return one_line(text, MESSAGE_CHARACTERS)


def runner_gone(ended: str) -> dict[str, Any]:
    """The ``contact`` of a launch whose runner is gone for good, with class and remedy. ``ended``: how it ended."""
    name, remedy = "runner_ended", "read runner.log in the run's folder on the node and fix the cause"
    if "out of memory" in ended:
        name, remedy = "runner_out_of_memory", "give the node more memory, or bound its stages (container.memory_bytes)"
    return {"class": name, "message": ended, "remedy": f"{remedy}, {AGAIN}"}


def contact_of(launch: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why the node could not be asked for its records, or why its runner is gone; None if neither."""
    return launch.get("contact") or (runner_gone(launch["ended"]) if launch.get("ended") else None)


def is_not_measured_again(launch: Mapping[str, Any]) -> bool:
    """Whether the node's second measurement did not start and was given up: the records of the first count."""
    return any(item["class"] == failure_classes.NOT_MEASURED_AGAIN for item in launch.get("interruptions", ()))


def loss_of(launch: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How a launch lost the node, the connection or the runner; None if it only waits, was refused or preempted."""
    is_away = launch.get("state") == "unreachable"
    loss = contact_of(launch) or (described(launch) if is_away else None)
    of_node = loss and (
        failure_classes.subject_of(loss["class"]) in failure_classes.OF_MACHINE or loss["class"] in RUNNER_LOST
    )
    return loss if is_away or of_node else None


def described(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch with ``class``, ``remedy`` and a plain message; class and remedy are None if a runner was started. An
    existing class (from a probe or the node) is kept."""
    if launch.get("state") in LAUNCHED:
        return {**launch, "class": None, "remedy": None}
    message = str(launch.get("message") or "")
    text = plain(message).removeprefix(f"{launch.get('node')}: ")  # the name is shown already
    failure = NAMED.get(str(launch.get("class"))) or classify(str(launch.get("state", "")), f"{message}\n{text}")
    failure = _with_run(failure, message)
    name = str(launch.get("class") or failure.name)
    remedy = failure.remedy.replace(SOME_STAGES, ",".join(launch.get("lacking_stages", (SOME_STAGES,))))
    return {**launch, "message": text, "class": name, "remedy": launch.get("remedy") or remedy}


def contact(message: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The launch's ``contact`` entry for a started node that could not be asked for its records. A node that was given
    up keeps its entry ``before`` until it answers, since that has the last heartbeat."""
    if before and str(before.get("message", "")).startswith(LOST):
        return dict(before)
    text = plain(message)
    failure = classify("", f"{message}\n{text}")
    failure = NAMED["lost_contact"] if failure.name == "not_started" else failure
    return {"class": failure.name, "message": text, "remedy": failure.remedy}


def with_interruptions(launch: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The launch with its ``interruptions``: outages, and losses of the node in the launch ``before``."""
    contact = before.get("contact") or {}
    number, earlier = (answer.get("attempt", 1) for answer in (launch, before))
    is_later = isinstance(number, int) and isinstance(earlier, int) and number > earlier
    new = [dict(contact)] if is_later and contact.get("class") in NODE_LOST else []
    every = [*before.get("interruptions", ()), *launch.get("interruptions", ()), *new]
    interruptions = [lost for number, lost in enumerate(every) if lost not in every[:number]][:MAX_INTERRUPTIONS]
    return {**launch, "interruptions": interruptions} if interruptions else dict(launch)


def heard_again(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch after a new record of its node, without the loss of contact."""
    lost = str((launch.get("contact") or {}).get("message", "")).startswith(LOST)
    return {key: value for key, value in launch.items() if not (lost and key == "contact")}
