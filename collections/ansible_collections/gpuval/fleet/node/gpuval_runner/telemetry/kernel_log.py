"""Reads the kernel's log from a stage's start, or from where the previous stage stopped: /dev/kmsg, else journalctl or
dmesg once at the stage's end.

Format of a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): `priority,sequence,microseconds,flags;text`, then
lines ` KEY=value`. The priority is facility * 8 + level. What a user writes gets a facility other than 0.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from gpuval_node.hardware.tools import ToolResult

KMSG = Path("/dev/kmsg")
#: Maximum records of one read: a driver that floods the log must not use up the sampler's time.
MAX_RECORDS = 1000
MAX_RECORD_BYTES = 8192
MAX_TOOL_LINES = 5000
TOOL_SECONDS = 10.0
LATE = "did not answer in time"
#: Device numbers of /dev/kmsg (Documentation/admin-guide/devices.txt).
KMSG_DEVICE = os.makedev(1, 11)
_RECORD = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;]{0,256};(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_STAMP = re.compile(r"\d{1,18}")
_DMESG = re.compile(r"<(\d{1,5})>\[\s*(\d{1,12}(?:\.\d{1,9})?)\](?:\[[^\]]*\])? ?(.*)")


class NoLogError(Exception):
    """The kernel's log is missing or may not be read; the message is the reason in a record."""


def open_at_end(path: Path = KMSG) -> int:
    """Return a file descriptor of the kernel's log that reads messages from now on. Raises ``NoLogError``."""
    handle = -1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(handle)
        # In containers /dev/kmsg may be /dev/null, a console or an empty file, which never give a message.
        if status.st_rdev != KMSG_DEVICE if stat.S_ISCHR(status.st_mode) else path == KMSG:
            raise FileNotFoundError(errno.ENOENT, "a stand-in")
        os.lseek(handle, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # a pipe in place of /dev/kmsg cannot seek
            if handle >= 0:
                os.close(handle)
            raise NoLogError(words(error)) from None
    return handle


def words(error: OSError) -> str:
    """Return why the kernel's log cannot be read, in words for a record."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted"
    if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return "not there"
    return error.strerror or "cannot be read"


class KernelLog:
    """Reads records of /dev/kmsg from a file descriptor without ever waiting."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._left = b""
        #: Whether records were overwritten, or cut off, before they were read.
        self.lost = False
        #: Whether the last read stopped before the log's end.
        self.more = False
        self.problem = ""

    def read(self) -> list[str]:
        """Return the kernel's own messages since the last read, at most MAX_RECORDS; never raises for their content."""
        texts: list[str] = []
        self.more = False
        for _ in range(MAX_RECORDS):
            try:
                data = os.read(self._handle, MAX_RECORD_BYTES)
            except BlockingIOError:
                return texts
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten: the next read continues after them
                    self.lost = True
                    continue
                self.problem = words(error)
                return texts
            if not data:
                return texts
            complete, newline, self._left = (self._left + data).rpartition(b"\n")
            if len(self._left) > MAX_RECORD_BYTES:
                self._left, self.lost = b"", True
            texts += [text for text in map(kernel_message, complete.split(b"\n") if newline else ()) if text]
        self.more = True
        return texts


def kernel_message(record: bytes) -> Optional[str]:
    """Return the text of a record that the kernel itself wrote; None for a user's record or a malformed one."""
    match = _RECORD.fullmatch(record)
    if match is None or int(match.group(1)) >> 3:
        return None
    text = match.group(4).decode("utf-8", "replace")
    return _ESCAPED.sub(lambda escape: chr(int(escape.group(1), 16)), text)


class Position(NamedTuple):
    """Position up to which the kernel's log was read: seconds of the last message, by wall time and since boot."""

    wall: float
    boot: float

    @classmethod
    def now(cls) -> Position:
        return cls(time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))


