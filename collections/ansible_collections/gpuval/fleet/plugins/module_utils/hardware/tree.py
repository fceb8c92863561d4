"""Reads files of /sys, /proc and /etc below a root; a missing or forbidden file gives None."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

READ_LIMIT_BYTES = 2 << 20
#: Size of the first read: for /proc/sys the kernel clears a buffer of that size, half a millisecond for 2 MiB.
FIRST_READ_BYTES = 1 << 16


def read_text(path: Path) -> Optional[str]:
    """Return the stripped text of a file; None when the file is missing, empty or not readable."""
    try:
        with path.open("rb") as file:
            text = file.read(FIRST_READ_BYTES)
            if len(text) == FIRST_READ_BYTES:
                text += file.read(READ_LIMIT_BYTES - FIRST_READ_BYTES)
    except OSError:  # missing, no permission, or EINVAL from a driver that has no value now
        return None
    return text.decode("utf-8", "replace").strip("\0 \t\r\n") or None


def read_number(path: Path) -> Optional[int]:
    """Return the integer in a file (hexadecimal with 0x); None without one."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def plain_mount(folder: str) -> str:
    """Return a folder of a list of mounts without the kernel's octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), folder)


class Tree(NamedTuple):
    """A machine's file tree; paths are given as on the machine (`/proc/meminfo`)."""

    root: str = "/"

    @property
    def is_real(self) -> bool:
        """Whether this is the tree of the machine that this process runs on."""
        return self.root == "/"

    def path(self, name: str) -> Path:
        return Path(self.root) / name.lstrip("/")

    def read(self, name: str) -> Optional[str]:
        return read_text(self.path(name))

    def number(self, name: str) -> Optional[int]:
        return read_number(self.path(name))

    def data(self, name: str) -> bytes:
        """Return the first FIRST_READ_BYTES of the file at path ``name`` of the machine; empty if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(FIRST_READ_BYTES)
        except OSError:
            return b""

    def entries(self, name: str) -> list[str]:
        """Return the sorted names in a directory, numbers in numeric order; empty when it is missing."""
        try:
            names = [entry.name for entry in self.path(name).iterdir()]
        except OSError:
            return []
        return sorted(names, key=lambda name: (int(name) if name.isdecimal() else -1, name))

    def way(self, name: str) -> tuple[str, ...]:
        """Return the names on the real path of a link's target, below the root; empty for a broken link."""
        try:
            return self.path(name).resolve(strict=True).relative_to(Path(self.root).resolve()).parts
        except (OSError, ValueError, RuntimeError):
            return ()

    def mounts(self) -> Optional[list[list[str]]]:
        """Return device, folder, type and options of all mounts; None if the kernel does not list them."""
        table = self.read("/proc/mounts")
        rows = [line.split(" ")[:4] for line in (table or "").splitlines()]
        for row in rows:
            row[1:2] = [plain_mount(folder) for folder in row[1:2]]
        return [row for row in rows if len(row) == 4] if table else None

    def link_name(self, name: str) -> Optional[str]:
        """Return the last part of a link's target, which in sysfs names a driver or device."""
        try:
            return self.path(name).readlink().name
        except OSError:
            return None

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))
