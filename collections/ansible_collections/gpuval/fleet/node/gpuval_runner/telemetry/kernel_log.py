"""The kernel's log from the moment a stage begins: /dev/kmsg, else journalctl or dmesg once at its end.

Format of a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): `priority,sequence,microseconds,flags;text`, then
lines ` KEY=value`. The priority is facility * 8 + level. What a user writes gets a facility other than 0.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from pathlib import Path
from typing import Optional

from gpuval_runner.telemetry import shared
from gpuval_runner.telemetry.source import SourceError

KMSG = Path("/dev/kmsg")
#: At most so much is taken in at one look: a driver that floods the log must not take the sampler's time.
MAX_RECORDS = 1000
MAX_RECORD_BYTES = 8192
MAX_TOOL_LINES = 5000
TOOL_SECONDS = 10.0
_RECORD = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;]{0,256};(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_DMESG = re.compile(r"<(\d{1,5})>\[\s*(\d{1,12}(?:\.\d{1,9})?)\](?:\[[^\]]*\])? ?(.*)")


class NoLogError(Exception):
    """The kernel's log may not be read, or is not there; the message is one of those words."""


def open_at_end(path: Path = KMSG) -> int:
    """Return a handle of the log that gives what comes from now on. Raises ``NoLogError``."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NoLogError(words(error)) from None
    try:
        os.lseek(handle, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # a stand-in may be a pipe
            os.close(handle)
            raise NoLogError(words(error)) from None
    return handle


def words(error: OSError) -> str:
    """Return why the log cannot be read, in words for a record."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted"
    if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return "not there"
    return error.strerror or "cannot be read"


class KernelLog:
    """Reads records from a handle without ever waiting."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._left = b""
        #: Whether records were overwritten, or cut off, before they were read.
        self.lost = False
        self.problem = ""

    def read(self) -> list[str]:
        """Return the kernel's own messages since the last look, bounded; never raises for what the log holds."""
        texts: list[str] = []
        for _ in range(MAX_RECORDS):
            try:
                data = os.read(self._handle, MAX_RECORD_BYTES)
            except BlockingIOError:
                return texts
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before they were read: the next read goes on after them
                    self.lost = True
                    continue
                self.problem = words(error)
                return texts
            if not data:
                return texts
            whole, newline, self._left = (self._left + data).rpartition(b"\n")
            if len(self._left) > MAX_RECORD_BYTES:
                self._left, self.lost = b"", True
            texts += [text for text in map(kernel_message, whole.split(b"\n") if newline else ()) if text]
        return texts


def kernel_message(record: bytes) -> Optional[str]:
    """Return the text of a record that the kernel itself wrote; None for a user's, and for what is no record."""
    match = _RECORD.fullmatch(record)
    if match is None or int(match.group(1)) >> 3:
        return None
    text = match.group(4).decode("utf-8", "replace")
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), text)


def by_tools(since_wall: float, since_boot: float) -> list[str]:
    """Return the kernel's messages since a moment by wall time and since boot, in seconds. Raises ``NoLogError``."""
    try:
        run = shared.tools().toolbox()
    except SourceError as error:
        raise NoLogError(str(error)) from None
    journal = ("journalctl", "-k", "-b", "-o", "json", "--no-pager")
    answer = run(*journal, f"--since=@{since_wall:.0f}", timeout=TOOL_SECONDS)
    if answer.returncode == 0 and answer.stdout.strip():
        return parse_journal(answer.stdout)
    seen = run(*journal, "-n", "1", timeout=TOOL_SECONDS)
    if answer.returncode == 0 and seen.returncode == 0 and parse_journal(seen.stdout):
        return []  # the journal may be read and has nothing new; without this an unreadable one would look the same
    answer = run("dmesg", "--raw", timeout=TOOL_SECONDS)
    if answer.missing:
        raise NoLogError("not there")
    if answer.returncode != 0:
        denied = "not permitted" in answer.stderr.lower() or "permission denied" in answer.stderr.lower()
        raise NoLogError("not permitted" if denied else answer.complaint)
    return parse_dmesg(answer.stdout, since_boot)


def parse_journal(text: str) -> list[str]:
    """Return the kernel's own messages of `journalctl -k -o json`: those of facility 0."""
    found = []
    for line in text.splitlines()[-MAX_TOOL_LINES:]:
        entry = None
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
        if not isinstance(entry, dict) or str(entry.get("SYSLOG_FACILITY", "0")) != "0":
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, str) and message:
            found.append(message[:MAX_RECORD_BYTES])
    return found


def parse_dmesg(text: str, since_boot: float) -> list[str]:
    """Return the kernel's own messages of `dmesg --raw` that are younger than a time since boot in seconds."""
    found = []
    for line in text.splitlines()[-MAX_TOOL_LINES:]:
        match = _DMESG.fullmatch(line)
        if match and not int(match.group(1)) >> 3 and float(match.group(2)) >= since_boot:
            found.append(match.group(3)[:MAX_RECORD_BYTES])
    return found