class Messages(NamedTuple):
    """The kernel's own messages after a position; `last` is the time of the youngest in seconds, None without one."""

    texts: list[str]
    last: Optional[float] = None
    #: Whether messages are missing: beyond the limit, or overwritten in the log.
    lost: bool = False


def by_tools(since: Position, seconds: float) -> tuple[Messages, Position]:
    """Return the messages after `since`, and the new position, within `seconds`. Raises ``NoLogError``."""
    from gpuval_node.hardware.tools import toolbox  # most helpers read /dev/kmsg and start no tool

    run = toolbox()
    deadline = time.monotonic() + seconds
    position = Position.now()

    def ask(share: float, *command: str) -> ToolResult:
        seconds_left = (deadline - time.monotonic()) * share
        if seconds_left <= 0:
            raise NoLogError(LATE)
        return run(*command, timeout=min(TOOL_SECONDS, seconds_left))

    journal = ("journalctl", "-k", "-b", "-o", "json", "--no-pager")
    answer = ask(0.5, *journal, f"--since=@{int(since.wall)}")
    if answer.returncode == 0:
        messages = parse_journal(answer.stdout, since.wall)
        is_readable = bool(messages.texts or messages.lost)
        if not is_readable:  # nothing new, or no permission to read the log?
            trial = ask(0.5, *journal, "-n", "1")
            is_readable = trial.returncode == 0 and bool(parse_journal(trial.stdout).texts)
        if is_readable:
            return messages, Position(messages.last or since.wall, position.boot)
    answer = ask(1.0, "dmesg", "--raw")
    if answer.missing:
        raise NoLogError("not there")
    if answer.timed_out:
        raise NoLogError(LATE)
    if answer.returncode != 0:
        denied = "not permitted" in answer.stderr.lower() or "permission denied" in answer.stderr.lower()
        raise NoLogError("not permitted" if denied else answer.complaint)
    messages = parse_dmesg(answer.stdout, since.boot)
    return messages, Position(position.wall, messages.last or since.boot)


def parse_journal(text: str, since_wall: float = 0.0) -> Messages:
    """Return the kernel's own messages (facility 0) of `journalctl -k -o json` after a wall time in seconds. `--since`
    of journalctl has whole seconds, so that older messages may be included; a message without a time counts as new."""
    lines = text.splitlines()
    texts: list[str] = []
    latest: Optional[float] = None
    for line in lines[-MAX_TOOL_LINES:]:
        entry = None
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
        if not isinstance(entry, dict) or str(entry.get("SYSLOG_FACILITY", "0")) != "0":
            continue
        message, stamp = entry.get("MESSAGE"), str(entry.get("__REALTIME_TIMESTAMP"))
        seconds = int(stamp) / 1e6 if _STAMP.fullmatch(stamp) else None
        if not isinstance(message, str) or not message or (seconds is not None and seconds <= since_wall):
            continue
        texts.append(message[:MAX_RECORD_BYTES])
        latest = latest if seconds is None else max(seconds, latest or seconds)
    return Messages(texts, latest, len(lines) > MAX_TOOL_LINES)


def parse_dmesg(text: str, since_boot: float) -> Messages:
    """Return the kernel's own messages of `dmesg --raw` after `since_boot` in seconds. The ring buffer normally holds
    older messages, too. If it does not, messages may have been overwritten and count as lost."""
    texts: list[str] = []
    latest: Optional[float] = None
    is_complete = not text.strip()
    for line in text.splitlines()[: -MAX_TOOL_LINES - 1 : -1]:
        match = _DMESG.fullmatch(line)
        if not match:
            continue
        seconds = float(match.group(2))
        if seconds <= since_boot:
            is_complete = True
            continue
        if not int(match.group(1)) >> 3:
            texts.append(match.group(3)[:MAX_RECORD_BYTES])
            latest = max(seconds, latest or seconds)
    return Messages(texts[::-1], latest, not is_complete)
