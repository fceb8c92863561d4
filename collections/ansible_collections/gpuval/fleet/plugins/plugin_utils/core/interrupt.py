"""Ctrl-C, SIGTERM and SIGHUP end ansible-playbook by themselves. At Ctrl-C Ansible raises KeyboardInterrupt, which
Python drops in a finalizer or in the callback of a weak reference: the run would go on without its workers. At the
others it prints nothing."""

import atexit
import contextlib
import os
import signal
import sys
import termios
from types import FrameType

#: Ctrl-C; kill, timeout or a stopped service; a terminal that was closed.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The exit status of Ansible after Ctrl-C.
EXIT_CODE = 99
#: The process ends after so many seconds also where a console takes no line, or a worker does not end.
GRACE_SECONDS = 5


def end_at_interrupt() -> None:
    """Make ENDING_SIGNALS end this process after its workers, and run the functions registered with `atexit`."""
    controller, interrupt_workers = os.getpid(), signal.getsignal(signal.SIGINT)
    if not callable(interrupt_workers):  # not Ansible's, which also raises: nothing to replace
        return
    terminal = termios.tcgetattr(0) if os.isatty(0) else None

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != controller:  # a worker that was just forked and has no handler yet
            os._exit(EXIT_CODE)
        for ending in (*ENDING_SIGNALS, signal.SIGALRM):
            signal.signal(ending, signal.SIG_DFL)
        signal.alarm(GRACE_SECONDS)
        # The interrupted code may be within a write of the old streams.
        sys.stdout = os.fdopen(1, "w", 1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="replace", closefd=False)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                interrupt_workers(signal.SIGINT, frame)
            cause = "User" if number == signal.SIGINT else signal.Signals(number).name
            with contextlib.suppress(OSError):  # Ctrl-C reaches the reader of a pipe, too
                print(f"[ERROR]: {cause} interrupted execution", file=sys.stderr)
            atexit._run_exitfuncs()
        finally:
            if terminal:  # a hidden question has switched its echo off
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                with contextlib.suppress(termios.error):  # SIGHUP: it may be gone
                    termios.tcsetattr(0, termios.TCSANOW, terminal)
            os._exit(EXIT_CODE)

    for ending in ENDING_SIGNALS:
        if signal.getsignal(ending) != signal.SIG_IGN:  # as under nohup
            signal.signal(ending, end)
