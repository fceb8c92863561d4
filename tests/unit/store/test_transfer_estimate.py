"""Whether models and images can be brought in time: the arithmetic, and a measurement against a real store."""

import os

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import address, transfer_estimate
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.transfer_estimate import Bandwidth

GIGABIT = Bandwidth(1e9, "gpuval_store_bits_per_second")


def test_a_large_model_over_a_laptops_network_is_warned_of():
    told, warning = transfer_estimate.describe(100, 140_000_000_000, 7200, GIGABIT)
    assert told == (
        "at most 140.00 GB to each of 100 nodes, 14.00 TB in all: "
        "31 h 06 min at 1.00 Gbps (gpuval_store_bits_per_second)"
    )
    assert warning.startswith("models and images cannot be transferred within the deadline of 2 h 00 min: ")
    assert "gpuval_deadline_seconds" in warning


@pytest.mark.parametrize(
    "seconds, words", [(3599, ""), (3601, "would use most of"), (7201, "cannot be transferred within")]
)
def test_more_than_half_of_the_deadline_is_too_much(seconds, words):
    _told, warning = transfer_estimate.describe(10, round(seconds * 1e9 / 8 / 10), 7200, GIGABIT)
    assert (words in warning) if words else warning == ""


def test_what_any_network_gives_is_not_measured():
    assert transfer_estimate.is_trivial(100 * 5_000_000, 7200)
    assert not transfer_estimate.is_trivial(100 * 500_000_000, 7200)
    assert transfer_estimate.describe(3, 5_000_000, 7200, None) == (
        "at most 5.00 MB to each of 3 nodes, 15.00 MB in all",
        "",
    )
    assert transfer_estimate.is_trivial(0, 0)


def test_the_declared_bandwidth_counts_else_the_smaller_of_the_known():
    assert transfer_estimate.choose(5e9, 1e9, 1e9).bits_per_second == 5e9
    assert transfer_estimate.choose(0, 8e9, 1e9) == Bandwidth(1e9, "speed of the controller's network interface")
    assert transfer_estimate.choose(0, 8e8, 1e9) == Bandwidth(8e8, "measured from the controller")
    assert transfer_estimate.choose(0, None, None) is None


def test_the_newest_archive_of_an_image_counts():
    documents = [
        {"reference": "gpuval/training:1", "bytes": 10},
        {"reference": "gpuval/loading:1", "bytes": 3},
        {"reference": "gpuval/training:1", "bytes": 20},
        {"reference": "gpuval/other:1", "bytes": 1000},
        {"reference": 5, "bytes": "many"},
    ]
    wanted = ["gpuval/training:1", "gpuval/loading:1", "gpuval/loading:1", "nowhere"]
    assert transfer_estimate.image_bytes(documents, wanted) == 23


def test_a_store_is_measured_for_a_bounded_time(tmp_path):
    embedded = EmbeddedStore(tmp_path, "gpuval")
    embedded.start()
    try:
        store = Store(embedded.connection())
        store.put("models/m/weights", os.urandom(10 << 20))
        store.put("models/m/config.json", b"{}")
        objects = [(entry.key, entry.size) for entry in store.list("models/m/")]
        measured = transfer_estimate.measure(store, objects, seconds=0.5)
        assert 1e5 < measured < 1e12
        assert store.get_range("models/m/config.json", 0, 2) == b"{}"
        assert transfer_estimate.measure(store, []) is None
        assert transfer_estimate.measure(store, [("models/m/empty", 0)]) is None
    finally:
        embedded.stop()


def test_the_interface_of_no_address_has_no_speed():
    assert address.interface_bits_per_second("203.0.113.77") is None
