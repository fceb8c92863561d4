import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuval.fleet.plugins.modules import gpu_facts


def run_module(capsys, **arguments):
    with patch_module_args(arguments), pytest.raises(SystemExit) as end:
        gpu_facts.main()
    return end.value.code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("check_mode", [True, False])
def test_facts_are_returned_and_nothing_changes(machine, capsys, check_mode):
    machine.answers("nvidia-smi", "nvidia_smi_v13_h200.xml")
    code, result = run_module(capsys, root=str(machine), _ansible_check_mode=check_mode)
    assert (code, result["changed"], result["state"]) == (0, False, "success")
    assert result["ansible_facts"]["gpuval_hardware"]["accelerator"]["count"] == 2
    assert result["msg"] == "2 x NVIDIA H200; driver 590.44.01"


def test_a_missing_driver_is_reported_but_does_not_fail_the_task(machine, capsys):
    machine.pci("0000:3b:00.0", "0x10de", "0x030200")
    code, result = run_module(capsys, root=str(machine))
    assert (code, result["state"]) == (0, "failure")
    assert "0000:3b:00.0" in result["msg"]


def test_an_unknown_accelerator_is_refused(machine, capsys):
    code, result = run_module(capsys, root=str(machine), accelerator="abacus")
    assert code == 1
    assert "accelerator" in result["msg"]
