"""Share a real store."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    embedded = EmbeddedStore(tmp_path_factory.mktemp("store"), "gpuval")
    embedded.start()
    yield embedded
    embedded.stop()


@pytest.fixture
def embedded(tmp_path):
    """A store of the test's own."""
    embedded = EmbeddedStore(tmp_path / "store", "gpuval")
    embedded.start()
    yield embedded
    embedded.stop()


@pytest.fixture
def store(served):
    """A client of its own, of an empty bucket; `requests` are the operations that it sent."""
    store = Store(served.connection())
    for folder in store.level()[0]:
        store.delete_prefix(folder)
    store.requests = []
    store.client.meta.events.register("before-send.s3", lambda request, **_: store.requests.append(request.method))
    store.names = []
    store.client.meta.events.register(
        "provide-client-params.s3", lambda params, model, **_: store.names.append(model.name)
    )
    return store
