"""The ledger: a file on the node with the values before each change of its network, to restore them.

Changes are pending until the controller has confirmed them over a new connection. `clean` restores the values before
the first change of any run. Nothing here needs the controller.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..node_directory import NodeError, check_private, make_private, one_at_once, write_private
from . import listener
from .changes import NetworkChange
from .host import Deadline, NetworkHost
from .parallel import run_detached

NAME = "undo.json"
SCHEMA = "gpuval.network-undo/1"
ROLL_BACK_SECONDS = 30
RESTORE_SECONDS = 60
POLL_SECONDS = 0.2

#: Network changes by outcome of undoing: `restored`, `kept` (changed by others since, so left alone), `left` (failed).
PutBack = dict[str, list[str]]


class ChangeLedger:
    """Changes of this node's network, oldest first, each recorded before it is made. `attempt`: id of the pending."""

    def __init__(self, base: Path) -> None:
        self._base, self._folder = base, base / listener.FOLDER
        self.path = self._folder / NAME
        self.confirmed: list[NetworkChange] = []
        self.pending: list[NetworkChange] = []
        self.attempt = ""
        self._read()

    def flapped(self, boot_id: str) -> frozenset[str]:
        """Return the interfaces that went down and up in the boot `boot_id`."""
        changes = (*self.confirmed, *self.pending)
        return frozenset(change.interface for change in changes if change.kind == "flap" and change.after == boot_id)

    def begin(self, confirm_seconds: float) -> None:
        """Start an attempt, which is rolled back unless it is confirmed within `confirm_seconds` after its changes.

        A separate process rolls back. It waits for the lock of the module that makes the changes, which ends with the
        module in any case, and for locks of others: unconfirmed changes never stay.
        """
        self.attempt = attempt = secrets.token_hex(8)
        self._write()

        def roll_back_unless_confirmed() -> None:
            os.closerange(3, 1024)  # also the lock that the module holds
            with one_at_once(self._base, math.inf):
                end = time.monotonic() + confirm_seconds
            while ChangeLedger(self._base).attempt == attempt:
                if time.monotonic() < end:
                    time.sleep(POLL_SECONDS)
                    continue
                with one_at_once(self._base, math.inf):
                    ledger = ChangeLedger(self._base)
                    if ledger.attempt == attempt:
                        ledger.attempt = ""  # changes that cannot be undone must not be confirmed
                        ledger._write()
                        ledger.roll_back(NetworkHost(Deadline(ROLL_BACK_SECONDS)))
                return

        run_detached(roll_back_unless_confirmed)

    def note(self, change: NetworkChange) -> None:
        """Record a change of the network that is about to be made."""
        self.pending.append(change)
        self._write()

    def confirm(self) -> None:
        """Make the pending network changes final. A later restore uses the value before a setting's first change."""
        changes = {change.identity: change for change in self.confirmed}
        for change in self.pending:
            before = changes.get(change.identity, change).before
            changes[change.identity] = replace(change, before=before)
        self.confirmed = [
            change
            for change in changes.values()
            if change.kind == "flap" or not change.is_same(change.before, change.after)
        ]
        self.pending, self.attempt = [], ""
        self._write()

    def roll_back(
        self, host: NetworkHost, is_forced: bool = True, has_confirmed: bool = False, dry: bool = False
    ) -> PutBack:
        """Restore the network's values before the pending changes; with `has_confirmed`, before all changes.

        `is_forced` also restores settings that others changed since. `dry` only lists the changes.
        """
        result: PutBack = {"restored": [], "kept": [], "left": []}
        for changes in [self.pending, self.confirmed] if has_confirmed else [self.pending]:
            for change in reversed(list(changes)):
                try:
                    outcome, text = _revert(change, host, dry=dry, is_forced=is_forced)
                except (NodeError, OSError) as error:
                    outcome, text = "left", f"{change}: {error}"
                if outcome:
                    result[outcome].append(text)
                if outcome != "left" and not dry:
                    changes.remove(change)
                    self._write()
        if not (dry or self.pending):
            self.attempt = ""
            self._write()
        return result

    def _write(self) -> None:
        """Write the ledger file; without changes, remove it and its empty folders."""
        if self.confirmed or self.pending or self.attempt:
            make_private(self._base)
            make_private(self._folder)
            changes = {name: [asdict(change) for change in getattr(self, name)] for name in ("confirmed", "pending")}
            document = {"schema": SCHEMA, **changes, "attempt": self.attempt}
            write_private(self.path, (json.dumps(document, indent=1) + "\n").encode())
            return
        self.path.unlink(missing_ok=True)
        for folder in (self._folder, self._base):
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
            raise NodeError(f"{self.path} cannot be read: {error.strerror}; use the user that it belongs to") from error
        check_private(self._folder)  # others must not write it: the file's values become commands
        try:
            document = json.loads(text)
            # release 1.0 wrote final changes as `changes`
            confirmed = document["changes" if "changes" in document else "confirmed"]
            confirmed = confirmed if document["schema"] == SCHEMA else document[SCHEMA]
            self.confirmed = [NetworkChange(**entry) for entry in confirmed]
            self.pending = [NetworkChange(**entry) for entry in document.get("pending", ())]
            self.attempt = str(document.get("attempt", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(
                f"{self.path} is damaged ({error}): check the node's network by hand, then remove the file"
            ) from error


def is_changed(base: Path) -> bool:
    """Whether the ledger below gpuval's folder `base` has changes of the network to restore."""
    return (base / listener.FOLDER / NAME).is_file()


def is_touched(base: Path) -> bool:
    """Whether network changes or a listener are left on this node."""
    return (base / listener.FOLDER).is_dir()


def restore_network(base: Path, seconds: float = RESTORE_SECONDS, dry: bool = False) -> PutBack:
    """End the listener and restore all values in the ledger below `base`; `dry` only lists them.

    Changes that could not be restored stay in the file for a retry.
    """
    ended: list[str] = []
    try:
        check_private(base / listener.FOLDER)
        if not dry and listener.stop(base):
            ended.append("listener on declared ports: ended")
        result = ChangeLedger(base).roll_back(
            NetworkHost(Deadline(seconds)), is_forced=False, has_confirmed=True, dry=dry
        )
        return {**result, "restored": ended + result["restored"]}
    except (NodeError, OSError) as error:
        return {"restored": ended, "kept": [], "left": [str(error)]}


def _revert(change: NetworkChange, host: NetworkHost, *, dry: bool, is_forced: bool) -> tuple[str, str]:
    """Restore a network setting's value before a change. Returns a key of ``PutBack`` (empty: no need) and a text."""
    state = host.state(change.sysctls)
    present = change.value_in(state)
    if change.interface and change.interface not in state.interfaces:
        return "kept", f"{change}: {change.interface} is gone"
    if change.kind == "flap":
        if present == "up" and not is_forced:
            return "", ""
        if not dry:
            host.bring_up(change.interface, change.before)
        return "restored", str(change)
    if change.is_same(present, change.before):
        return "", ""
    is_own = change.is_same(present, change.after) or (change.kind == "route" and present is None)
    if not (is_own or is_forced):
        return "kept", f"{change}: now {_in_one_line(present)}, which gpuval did not set"
    if not dry:
        host.make(change.inverse())
        present = change.value_in(host.state(change.sysctls))
        if not change.is_same(present, change.before):
            raise NodeError(f"still {_in_one_line(present)} after it was restored")
    return "restored", str(change.inverse())


def _in_one_line(value: Any) -> str:
    return " ".join(str(value).split())[:200]
