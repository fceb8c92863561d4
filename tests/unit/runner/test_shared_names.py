"""Names that node and controller both use, where each side has its own list of them."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory
from ansible_collections.gpuval.fleet.plugins.module_utils.engines import _engine
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import collect
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.pci import GPU_VENDORS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import documents
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import job_secrets, plans
from gpuval_runner import environment, layout, machine, plan, scratch, stage
from gpuval_runner.result import STATES as RESULT_STATES
from gpuval_workloads.common import device
from gpuval_workloads.common.result import STATES as WORKLOAD_STATES
from gpuval_workloads.job import program


def test_the_states_of_a_record():
    assert machine.FINISHED == documents.FINAL_STATES
    assert documents.FAILED_STATES | {"cancelled"} == machine.STOPPING
    assert RESULT_STATES == WORKLOAD_STATES


def test_how_a_job_says_that_its_work_is_done():
    assert (stage.STAY_FILE, stage.STAY_LINE) == (program.STAY_FILE, program.STAY_LINE)


def test_where_a_job_finds_its_secrets(tmp_path):
    assert scratch.SECRETS_FILE == program.SECRETS_FILE
    assert layout.NodeDirectory(tmp_path).secrets("a").parent.name == node_directory.SECRETS
    assert program.__package__ == plans.JOB
    assert (scratch.SHORTEST, scratch.USERNAME) == (job_secrets.SHORTEST, job_secrets.USERNAME)


@pytest.mark.parametrize(
    "names",
    [
        {*plan.VENDORS} - {"auto", "cpu"},
        {*device.ACCELERATORS} - {"auto", "cpu"},
        {*environment.MAD_VENDORS} - {"cpu"},
        {*_engine.PRESENT},
        {*collect.NAMES},
        {*collect.REMEDIES},
    ],
)
def test_the_vendors(names):
    assert names == {*GPU_VENDORS}
