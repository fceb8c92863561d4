"""Reads files of /sys; a file that is missing, forbidden or refused by its driver gives no value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

READ_LIMIT_BYTES = 65536


def cpu_list(text: str) -> list[int]:
    """Return a CPU list such as ``0-2,8`` as numbers; malformed parts are left out."""
    ranges = (re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part) for part in text.strip().split(","))
    return [cpu for match in ranges if match for cpu in range(int(match[1]), int(match[2] or match[1]) + 1)]


@dataclass(frozen=True)
class Sysfs:
    """A machine's /sys, or a copy of it below ``root``."""

    root: Path = Path("/sys")

    def data(self, name: str) -> bytes:
        """Return the content of a file; empty if it cannot be read."""
        try:
            with (self.root / name).open("rb") as file:
                return file.read(READ_LIMIT_BYTES)
        except OSError:
            return b""

    def read(self, name: str) -> str | None:
        """Return the first line of a file; None without one."""
        lines = self.data(name).decode("utf-8", "replace").strip("\0 \t\r\n").splitlines()
        return lines[0].strip() if lines else None

    def number(self, name: str) -> int | None:
        text = self.read(name)
        try:
            return None if text is None else int(text, 0)
        except ValueError:  # "N/A (no PMA)"
            return None

    def entries(self, name: str) -> list[str]:
        """Return the names in a folder, numbers in numeric order; empty for a missing folder."""
        try:
            names = [entry.name for entry in (self.root / name).iterdir()]
        except OSError:
            return []
        return sorted(names, key=lambda name: (int(name) if name.isdigit() else -1, name))

    def way(self, name: str) -> tuple[str, ...]:
        """Return the names on the real path of a link's target, below the root; empty for a broken link."""
        try:
            return (self.root / name).resolve(strict=True).relative_to(self.root.resolve()).parts
        except (OSError, ValueError, RuntimeError):
            return ()
