"""Why a figure is absent, held against what the verdict takes for an excuse: a good node could not have it.

An error of a driver, a tool that did not answer and a reading that broke off excuse nothing.
"""

import errno

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import EXCUSE
from gpuval_node.hardware import amd_gpus, gaudi_gpus, nvidia_gpus, nvml
from gpuval_node.hardware import nvidia_gpus as nvidia_smi
from gpuval_node.hardware.source import SourceError
from gpuval_runner.telemetry import kernel_log, summary

from tests.kit.telemetry import build_nvml


def test_of_nvmls_codes_only_those_of_good_gpus_excuse():
    excusing = {code for code in nvml.REASONS if EXCUSE.search(nvml.reason(code))}
    assert excusing == nvml.CANNOT
    assert not EXCUSE.search(nvml.reason(12345))


@pytest.mark.parametrize(
    "reason",
    [
        nvml.VIRTUAL,
        nvidia_gpus.NOT_REPORTED,
        nvidia_gpus.NOT_ASKED,
        *nvidia_smi.NO_VALUE.values(),
        amd_gpus.NO_FILE,
        amd_gpus.VIRTUAL,
        amd_gpus.RETIRES,
        amd_gpus.NO_THROTTLE,
        gaudi_gpus.NOT_REPORTED,
        kernel_log.words(OSError(errno.EPERM, "x")),
        kernel_log.words(OSError(errno.ENOENT, "x")),
    ],
)
def test_what_excuses(reason):
    assert EXCUSE.search(reason)


@pytest.mark.parametrize(
    "reason",
    [
        nvidia_smi.ERROR,
        summary.NO_VALUE,
        summary.NEVER_BUSY,
        summary.NOT_COMPARED,
        kernel_log.LATE,
        kernel_log.words(OSError(errno.EIO, "Input/output error")),
    ],
)
def test_what_does_not_excuse(reason):
    assert not EXCUSE.search(reason)


def test_a_driver_that_cannot_be_loaded_does_not_excuse():
    with pytest.raises(SourceError) as caught:
        nvml.Nvml("libno-such-nvml.so.1")
    assert not EXCUSE.search(str(caught.value))


def test_of_several_gpus_answers_an_error_counts(tmp_path):
    source = nvml.Nvml(str(build_nvml(tmp_path)))
    for code, excuses in ((nvml.NOT_SUPPORTED, True), (999, False), (nvml.NOT_SUPPORTED, False)):
        source._checked("ecc_corrected", code, None)
        assert bool(EXCUSE.search(source.absent["ecc_corrected"])) is excuses


@pytest.mark.parametrize(
    ("cell", "excuses"),
    [
        ("[N/A]", True),
        ("[Not Supported]", True),
        ("[Insufficient Permissions]", True),
        ("[Unknown Error]", False),
        ("[GPU is lost]", False),
    ],
)
def test_a_cell_of_nvidia_smi(cell, excuses):
    told = nvidia_smi.refusals({"ecc.errors.corrected.volatile.total": cell, "power.draw": "300.00 W"})
    assert told.keys() == {"ecc_corrected"} and bool(EXCUSE.search(told["ecc_corrected"])) is excuses


def test_files_of_amdgpu_that_are_not_there_excuse_and_those_that_cannot_be_read_do_not(tmp_path):
    (tmp_path / "pcie_replay_count").mkdir()  # it is there, and reading it fails
    (tmp_path / "current_link_width").write_text("0\n")
    card = amd_gpus.Card(tmp_path)
    assert "pcie_replays" not in card.counters() and "pcie_replays" not in card.absent
    assert card.absent["ecc_corrected"] == amd_gpus.NO_FILE and card.absent["power_watts"] == amd_gpus.NO_FILE
    assert card.absent["pcie_width"] == card.absent["pcie_generation"] == amd_gpus.VIRTUAL
