"""Put a node's network back to how it was found, last change first, and see that it is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..node_directory import NodeError, check_private
from . import listener
from .errors import NetworkError
from .host import Deadline, Host
from .journal import FOLDER, NAME, Journal
from .plan import Change, current, same

UNDO_SECONDS = 60


def is_changed(base: Path) -> bool:
    """Whether something of this node's network is to be put back."""
    return (base / FOLDER / NAME).is_file()


def is_touched(base: Path) -> bool:
    """Whether anything of the network's is left on this node: changes, or a listener."""
    return (base / FOLDER).is_dir()


def put_back(base: Path, seconds: float = UNDO_SECONDS, dry: bool = False) -> dict[str, list[str]]:
    """Undo what stands in the journal below `base`; `dry` only says what that would be.

    Returns restored (what was put back), kept (what someone else changed since, and is left alone) and left (what could
    not be put back: the journal stays, so that it can be tried again).
    """
    result: dict[str, list[str]] = {"restored": [], "kept": [], "left": []}
    if not is_touched(base):
        return result
    try:
        check_private(base / FOLDER)
        if not dry and listener.stop(base):
            result["restored"].append("listener on declared ports: ended")
        journal = Journal(base)
        host = Host(Deadline(seconds))
        for change in reversed(list(journal.changes)):
            _put_back(change, host, journal, result, dry)
        if not (result["left"] or dry):
            journal.boots = {}
            journal.remove()
    except (NetworkError, NodeError, OSError) as error:
        result["left"].append(str(error))
    return result


def _put_back(change: Change, host: Host, journal: Journal, result: dict[str, list[str]], dry: bool) -> None:
    sysctls = [change.subject] if change.kind == "sysctl" else []
    try:
        state = host.state(sysctls)
        now = current(change, state)
        if change.interface and change.interface not in state.interfaces:
            result["kept"].append(f"{change}: {change.interface} is gone")
        elif change.kind == "flap":
            if now == "down":  # it was cut off between down and up
                result["restored"].append(str(change))
                if not dry:
                    host.bring_back(change.interface, change.before)
        elif same(change, now, change.before):
            pass
        elif not same(change, now, change.after) and not (change.kind == "route" and now is None):
            result["kept"].append(f"{change}: now {_shown(now)}, which is not of gpuval")
        else:
            if not dry:
                host.make(change.inverse())
                _check(change, host, sysctls)
            result["restored"].append(str(change.inverse()))
        if not dry:
            journal.forget(change)
    except (NetworkError, OSError) as error:
        result["left"].append(f"{change}: {error}")


def _check(change: Change, host: Host, sysctls: list[str]) -> None:
    now = current(change, host.state(sysctls))
    if not same(change, now, change.before):
        raise NetworkError(f"still {_shown(now)} after it was put back")


def _shown(value: Any) -> str:
    return " ".join(str(value).split())[:200]
