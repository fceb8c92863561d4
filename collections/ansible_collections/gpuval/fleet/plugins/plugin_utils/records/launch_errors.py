"""Why a node was not launched, as one word with a remedy, from what Ansible, ssh, sudo and the node reported. Pure.

The class is what a report is sorted and counted by; the message stays for people. Patterns are held against real texts
of ansible-core, OpenSSH and sudo (tests/unit/records/data). A text that nothing matches has the class of its
launch state: an unknown failure never counts as a known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.escape import one_line
from .states import LAUNCHED

AGAIN = "then validate again with --limit {node}"
MESSAGE_CHARACTERS = 600
#: Begins the message of a node that the watch gave up.
LOST = "lost contact: "


@dataclass(frozen=True)
class LaunchClass:
    """`name` is the class, `pattern` finds it in a message (None: known by its name alone)."""

    name: str
    remedy: str
    pattern: re.Pattern[str] | None = None


def known_class(name: str, remedy: str, *patterns: str) -> LaunchClass:
    """A class by its name, what to do about it, and patterns of messages that tell it; none: known by its name."""
    return LaunchClass(
        name, f"{remedy}, {AGAIN}", re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL) if patterns else None
    )


#: In the order in which they are tried: a banner that a jump host or a full disk comes with must not hide the cause.
CLASSES = (
    known_class(
        "bad_answer",
        "find out what answers on the node instead of gpuval (its Python, sshd or login shell), and reinstall it",
        r"the node's (?:\w+ answer|answer to \w+) is invalid",
    ),
    known_class(
        "store_away",  # before what the store's connection says, which is not the node's
        "see that the store answers (`make prepare`), check gpuval_s3_endpoint and its keys",
        r"\A(?:Task failed: )?the store cannot be used",
        r"the store refuses the read-only key",
    ),
    known_class(
        "wrong_digest",
        "if other nodes name the same file, upload the dataset anew (-e model_preload_force=true); if this node alone "
        "does, check its memory, disk and network",
        r"\Afailure: dataset \S+: wrong checksum",
    ),
    known_class(
        "wrong_host_key",
        "find out why the host key changed (a reinstalled node, another machine at this address) and accept the new "
        "one only if you know why: remove the node's line from the known_hosts file",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        r"host key for .* has changed",
        r"HOST IDENTIFICATION HAS CHANGED",
    ),
    known_class(
        "unknown_host_key",
        "bring the node's host key to the known_hosts file (`make probe` pins it, ssh-keyscan shows it)",
        r"host key is known for .* requested strict checking",
        r"Host key verification failed",
        r"authenticity of host .* can't be established",
    ),
    known_class(
        "jump_host",
        "check the jump host first: ssh did not get as far as the node",
        r"\A(?!.*open failed)(?=.*UNKNOWN port 65535).*",
    ),
    known_class(
        "booting",  # the login is refused too, but only until the node is up
        "wait until the node is up; one that stays so hangs in its boot (or has /etc/nologin): look at its console",
        r"System is (?:booting up|going down)|pam_nologin",
    ),
    known_class(
        "login_denied",
        "check ansible_user, the key or password, and that the account may log in with a shell",
        r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased|,|-with-mic|-keyex)+\)",
        r"Permission denied, please try again",
        r"Invalid/incorrect (?:user)?name/password|Invalid/incorrect password",
        r"Too many authentication failures",
        r"account has expired|account is expired|password has expired|account is currently not available",
        r"No supported authentication methods",
        r"Authentication (?:failed|failure)",
        r"UNPROTECTED PRIVATE KEY FILE",
    ),
    known_class(
        "unknown_name",
        "set ansible_host to an address, or add the name to DNS or /etc/hosts of the controller",
        r"Could not resolve hostname",
        r"Name or service not known|nodename nor servname|Temporary failure in name resolution",
    ),
    known_class(
        "refused",
        "start sshd on the node, or set ansible_port to its port; a firewall that rejects looks the same",
        r"Connection refused",
    ),
    known_class(
        "no_route",
        "check the address, the cable, the switch port and the routes to the node",
        r"No route to host|Network is unreachable|Host is down|Network is down",
    ),
    known_class(
        "hung",
        "check sshd on the node by its console: it hangs, is overloaded, or waits (a name server, a full disk)",
        r"timed out during banner exchange",
    ),
    known_class(
        "timeout",
        "check that the node is powered on, its address and its jump host, and that no firewall drops the packets; "
        "gpuval_probe_timeout_seconds sets the timeout",
        r"Connection timed out|Operation timed out",
        r"Timeout \(\d+s\) waiting for privilege escalation prompt",
    ),
    known_class(
        "sudo_password_needed",
        "give --ask-become-pass or ansible_become_password, or let the user use sudo without a password",
        r"Missing sudo password|sudo: a password is required|a terminal is required to read the password",
    ),
    known_class(
        "sudo_denied",
        "check the become password, that sudo is installed and that the user may use it",
        r"Incorrect (?:sudo|su) password|Sorry, try again",
        r"is not in the sudoers file|is not allowed to (?:execute|run sudo)",
        r"(?:/|: )\S*sudo: (?:command )?not found",
        r"you must have a tty to run sudo",
        r"effective uid is not 0",
    ),
    known_class(
        "no_python",
        "install Python 3.9 or newer on the node, or set ansible_python_interpreter to it",
        r"module interpreter .* was not found",
        r"No python interpreters found",
        r"python[0-9.]*: (?:\d+: )?(?:command )?not found",
        r"python[0-9.]*[:'\"]* No such file or directory",
    ),
    known_class(
        "old_python",
        "install Python 3.9 or newer on the node and set ansible_python_interpreter to it",
        r"Python \S+ is too old",
        r"requires a minimum of Python",
        r"future feature annotations is not defined",
    ),
    known_class(
        "disk_full",
        "free space on the node, or set gpuval_node_dir (or ansible_remote_tmp) to a file system with space",
        r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]|disk full: ",
    ),
    known_class(
        "no_space",
        "free space on the node, or set gpuval_models_dir to a folder on a larger file system",
        r"the node lacks space",
    ),
    known_class(
        "read_only",
        "look at the node's kernel log for the cause (a failing disk is one), mount it writable or set gpuval_node_dir",
        r"Read-only file system|\[Errno 30\]",
    ),
    known_class(
        "no_temporary_folder",
        "see whether the disk of the node is full or read-only and whether the user may write there, or set "
        "ansible_remote_tmp",
        r"Failed to create temporary directory",
        r"No usable temporary directory found",
    ),
    known_class(
        "other_run",
        "wait for that run (-e gpuval_wait_for_node=SECONDS queues), or end it with the clean playbook and its "
        "gpuval_run_id",
        r"is at work on this node",
    ),
    known_class(
        "same_machine_twice",
        "take one of the two names out of the inventory, or correct its address",
        r"one machine is listed twice",
    ),
    known_class(
        "shared_folder",
        "set gpuval_node_dir to a folder on a disk of the node's own",
        r"is shared with another machine",
    ),
    known_class(
        "foreign_work",
        "end what the message names, or take the node out of service for its owner first; -e gpuval_force=true runs "
        "all the same and measures both",
        r"others use this node's accelerators or run here",
    ),
    known_class(
        "no_engine",
        "install docker or podman, start it and let the user use it, or set gpuval_runtime: host",
        r"no container engine|neither docker nor podman|Cannot connect to the Docker daemon",
    ),
    known_class(
        "no_package",
        "install the packages there, set gpuval_workload_python to one that has them or gpuval_images to an image, "
        "or leave the stage out with --skip-tags",
        r"need Python packages that (?:this node|its image) lacks|DeepSpeed cannot be imported",
    ),
    known_class(
        "out_of_memory",
        "see what fills the memory or the process table of the node",
        r"Cannot allocate memory|\[Errno 12\]|Resource temporarily unavailable|fork: retry",
    ),
    known_class("not_linux", "take it out of the inventory", r"a node must run Linux"),
    known_class(
        "no_ssh",
        "set ansible_port to the port of sshd: something else answers there",
        r"banner line contains invalid|Bad packet length",
    ),
    known_class(
        "ssh_error",
        "read the log of sshd on the node for why it rejects the controller (MaxStartups, algorithms); fewer forks "
        "connect to fewer nodes at once",
        r"kex_exchange_identification|Unable to negotiate with|no matching (?:host key|key exchange|cipher)",
    ),
    known_class(
        "no_answer",
        "look on the node for what hangs (processes in state D: ps -eo pid,stat,wchan,args | grep ' D', its disks and "
        "drivers, its memory), end it or reboot",
        r"Timed out after \d+ second",
        r"no answer within \d+ s: is the node overloaded",
        r"the node did not answer within \d+ s",
        r"another launch or clean has been at work",
    ),
    known_class(
        "lost_contact",
        "see whether the node or its sshd was restarted and how stable the network to it is",
        r"Connection (?:to \S+ )?closed by remote host",
        r"Shared connection to \S+ closed",
        r"Connection (?:closed|reset) by",
        r"Connection reset|Broken pipe|client_loop: send disconnect",
        r"Timeout, server \S+ not responding",
        r"the connection broke off",
        r"the runner did not answer",
    ),
)

#: With these no login succeeded, so that the node has no files of the run.
BEFORE_LOGIN = frozenset(
    {
        "wrong_host_key",
        "unknown_host_key",
        "jump_host",
        "booting",
        "login_denied",
        "unknown_name",
        "refused",
        "no_route",
        "timeout",
        "hung",
        "no_ssh",
        "ssh_error",
        "sudo_password_needed",
        "sudo_denied",
        "no_python",
    }
)

#: With these no file of the run was written.
NOTHING_WRITTEN = BEFORE_LOGIN | {"old_python", "not_linux"}

#: Classes that no text has: probes name them, or nothing more is known than the launch state.
_BY_NAME = (
    known_class("unreachable", "check the address, the network and the login of the node"),
    known_class("plan_refused", "fix the cause named above"),
    known_class("damaged_state", "remove the file, and find out what wrote to the controller's results"),
    known_class("launch_failed", "fix the cause named above"),
    known_class("not_started", "look at the node with the status playbook"),
)
_FALLBACK = {"unreachable": "unreachable", "refused": "plan_refused", "failed": "launch_failed"}
_NAMED = {known.name: known for known in (*CLASSES, *_BY_NAME)}

_SENT = re.compile(
    r'^(?:Task failed: )?(?:Data could not be sent to remote host "[^"]*"\. '
    r"Make sure this host can be reached over ssh:|Failed to connect to the host via ssh:)\s*"
)
_FAILED = re.compile(r"^Task failed: ")
_CHANGED = re.compile(r"The fingerprint for the (\S+) key sent by the remote host is\s+(\S+?)\.?\s")
_OFFENDING = re.compile(r"Offending \S+ key in (\S+)")
#: What Ansible reports of a module whose interpreter never started.
_NO_ANSWER = "Module result deserialization failed: No start of json char found"


def classify(state: str, message: str) -> LaunchClass:
    """The class of a launch that did not start, by its message, else by its state."""
    for known in CLASSES:
        if known.pattern is not None and known.pattern.search(message):
            return known
    return _NAMED[_FALLBACK.get(state, "not_started")]


def named(name: str) -> LaunchClass | None:
    """The class of that name (as a probe gives it); None if there is no such class."""
    return _NAMED.get(name)


def remedy_of(name: str) -> str:
    """What to do about a class of that name, before one validates again."""
    return _NAMED[name].remedy.removesuffix(f", {AGAIN}")


def plain(message: str) -> str:
    """A message of Ansible as one line without the words that stand around every such message."""
    text = _SENT.sub("", message, count=1)
    if text != message and not text.strip():
        return "the connection broke off while the node was asked, and ssh gave no reason"
    text = _FAILED.sub("", text)
    if "@ " in text and "IDENTIFICATION HAS CHANGED" in text:
        key, place = _CHANGED.search(text + " "), _OFFENDING.search(text)
        shown = f": the node shows the {key[1]} key {key[2]}" if key else ""
        known = f", another one than in {place[1]}" if place else ""
        return f"REMOTE HOST IDENTIFICATION HAS CHANGED{shown}{known}"
    text = text.partition(" In some cases, you may have been able to authenticate")[0]
    text = text.removeprefix(_NO_ANSWER).strip() or text
    return one_line(text, MESSAGE_CHARACTERS)


def runner_gone(ended: str) -> dict[str, Any]:
    """Like a lost contact: why a node whose runner has gone for good has no better records."""
    by_memory = "out of memory" in ended
    remedy = (
        "give the node more memory, or bound its stages (container.memory_bytes)"
        if by_memory
        else "read runner.log in the run's folder on the node and fix the cause"
    )
    return {
        "class": "runner_out_of_memory" if by_memory else "runner_ended",
        "message": ended,
        "remedy": f"{remedy}, {AGAIN}",
    }


def described(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch with ``class``, ``remedy`` and a plain message; both are None where a runner was started.

    A class that is there already (a probe's, a node's own) is kept.
    """
    if launch.get("state") in LAUNCHED:
        return {**launch, "class": None, "remedy": None}
    message = str(launch.get("message") or "")
    text = plain(message)
    known = named(str(launch.get("class"))) or classify(str(launch.get("state", "")), f"{message}\n{text}")
    name = str(launch.get("class") or known.name)
    return {**launch, "message": text, "class": name, "remedy": launch.get("remedy") or known.remedy}


def contact(message: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a launch remembers under ``contact`` when the node, once started, could not be asked for its records.

    One that was given up stays so until it answers (``before``): when it was last heard of says more than this.
    """
    if before and str(before.get("message", "")).startswith(LOST):
        return dict(before)
    text = plain(message)
    known = classify("", f"{message}\n{text}")
    known = _NAMED["lost_contact"] if known.name == "not_started" else known
    return {"class": known.name, "message": text, "remedy": known.remedy}


def heard_again(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch after a new record of its node: that it was lost does not count any more."""
    lost = str((launch.get("contact") or {}).get("message", "")).startswith(LOST)
    return {key: value for key, value in launch.items() if not (lost and key == "contact")}
