"""The API server for tests, a client of it, and plays of one module against it. Denials are final at once."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import api

from tests.kit.cluster import ClusterKit
from tests.kit.cluster_project import project

__all__ = ["project"]


@pytest.fixture(autouse=True)
def _final_denials(monkeypatch):
    monkeypatch.setattr(api, "DENIED_SECONDS", 0.0)


@pytest.fixture
def kit(tmp_path):
    with ClusterKit(tmp_path) as kit:
        yield kit


@pytest.fixture
def cluster(kit):
    with api.Cluster(api.ClusterAccess(str(kit.kubeconfig), "", "gpuval")) as cluster:
        yield cluster
