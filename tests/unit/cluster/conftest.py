"""The fixture `project`: plays of one module against the API server for tests. Denials are final at once."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import api

from tests.kit.cluster_project import project

__all__ = ["project"]


@pytest.fixture(autouse=True)
def _final_denials(monkeypatch):
    monkeypatch.setattr(api, "DENIED_SECONDS", 0.0)
