"""Progress is one line that moves on a terminal, and lines elsewhere."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

COLLECTIONS = Path(__file__).resolve().parents[3] / "collections"
#: Two events among three states of the progress, by Ansible's own display.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(COLLECTIONS)!r})
from ansible.utils.display import Display
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.console import Console
console = Console(Display())
console.progress("0:00:02 nodes 0/2 done")
console.progress("0:00:04 nodes 0/2 done | " + 200 * "x")
console.display("node-1 facts: success")
console.progress("0:00:06 nodes 1/2 done")
console.display("node-2 facts: success")
console.progress("0:00:08 nodes 2/2 done")
console.end_progress()
"""


#: The same with the stream of the callback, and messages that do not know of the progress.
FOREIGN_PROGRAM = (
    PROGRAM.partition("console.progress")[0]
    + """
from ansible_collections.gpuval.fleet.plugins.callback import acceptance
from ansible.utils.display import Display
import fcntl, struct, termios
sys.stdout, sys.stderr = acceptance.console(sys.stdout), acceptance.console(sys.stderr)
console.progress("0:00:02 nodes 0/2 done | " + 50 * "x")
Display().display("PLAY")
console.progress("0:00:04 nodes 0/2 done | " + 50 * "x")
Display().warning("odd")
fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
console.progress("0:00:06 nodes 1/2 done | " + 50 * "x")
console.end_progress()
"""
)


def run_on_terminal(program=PROGRAM, **environment):
    """What the program writes to a terminal of 80 columns."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LC_ALL": "C.UTF-8", "TERM": "xterm",
                   "COLUMNS": "80", **environment}  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    try:
        while piece := os.read(main, 4096):
            written += piece
    except OSError:  # Linux ends a terminal whose last writer is gone so
        pass
    os.close(main)
    assert process.wait(60) == 0, written
    return written.decode()


def shown(written):
    """The lines of a terminal after all that was written to it."""
    lines = [""]
    for piece in re.findall(r"\r\n|\r|\x1b\[K|[^\r\x1b]+", written):
        if piece == "\r\n":
            lines.append("")
        elif piece == "\x1b[K":
            lines[-1] = ""
        elif piece != "\r":
            lines[-1] = piece + lines[-1][len(piece) :]
    return [line for line in lines if line]


def test_a_terminal_shows_the_events_and_the_last_progress_alone():
    written = run_on_terminal()
    assert shown(written) == ["node-1 facts: success", "node-2 facts: success", "0:00:08 nodes 2/2 done"]
    moving = re.findall(r"\r\x1b\[K(\d[^\r]*)\r(?!\n)", written)
    assert [line[:22] for line in moving] == [f"0:00:0{second} nodes {done}/2 done" for second, done in
                                             ((2, 0), (4, 0), (6, 1), (8, 2))]  # fmt: skip
    assert max(map(len, moving)) == 79, "a line that wraps could not be replaced"


def test_messages_of_others_replace_the_progress_and_it_fits_a_terminal_that_became_narrow():
    written = run_on_terminal(FOREIGN_PROGRAM, ANSIBLE_NOCOLOR="1", COLUMNS="")
    assert shown(written) == ["PLAY", "[WARNING]: odd", "0:00:06 nodes 1/2 done | " + 50 * "x"]
    moving = re.findall(r"\r\x1b\[K(\d[^\r]*)\r(?!\n)", written)
    assert [len(line) for line in moving] == [75, 75, 29]


@pytest.mark.parametrize("environment", [{"CI": "true"}, {"TERM": "dumb"}])
def test_a_ci_job_and_a_terminal_without_controls_keep_each_line(environment):
    written = run_on_terminal(**environment)
    assert "\x1b" not in written and written.count("done") == 4
