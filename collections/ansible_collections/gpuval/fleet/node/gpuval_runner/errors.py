"""Errors in the runner's input. Each message says what to do next."""

from __future__ import annotations


class RunnerError(Exception):
    """The runner cannot do what the command asks for."""


class NodePlanError(RunnerError):
    """The plan is missing, malformed or does not fit the node directory."""


class StoreFileError(RunnerError):
    """The file with signed URLs of the store is malformed or readable by others, or lacks a secret of a stage."""


class LockHeldError(RunnerError):
    """Another runner holds the lock of the node directory."""
