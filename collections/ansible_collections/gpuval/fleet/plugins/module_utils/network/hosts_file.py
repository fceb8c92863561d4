"""Reads and sets gpuval's marked block in /etc/hosts; pure.

Lines outside the block are never changed, and removing the block restores the old bytes.
"""

from __future__ import annotations

import re
from typing import Optional

#: Start of the first line of gpuval's block, which also notes whether a line end was added before the block.
BEGIN = "# BEGIN gpuval"
NO_NEWLINE = "# BEGIN gpuval (the line before had no end)"
END = "# END gpuval"
BLOCK = re.compile(rf"(?P<begin>{re.escape(BEGIN)}[^\n]*)\n(?P<lines>.*?){re.escape(END)}(?:\n|\Z)", re.DOTALL)


def block_of(entries: dict[str, str]) -> str:
    """Return the lines of gpuval's block, one for each address with its names. `entries`: address by name."""
    names: dict[str, list[str]] = {}
    for name, address in entries.items():
        names.setdefault(address, []).append(name)
    return "".join(f"{address} {' '.join(names[address])}\n" for address in names)


def read_block(text: str) -> Optional[str]:
    match = BLOCK.search(text)
    return match["lines"] if match else None


def set_block(text: str, lines: Optional[str]) -> str:
    """Return the text of the hosts file with these lines as its block; None removes the block."""
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
    """Return `{name: address}` for names in `entries` (address by name) to which the hosts file `text` gives another
    address outside of gpuval's block: a name's first line wins."""
    addresses = {}
    for line in set_block(text, None).splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            if name in entries and entries[name] != address and name not in addresses:
                addresses[name] = address
    return addresses
