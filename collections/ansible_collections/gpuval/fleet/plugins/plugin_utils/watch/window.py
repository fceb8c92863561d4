"""How many nodes of a run work at once, changed while it is watched (`make window`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs import folder as run_folder


@dataclass(frozen=True)
class Window:
    """How many nodes work at once, and how many of them bring images; 0 is no limit."""

    nodes: int
    transfers: int

    def __str__(self) -> str:
        most = f"at most {self.transfers}" if 0 < self.transfers < (self.nodes or self.transfers + 1) else "all"
        return f"{self.nodes or 'all'} node(s) work at once, {most} of them may load images"


def file_of(folder: run_folder.RunFolder) -> Path:
    return folder.state / "window.json"


def write(folder: run_folder.RunFolder, nodes: int | None, transfers: int | None) -> dict[str, Any]:
    """Set what is not None; what was set earlier stays. Returns the file's content."""
    content = {**run_folder.read_object(file_of(folder)), "at": run_folder.now()}
    content |= {key: value for key, value in (("nodes", nodes), ("transfers", transfers)) if value is not None}
    run_folder.write_json(file_of(folder), content)
    return content


def read(folder: run_folder.RunFolder, otherwise: Window) -> Window:
    """The window that was set for the run; what was not set, or is damaged, is as in `otherwise`."""
    content = run_folder.read_object(file_of(folder))
    nodes, transfers = content.get("nodes"), content.get("transfers")
    return Window(_number(nodes, otherwise.nodes), _number(transfers, otherwise.transfers))


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
