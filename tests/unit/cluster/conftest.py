"""The fixture `project`: plays of one module against the API server for tests."""

from tests.kit.cluster_project import project

__all__ = ["project"]
