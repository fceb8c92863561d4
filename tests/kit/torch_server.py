"""Workloads in processes that need not import PyTorch, nor do the ranks that torchrun starts in them.

The ranks are the process's own children, forked too, with torchrun's arguments and environment. Variables that
PyTorch reads when it is imported have no effect, but for OMP_NUM_THREADS. No module of the product is imported before
the fork.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.fork_server import ForkedProcess, run


class TorchProcess(ForkedProcess):
    preloads = __name__


class _Rank(subprocess.Popen):
    """In place of the Popen of torchrun: a child forked from the process that starts the ranks."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *_):
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            run([arg for arg in args[1:] if arg != "-u"], env, str(Path.cwd()), (), is_session=True)
        self._child_created = True


def fork_ranks() -> None:
    """Let torchrun, called in this process, fork its ranks."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = _Rank


def preload() -> None:
    importlib.import_module("torch._dynamo")  # the optimizers import it
    importlib.import_module("torch.distributed.run")
    fork_ranks()
