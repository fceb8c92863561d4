"""A process that Ctrl-C, or another signal that ends it, reaches where an exception is lost, in a write, and in a
child that was just forked."""

import os
import pty
import signal
import subprocess
import sys
import termios

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.interrupt import EXIT_CODE

from tests.kit.fleet import ROOT

FILE = ROOT / "collections/ansible_collections/gpuval/fleet/plugins/plugin_utils/core/interrupt.py"
#: Ansible's handler, as far as it matters: the second Ctrl-C ends the process, the first one raises.
BEGIN = f"""
import atexit, os, runpy, signal, sys, weakref
def ansible(number, frame):
    signal.signal(number, signal.SIG_DFL)
    print("workers are interrupted", flush=True)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, ansible)
atexit.register(print, "what becomes of the run")
install = runpy.run_path({str(FILE)!r})["end_at_interrupt"]
def interrupt(*_, number=signal.SIGINT):
    os.kill(os.getpid(), number)
class Object:
    pass
class Finalized:
    __del__ = interrupt
{{}}
print("the run goes on", flush=True)
"""
LOST = {
    "a finalizer": "{install}; Finalized()",
    "a weak reference": "{install}; item = Object(); reference = weakref.ref(item, interrupt); del item",
    "code that drops all": "{install}\ntry:\n    interrupt()\nexcept BaseException:\n    pass",
    "a write": "{install}\nclass Raw(__import__('io').FileIO):\n    def write(self, data):\n        interrupt()\n"
    "sys.stdout = __import__('io').TextIOWrapper(__import__('io').BufferedWriter(Raw(1, 'w', closefd=False)))\n"
    "print('x')\nsys.stdout.flush()",
}


def run(code, **options):
    command = [sys.executable, "-c", BEGIN.format(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize("place", LOST)
def test_the_process_ends_wherever_the_interrupt_comes(place):
    done = run(LOST[place].format(install="install()"))
    assert done.returncode == EXIT_CODE, done
    assert done.stdout.replace("x\n", "").split("\n") == ["workers are interrupted", "what becomes of the run", ""]
    assert done.stderr == "[ERROR]: User interrupted execution\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_end_it_in_the_same_way(name):
    done = run(f"install(); interrupt(number=signal.{name})")
    assert done.returncode == EXIT_CODE, done
    assert done.stdout.split("\n") == ["workers are interrupted", "what becomes of the run", ""]
    assert done.stderr == f"[ERROR]: {name} interrupted execution\n"


def test_a_terminal_that_is_gone_does_not_keep_the_process():
    leader, terminal = pty.openpty()
    gone = "os.dup2(os.open(os.devnull, os.O_RDONLY), 0); interrupt(number=signal.SIGHUP)"
    try:
        done = run(f"install(); {gone}", stdin=terminal)
    finally:
        os.close(leader)
        os.close(terminal)
    assert done.returncode == EXIT_CODE and done.stderr == "[ERROR]: SIGHUP interrupted execution\n", done


def test_a_signal_that_is_ignored_as_under_nohup_stays_ignored():
    done = run("signal.signal(signal.SIGHUP, signal.SIG_IGN); install(); interrupt(number=signal.SIGHUP)")
    assert done.returncode == 0 and "the run goes on" in done.stdout


@pytest.mark.parametrize("place", ["a finalizer", "a weak reference"])
def test_an_exception_would_have_been_lost_there(place):
    done = run(LOST[place].format(install="pass"))
    assert done.returncode == 0 and "the run goes on" in done.stdout


def test_a_child_that_was_just_forked_ends_alone():
    done = run("install()\nif not os.fork():\n    interrupt()\nprint('status', os.wait()[1] >> 8)")
    assert done.stdout.split("\n")[:2] == [f"status {EXIT_CODE}", "the run goes on"], done


def test_a_worker_that_does_not_end_holds_nothing_up():
    """What multiprocessing waits for in the end may hang."""
    reading, writing = os.pipe()
    try:
        done = run(f"atexit.register(os.read, {reading}, 1); install(); interrupt()", pass_fds=[reading, writing])
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == -signal.SIGALRM, done


def test_a_terminal_has_its_echo_again():
    leader, terminal = pty.openpty()
    hidden = "import termios; mode = termios.tcgetattr(0); mode[3] &= ~termios.ECHO; termios.tcsetattr(0, 0, mode)"
    try:
        done = run(f"install(); {hidden}; interrupt()", stdin=terminal)
        assert done.returncode == EXIT_CODE, done
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
    finally:
        os.close(leader)
        os.close(terminal)
