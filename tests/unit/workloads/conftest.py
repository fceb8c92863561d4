"""PyTorch in the process that runs the tests, where Ansible is loaded too."""

import sys

import pytest

from tests.kit.model_server import ModelServer


@pytest.fixture(autouse=True)
def plain_intern(monkeypatch):
    """Ansible puts an object in place of sys.intern, which PyTorch's compiler refuses."""
    monkeypatch.setattr(sys, "intern", getattr(sys.intern, "unpatched_implementation", sys.intern))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = ModelServer(tmp_path_factory.mktemp("store"))
    server.start()
    yield server
    server.stop()
