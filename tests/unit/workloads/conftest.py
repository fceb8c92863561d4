"""PyTorch in the process that runs the tests, where Ansible is loaded too."""

import sys

import pytest


@pytest.fixture(autouse=True)
def plain_intern(monkeypatch):
    """Ansible puts an object in place of sys.intern, which PyTorch's compiler refuses."""
    monkeypatch.setattr(sys, "intern", getattr(sys.intern, "unpatched_implementation", sys.intern))
