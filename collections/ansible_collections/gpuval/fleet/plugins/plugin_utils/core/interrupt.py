"""Makes Ctrl-C, SIGTERM and SIGHUP end ansible-playbook surely. At Ctrl-C Ansible raises KeyboardInterrupt, which
Python drops in a finalizer or in the callback of a weak reference: the run would continue without its workers. At
SIGTERM and SIGHUP Ansible prints nothing."""

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
#: Maximum seconds until the process ends, even if the console accepts no output or a worker does not end.
GRACE_SECONDS = 5


def end_at_interrupt() -> None:
    """Make ENDING_SIGNALS end this process after its workers, and run the functions registered with `atexit`."""
    controller, interrupt_workers = os.getpid(), signal.getsignal(signal.SIGINT)
    if not callable(interrupt_workers):  # Ansible has set no handler
        return
    terminal = termios.tcgetattr(0) if os.isatty(0) else None

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != controller:  # a worker that was just forked and has no handler yet
            os._exit(EXIT_CODE)
        for ending in (*ENDING_SIGNALS, signal.SIGALRM):
            signal.signal(ending, signal.SIG_DFL)
        signal.alarm(GRACE_SECONDS)
        # New streams: the interrupted code may be inside a write to the old ones, which holds their lock.
        sys.stdout = os.fdopen(1, "w", 1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="replace", closefd=False)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                interrupt_workers(signal.SIGINT, frame)
            cause = "User" if number == signal.SIGINT else signal.Signals(number).name
            with contextlib.suppress(OSError):  # Ctrl-C also ends the reader of a pipe
                print(f"[ERROR]: {cause} interrupted execution", file=sys.stderr)
            atexit._run_exitfuncs()
        finally:
            if terminal:  # a prompt for a password has switched the echo off
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                with contextlib.suppress(termios.error):  # after SIGHUP the terminal may be gone
                    termios.tcsetattr(0, termios.TCSANOW, terminal)
            os._exit(EXIT_CODE)

    for ending in ENDING_SIGNALS:
        if signal.getsignal(ending) != signal.SIG_IGN:  # under nohup SIGHUP stays ignored
            signal.signal(ending, end)
