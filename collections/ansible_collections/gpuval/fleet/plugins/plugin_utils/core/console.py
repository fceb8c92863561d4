"""Prints messages of commands as one line each, and progress in the last line of a terminal."""

import os
import shutil
import sys
from typing import Any

from .commands import pasteable
from .escape import console_line


def terminal_columns() -> int:
    """Width of the terminal that this process prints to; 0 for a file, a pipe or a CI job, which keep each line."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return shutil.get_terminal_size().columns if is_terminal and not os.environ.get("CI") else 0


#: Width of the terminal of the main process, which imports this before it forks workers: these have no terminal.
COLUMNS = terminal_columns()
_START_OF_LINE = "\r\033[K"


class Console:
    """Wraps Ansible's display: prints each text as one line, even if a node put line breaks into it."""

    def __init__(self, display: Any) -> None:
        self._display = display
        #: The progress text that the terminal's last line shows, empty if none.
        self._progress = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._display, name)

    def display(self, *lines: str) -> None:
        self._clear()
        for line in lines:
            self._display.display(console_line(pasteable(line)))

    def progress(self, line: str) -> None:
        """Show progress: on a terminal in a line that the next one replaces, elsewhere as a line."""
        if not COLUMNS:
            self.display(line)
            return
        self._progress = line
        columns = terminal_columns() or COLUMNS  # the window may have been resized
        text = f"{_START_OF_LINE}{console_line(line)[: columns - 1]}\r"
        self._display.display(text, newline=False, screen_only=True)

    def end_progress(self) -> None:
        """Print the last progress once more as an ordinary line, which later output does not replace."""
        if self._progress:
            self.display(self._progress)

    def _clear(self) -> None:
        if self._progress:
            self._display.display(_START_OF_LINE, newline=False, screen_only=True)
            self._progress = ""

    def warning(self, text: str) -> None:
        self._clear()
        self._display.warning(folded(text))

    def error(self, text: str) -> None:
        self._clear()
        self._display.error(folded(text))


def folded(text: str) -> str:
    """The text as one line, which Ansible may wrap anywhere: no part of it looks like the FINAL ACCEPTANCE block."""
    return console_line(pasteable(text)).replace("FINAL ACCEPTANCE", "final acceptance")
