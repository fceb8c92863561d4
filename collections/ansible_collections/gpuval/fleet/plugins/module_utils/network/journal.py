"""What was changed on this node and what was there before, kept until `clean` has put it back.

One journal for the node, whichever run the changes were made for: what the first of them found is what to go back to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..node_directory import check_private, make_private, write_private
from .errors import NetworkError
from .plan import Change, same

FOLDER = "network"
NAME = "undo.json"
SCHEMA = "gpuval.network-undo/1"


class Journal:
    """The changes of this node, oldest first. Written before each change is made."""

    def __init__(self, base: Path) -> None:
        self.folder = base / FOLDER
        self.path = self.folder / NAME
        self.changes: list[Change] = []
        self.boots: dict[str, str] = {}  # boot in which an interface went down and up
        self._base = base
        self._read()

    def note(self, change: Change) -> None:
        """Remember a change before it is made. A later one of the same thing keeps the first value to go back to."""
        for position, known in enumerate(self.changes):
            if known.identity == change.identity:
                if change.kind != "flap":
                    self.changes[position] = Change(
                        change.kind, change.subject, known.before, change.after, change.interface
                    )
                break
        else:
            self.changes.append(change)
        self.write()

    def forget(self, change: Change) -> None:
        """It was undone."""
        self.changes = [known for known in self.changes if known.identity != change.identity]
        self.write()

    def take_back(self, change: Change, was: list[Change]) -> None:
        """A change was undone at once: the journal has its earlier content again."""
        earlier = [known for known in was if known.identity == change.identity]
        if earlier:
            self.changes = [earlier[0] if known.identity == change.identity else known for known in self.changes]
            self.write()
        else:
            self.forget(change)

    def flapped(self, boot_id: str) -> frozenset[str]:
        return frozenset(name for name, boot in self.boots.items() if boot == boot_id)

    def tidy(self) -> None:
        """Forget what was changed back by later changes."""
        self.changes = [
            change for change in self.changes if change.kind == "flap" or not same(change, change.before, change.after)
        ]
        self.write()

    def write(self) -> None:
        if not (self.changes or self.boots):
            self.remove()
            return
        make_private(self._base)
        make_private(self.folder)
        document = {"schema": SCHEMA, "changes": [change.to_json() for change in self.changes], "flapped": self.boots}
        write_private(self.path, (json.dumps(document, indent=1) + "\n").encode())

    def remove(self) -> None:
        """The journal and the folders around it that nothing else is in."""
        self.path.unlink(missing_ok=True)
        for folder in (self.folder, self._base):
            try:
                folder.rmdir()
            except OSError:
                return

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise NetworkError(
                f"{self.path} cannot be read: {error.strerror}; use the user that it belongs to"
            ) from error
        check_private(self.folder)  # commands are made of what stands in it
        try:
            document: dict[str, Any] = json.loads(text)
            known = document["schema"] == SCHEMA
            self.changes = [Change(**entry) for entry in document["changes" if known else SCHEMA]]
            self.boots = dict(document["flapped"])
        except (ValueError, KeyError, TypeError) as error:
            raise NetworkError(
                f"{self.path} is damaged ({error}): see by hand that the network is right, then remove the file"
            ) from error
