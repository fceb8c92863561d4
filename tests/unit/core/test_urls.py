"""Where a URL leads."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.urls import in_clear


@pytest.mark.parametrize(
    ("endpoint", "clear"),
    [
        ("http://10.0.0.5:9000", True),
        ("HTTP://minio.store.svc:9000", True),
        ("http://[2001:db8::1]:9000", True),
        ("http://127.0.0.1.example.com", True),
        ("http://127.0.0.1:9000", False),
        ("http://[::1]:9000", False),
        ("http://localhost:9000", False),
        ("https://10.0.0.5:9000", False),
        ("", False),
    ],
)
def test_an_endpoint_without_tls_beyond_this_machine(endpoint, clear):
    assert in_clear(endpoint) is clear
