import time

import pytest

from tests.kit.runner import Node


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "base", f"t{time.monotonic_ns()}")
    yield made
    made.close()
