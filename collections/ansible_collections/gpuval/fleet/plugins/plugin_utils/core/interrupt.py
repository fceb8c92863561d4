"""Ctrl-C ends ansible-playbook by itself. Ansible raises KeyboardInterrupt, which Python drops in a finalizer or in the
callback of a weak reference: the run would go on without its workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import termios
from types import FrameType

#: The exit status of Ansible after Ctrl-C.
EXIT_CODE = 99
#: The process ends after so many seconds also where a console takes no line, or a worker does not end.
GRACE_SECONDS = 5


def end_at_interrupt() -> None:
    """From now on SIGINT ends this process, after its workers and with what `atexit` has registered."""
    controller, interrupt_workers = os.getpid(), signal.getsignal(signal.SIGINT)
    if not callable(interrupt_workers):  # not Ansible's, which also raises: nothing to replace
        return
    terminal = termios.tcgetattr(0) if os.isatty(0) else None

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != controller:  # a worker that was just forked and has no handler yet
            os._exit(EXIT_CODE)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(GRACE_SECONDS)
        # The interrupted code may be within a write of the old streams.
        sys.stdout = os.fdopen(1, "w", 1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="replace", closefd=False)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                interrupt_workers(number, frame)
            with contextlib.suppress(OSError):  # Ctrl-C reaches the reader of a pipe, too
                print("[ERROR]: User interrupted execution", file=sys.stderr)
            atexit._run_exitfuncs()
        finally:
            if terminal:  # a hidden question has switched its echo off
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                termios.tcsetattr(0, termios.TCSANOW, terminal)
            os._exit(EXIT_CODE)

    signal.signal(signal.SIGINT, end)
