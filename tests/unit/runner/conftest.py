import secrets

import pytest

from tests.kit.runner import Node, StoreServer


@pytest.fixture
def node(tmp_path):
    """A node directory of a run of its own: markers of tests that run at the same time never meet."""
    made = Node(tmp_path / "base", f"t{secrets.token_hex(5)}")
    yield made
    made.close()


@pytest.fixture
def store():
    server = StoreServer()
    yield server
    server.close()
