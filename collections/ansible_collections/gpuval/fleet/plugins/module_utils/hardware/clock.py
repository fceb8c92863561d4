"""Whether the system clock is synchronised, and by which source: by `chronyc`, which also gives the offset, systemd,
then the kernel (adjtimex(2)), whose flag every NTP client clears, but no hypervisor that disciplines the clock."""

from __future__ import annotations

import csv
import ctypes
import os
from typing import Any, Optional

from .tools import Run
from .tree import Tree

STA_UNSYNC = 0x0040
CHRONY_FIELDS = 14


def facts(tree: Tree, run: Run) -> dict[str, Any]:
    """Return the facts on the clock: `synchronised` is None when unknown; `offset_seconds` is clock minus true time."""
    return _chrony(run) or _systemd(run) or (_kernel() if tree.is_real else None) or _answer(None, None)


def _answer(synchronised: Optional[bool], source: Optional[str], offset: Optional[float] = None) -> dict[str, Any]:
    return {"synchronised": synchronised, "source": source, "offset_seconds": offset}


def _chrony(run: Run) -> Optional[dict[str, Any]]:
    """Return the clock's facts by `chronyc -c tracking`, which prints reference, name, stratum, time, correction in
    seconds, ..., leap status; None without chrony."""
    result = run("chronyc", "-c", "tracking", timeout=5.0)
    row = next(csv.reader(result.stdout.strip().splitlines()), []) if result.ok else []
    if len(row) != CHRONY_FIELDS:
        return None
    try:
        offset = float(row[4])
    except ValueError:
        return None
    synchronised = row[13] in ("Normal", "Insert second", "Delete second")
    return _answer(synchronised, "chronyc", offset if synchronised else None)


def _systemd(run: Run) -> Optional[dict[str, Any]]:
    result = run("timedatectl", "show", "-p", "NTPSynchronized", "--value", timeout=5.0)
    word = result.stdout.strip()
    return _answer(word == "yes", "timedatectl") if result.ok and word in ("yes", "no") else None


class _Timex(ctypes.Structure):
    """The first fields of struct timex in linux/timex.h; the rest is room for the kernel to write."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def _kernel() -> Optional[dict[str, Any]]:
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):  # this C library has no adjtimex
        return None
    timex = _Timex(modes=0)  # read only
    if adjtimex(ctypes.byref(timex)) < 0:
        return None
    return _answer(not timex.status & STA_UNSYNC, f"adjtimex ({os.uname().sysname} kernel)")
