import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import values


@pytest.mark.parametrize(
    ("value", "watts"),
    [
        ("690.53 W", 690.53),
        ("250000 mW", 250),
        ({"value": 250000, "unit": "mW"}, 250),
        ({"value": 246, "unit": "W"}, 246),
        ("44", 44),
        ("5 J", None),
        ("N/A", None),
    ],
)
def test_power_is_read_with_its_unit(value, watts):
    assert values.watts(value) == watts


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("34 C", 34),
        ("67.03 W", 67.03),
        ("16x", 16),
        ("1.5e3", 1500.0),
        (7, 7),
        ({"value": 32, "unit": "GT/s"}, 32),
        ({"value": "N/A", "unit": "GB/s"}, None),
        ("N/A", None),
        ("[Not Supported]", None),
        ("Unknown Error", None),
        ("[Unknown Error]", None),
        ("GPU is lost", None),
        ("ERR!", None),
        ("Requested functionality has been deprecated", None),
        ("", None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        ([1], None),
    ],
)
def test_number(given, expected):
    assert values.number(given) == expected


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [
        ("81920 MiB", "B", 81920 * 1024**2),
        ("81920", "MiB", 81920 * 1024**2),
        ({"value": 192, "unit": "GB"}, "B", 192 * 1024**3),
        ("34342961152", "B", 34342961152),
        ("5 parsecs", "B", None),
        ("N/A", "MiB", None),
    ],
)
def test_size_bytes(given, default, expected):
    assert values.size_bytes(given, default) == expected


@pytest.mark.parametrize(("given", "expected"), [("Yes", 1), ("No", 0), ("0", 0), (3, 3), ("12.0", 12), ("N/A", None)])
def test_count(given, expected):
    assert values.count(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("1a:00.0", "0000:1a:00.0"),
        ("00010000:9D:00.1", "10000:9d:00.1"),
        ("N/A", None),
        ("not an address", None),
        (None, None),
    ],
)
def test_pci_address(given, expected):
    assert values.pci_address(given) == expected


@pytest.mark.parametrize(
    "filler", ["To Be Filled By O.E.M.", "Default string", "0123456789", "0", "000000", "N/A", " "]
)
def test_firmware_filler_is_no_identity(filler):
    assert values.identifier(filler) is None


def test_a_real_serial_number_is_kept():
    assert values.identifier(" 1654922001234 ") == "1654922001234"


@pytest.mark.parametrize(("speed", "generation"), [("16.0 GT/s PCIe", 4), (32, 5), ({"value": 2.5}, 1), (7, None)])
def test_pcie_generation(speed, generation):
    assert values.pcie_generation(speed) == generation
