"""How many nodes of a run work, and load images, at once: set by its command, or while it runs by `make window`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..runs import folder as run_folder


@dataclass(frozen=True)
class Window:
    """How many nodes work at once, and how many of them load images; 0 is no limit."""

    nodes: int
    transfers: int

    def __str__(self) -> str:
        most = f"at most {self.transfers}" if 0 < self.transfers < (self.nodes or self.transfers + 1) else "all"
        return f"{self.nodes or 'all'} node(s) work at once, {most} of them may load images"


def window_file(folder: run_folder.RunFolder) -> Path:
    return folder.state / "window.json"


def write_window(folder: run_folder.RunFolder, nodes: int | None, transfers: int | None) -> dict[str, Any]:
    """Set a run's limits of nodes at work and of transfers; None leaves one as it is. Returns the file's content."""
    content = {**run_folder.read_object(window_file(folder)), "at": run_folder.now()}
    content |= {key: value for key, value in (("nodes", nodes), ("transfers", transfers)) if value is not None}
    run_folder.write_json(window_file(folder), content)
    return content


def read_window(folder: run_folder.RunFolder, default: Window) -> Window:
    """The limits that `make window` has set for a run; `default` holds for those that are not set or damaged."""
    content = run_folder.read_object(window_file(folder))
    limits = {name: content.get(name) for name in ("nodes", "transfers")}
    return replace(default, **{name: limit for name, limit in limits.items() if type(limit) is int and limit >= 0})
