"""Errors in the runner's input. Each message says what to do next."""

from __future__ import annotations


class RunnerError(Exception):
    """The runner cannot do what the command asks for."""


class NodePlanError(RunnerError):
    """The plan is missing, malformed or does not fit the node directory."""


class StoreFileError(RunnerError):
    """The store file is malformed or readable by others."""


class LockHeldError(RunnerError):
    """Another runner holds the lock of the node directory."""
