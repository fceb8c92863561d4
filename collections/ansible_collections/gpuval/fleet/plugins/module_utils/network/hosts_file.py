"""The marked block in /etc/hosts; pure.

What is outside of it is never touched, and taking it out gives the old bytes back.
"""

from __future__ import annotations

import re
from typing import Optional

#: What has to be undone besides the block stands in its first line.
BEGIN = "# BEGIN gpuval"
NO_NEWLINE = "# BEGIN gpuval (the line before had no end)"
END = "# END gpuval"
BLOCK = re.compile(rf"(?P<begin>{re.escape(BEGIN)}[^\n]*)\n(?P<lines>.*?){re.escape(END)}(?:\n|\Z)", re.DOTALL)


def block_of(entries: dict[str, str]) -> str:
    """Lines of the block: one for each address, with its names."""
    names: dict[str, list[str]] = {}
    for name, address in entries.items():
        names.setdefault(address, []).append(name)
    return "".join(f"{address} {' '.join(names[address])}\n" for address in names)


def read_block(text: str) -> Optional[str]:
    match = BLOCK.search(text)
    return match["lines"] if match else None


def set_block(text: str, lines: Optional[str]) -> str:
    """The text with this block instead of the one it has; None takes it out."""
    match = BLOCK.search(text)
    if match is None:
        if lines is None:
            return text
        begin = BEGIN if text.endswith("\n") or not text else f"\n{NO_NEWLINE}"
        return f"{text}{begin}\n{lines}{END}\n"
    if lines is not None:
        return f"{text[: match.start('lines')]}{lines}{text[match.end('lines') :]}"
    before = text[: match.start()]
    after = text[match.end() :]
    if match["begin"] == NO_NEWLINE and not after:
        before = before.removesuffix("\n")
    return before + after


def other_addresses(text: str, entries: dict[str, str]) -> dict[str, str]:
    """Names that lines outside the block give another address: the first line of a name wins."""
    addresses = {}
    for line in set_block(text, None).splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            if name in entries and entries[name] != address and name not in addresses:
                addresses[name] = address
    return addresses
