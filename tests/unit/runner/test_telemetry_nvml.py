"""NVML through ctypes against a real shared library with NVML's signatures, structures and return codes."""

import pytest
from gpuval_node.hardware.nvidia_gpus import throttle
from gpuval_node.hardware.nvml import Nvml
from gpuval_node.hardware.source import SourceError

from tests.kit.telemetry import build_nvml


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Files by which the library is told what to say."""
    monkeypatch.setenv("NVIDIA_STAND_IN", str(tmp_path))
    return lambda what, index: (tmp_path / what).write_text(str(index))


def test_a_sample_has_every_reading_in_base_units(library):
    samples = Nvml(str(library)).sample()
    assert set(samples) == set(range(8))
    assert samples[3] == {
        "temperature_celsius": 53,
        "memory_temperature_celsius": 63,
        "temperature_margin_celsius": 32,
        "power_watts": 693.5,
        "power_limit_watts": 700.0,
        "sm_clock_hertz": 1_980_000_000,
        "memory_clock_hertz": 3_201_000_000,
        "utilisation_ratio": 0.99,
        "memory_used_bytes": 100_000_000_003,
        "throttle_thermal": 0,
        "throttle_power": 1,
        "throttle_hardware": 0,
        "pcie_width": 16,
        "pcie_generation": 5,
    }
    assert (samples[2]["throttle_thermal"], samples[2]["throttle_hardware"]) == (1, 1)


def test_what_hardly_changes_is_not_read_every_time(library):
    source = Nvml(str(library))
    first, second = source.sample()[0], source.sample()[0]
    assert first.keys() - second.keys() == {"pcie_width", "pcie_generation"}
    assert second["power_limit_watts"] == 700.0


def test_counters_are_wide_and_links_are_reported_one_by_one(library, said):
    said("errors", 5)
    said("down", 6)
    counters = Nvml(str(library)).counters(1)
    assert counters[0].pop("link_corrected") > 0
    assert counters[0] == {
        "uuid": "GPU-00000000",
        "pci_address": "0000:10:00.0",
        "fabric": "n/a",
        "ecc_corrected": 5_000_000_000,
        "ecc_uncorrected": 5_000_000_000,
        "pcie_replays": 5,
        "pcie_width": 16,
        "links_up": list(range(18)),
        "link_errors": {str(link): 0 for link in range(18)},
        "row_remaps": 1,
        "row_remap_pending": 0,
        "row_remap_failed": 0,
    }
    assert (counters[5]["ecc_corrected"], counters[5]["ecc_uncorrected"]) == (5_000_000_002, 5_000_000_003)
    assert {link for link, errors in counters[5]["link_errors"].items() if errors} == {"3"}
    assert (counters[5]["row_remaps"], counters[5]["row_remap_pending"], counters[5]["pcie_replays"]) == (2, 1, 12)
    assert counters[6]["links_up"] == [link for link in range(18) if link != 7]


def test_an_older_driver_has_other_names_and_newer_links_other_counters(tmp_path):
    source = Nvml(str(build_nvml(tmp_path, "-DOLD")))
    assert source.sample()[0]["throttle_thermal"] == 1  # by the older function
    counters = source.counters(1)[0]
    assert counters["link_errors"] == {**{str(link): 1 for link in range(18)}, "4": 7}  # by field values
    assert "row_remaps" not in counters
    assert source.absent["row_remaps"] == "not supported by the GPU"


def test_the_fabric_is_one_text_that_changes_with_it(library, said):
    said("fabric-0", "3 0 2 156 426 1")
    joined = Nvml(str(library)).counters(1)[0]["fabric"]
    assert joined == "completed success 2 9c9c9c9c-9c9c-9c9c-9c9c-9c9c9c9c9c9c"
    said("fabric-0", "3 0 2 156 425 2")
    assert Nvml(str(library)).counters(1)[0]["fabric"] == f"{joined} summary Unhealthy, bandwidth Degraded"


@pytest.mark.parametrize("remembered", [False, True])
def test_a_gpu_that_is_lost_is_reported_and_the_others_are_read(library, said, remembered):
    source = Nvml(str(library))
    said("lost", 4)
    if remembered:  # NVML still gives its handle and its UUID
        said("remembered", 4)
    samples = source.sample()
    assert samples[4] == {} and samples[5]["temperature_celsius"] == 55
    counters = source.counters(1)
    assert counters[4] == {"lost": True} and counters[5]["uuid"] == "GPU-00000005"
    assert source.absent["gpu:4"] == "the GPU is lost"


@pytest.mark.parametrize("what", ["unloaded", "missing"])
def test_without_a_driver_it_says_so(library, said, what):
    said("unloaded", 0)
    name = str(library) if what == "unloaded" else "libno-such-nvml.so.1"
    with pytest.raises(SourceError, match="driver is not loaded" if what == "unloaded" else "cannot be loaded"):
        Nvml(name)


@pytest.mark.parametrize(
    ("mask", "thermal", "power", "hardware"),
    [
        (0x0, 0, 0, 0),
        (0x1 | 0x2 | 0x10 | 0x100, 0, 0, 0),  # idle, set clocks, sync boost, display: nothing is wrong
        (0x4, 0, 1, 0),
        (0x8, 0, 0, 1),
        (0x20, 1, 0, 0),
        (0x40, 1, 0, 1),
        (0x80, 0, 1, 1),
    ],
)
def test_reasons_of_clocks(mask, thermal, power, hardware):
    told = throttle(mask)
    assert (told["throttle_thermal"], told["throttle_power"], told["throttle_hardware"]) == (thermal, power, hardware)
