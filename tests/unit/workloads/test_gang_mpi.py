"""nccl-tests across a gang: which tools are taken, how mpirun is told, what their output comes to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuval_workloads.common.launch import RANK_DIRECTORY_VARIABLE
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.gang import members, mpi, wrong_values
from gpuval_workloads.vendor_tools import collectives

from tests.kit.ports import free_port
from tests.kit.torch_server import TorchProcess
from tests.kit.workload_process import NODE

DATA = Path(__file__).resolve().parents[2] / "data" / "vendor_tools"
MEMBERS = [{"node": "a", "address": "10.9.0.1", "slots": 8}, {"node": "b", "address": "10.9.0.2", "slots": 8}]
GANG = members.parse(json.dumps({"name": "all", "members": MEMBERS, "index": 0, "port": 29500, "ssh_port": 3022}))
OPTIONS = ["-F", "/dev/null", "-o", "BatchMode=yes"]


def put(folder, name, text="#!/bin/sh\n# libmpi.so.40\n"):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path):
    put(tmp_path, "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    for name in mpi.PROGRAMS.values():
        put(tmp_path, name)
    return {"PATH": str(tmp_path)}


def test_tools_are_found_on_path_and_in_their_own_folder(tools, tmp_path):
    found, why = mpi.find(tools)
    assert (found.mpirun, why) == (str(tmp_path / "mpirun"), "")
    assert found.programs["all_to_all"] == str(tmp_path / "alltoall_perf")
    own = tmp_path / "own"
    own.mkdir()
    put(own, "all_reduce_perf")
    found, _ = mpi.find({**tools, "NCCL_TESTS_DIR": str(own)}, ["all_reduce"])
    assert found.programs == {"all_reduce": str(own / "all_reduce_perf")}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "mpirun").unlink(), "there is no mpirun"),
        (lambda folder: (folder / "sendrecv_perf").unlink(), "sendrecv_perf is neither in NCCL_TESTS_DIR"),
        (lambda folder: put(folder, "all_gather_perf", "#!/bin/sh\n"), "all_gather_perf was built without MPI"),
        (lambda folder: put(folder, "mpirun", "#!/bin/sh\necho HYDRA build details\n"), "is not that of Open MPI"),
        (lambda folder: put(folder, "mpirun", "#!/no/such/shell\n"), "is not that of Open MPI"),
    ],
)
def test_why_tools_are_not_accepted(tools, tmp_path, spoil, told):
    spoil(tmp_path)
    found, why = mpi.find(tools)
    assert found is None and told in why


def test_the_name_of_the_library_may_lie_anywhere(tmp_path):
    path = tmp_path / "program"
    path.write_bytes(b"\0" * ((1 << 20) - 3) + b"libmpi" + b"\0" * 100)
    assert mpi.is_for_mpi(path)
    path.write_bytes(b"\0" * (3 << 20))
    assert not mpi.is_for_mpi(path) and not mpi.is_for_mpi(tmp_path / "none")


def test_all_members_need_the_same_tools():
    told = {"mpirun": "/usr/bin/mpirun", "programs": {}}
    assert mpi.differing([{"tools": told}, {"tools": told}], GANG) == ""
    assert mpi.differing([{"tools": told}, {"tools": {**told, "mpirun": "/opt/mpirun"}}], GANG) == (
        "b has its nccl-tests or mpirun elsewhere than a"
    )
    assert mpi.differing([{"tools": told}, {"tools": None, "no_tools": "there is no mpirun"}], GANG) == (
        "b has no nccl-tests: there is no mpirun"
    )
    assert "none were looked for" in mpi.differing([{}, {}], GANG)


def test_mpirun_gets_hosts_and_options(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert mpi.command("/usr/bin/mpirun", GANG, Path("/w/hostfile"), OPTIONS) == [
        "/usr/bin/mpirun", "--hostfile", "/w/hostfile", "-np", "16", "--map-by", "slot", "--bind-to", "none",
        "--mca", "plm_rsh_agent", "ssh", "--mca", "plm_rsh_args", "-F /dev/null -o BatchMode=yes -p 3022",
        "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
    ]  # fmt: skip
    assert mpi.environment(GANG, OPTIONS)["PRTE_MCA_plm_ssh_args"] == "-F /dev/null -o BatchMode=yes -p 3022"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--allow-run-as-root" in mpi.command("/usr/bin/mpirun", GANG, Path("/w/hostfile"), OPTIONS)
    assert mpi.arguments(1 << 30) == ["-b", "8", "-e", "1073741824", "-f", "2", "-g", "1", "-c", "1"]


def across_two_nodes(name="nccl_tests_all_reduce.txt"):
    """The golden table as a run by MPI over two nodes prints it: a process per rank, of two hosts."""
    lines = (DATA / name).read_text().replace("nGpus 8", "nGpus 1").splitlines(keepends=True)
    ranks = "".join(
        f"#  Rank {rank:2d} Group  0 Pid  {4000 + rank} on     node-{'ab'[rank // 8]} device {rank % 8:2d} "
        f"[0000:{rank % 8}b:00] NVIDIA H200\n"
        for rank in range(16)
    )
    kept = [line for line in lines if not line.startswith("#  Rank")]
    place = next(index for index, line in enumerate(kept) if "Using devices" in line) + 1
    return "".join([*kept[:place], ranks, *kept[place:]])


def answers(**texts):
    return {name: collectives.judge(collectives.parse(text), name, 16, mpi.PREFIX) for name, text in texts.items()}


def test_tables_become_the_figures_that_torch_has_too():
    result, why = mpi.result_of(answers(all_reduce=across_two_nodes(), send_receive=across_two_nodes()), GANG)
    assert why == ""
    figures = {one["name"]: one["value"] for one in result.metrics}
    assert figures == {
        "gang_nodes_count": 2, "gang_absent_nodes_count": 0, "gang_processes_count": 16,
        "gang_collective_error_count": 0, "gang_collective_largest_bytes": 8 << 30,
        "gang_all_reduce_bus_bytes_per_second": pytest.approx(366.2e9),
        "gang_send_receive_bus_bytes_per_second": pytest.approx(366.2e9),
        "gang_all_reduce_latency_seconds": pytest.approx(34e-6),
        "gang_send_receive_latency_seconds": pytest.approx(34e-6),
    }  # fmt: skip
    assert [one["name"] for one in result.series] == [
        "gang_all_reduce_bus_bytes_per_second", "gang_send_receive_bus_bytes_per_second",
    ]  # fmt: skip
    assert WorkloadResult.from_json(result.to_json()).metrics == result.metrics


def test_wrong_elements_are_counted_and_what_was_not_checked_is_no_answer():
    result, _ = mpi.result_of(answers(all_reduce=across_two_nodes("nccl_tests_wrong.txt")), GANG)
    assert result.metric("gang_collective_error_count") > 0
    result, why = mpi.result_of(answers(all_reduce=across_two_nodes("nccl_tests_unchecked.txt")), GANG)
    assert result is None and "were not checked" in why


def test_a_table_of_fewer_ranks_is_no_answer():
    text = (DATA / "nccl_tests_all_reduce.txt").read_text()
    (answer,) = answers(all_reduce=text).values()
    assert answer.reason == "16 ranks were asked for, it used 8"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Programs that print a table each and end with a code; a script in place of mpirun prints and ends so."""
    monkeypatch.setenv(RANK_DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(mpi, "START_SECONDS", 5.0)

    def make(**ends):
        for name, (text, code) in ends.items():
            (tmp_path / f"{name}.table").write_text(text)
            put(tmp_path, name, f"#!/bin/sh\ncat {tmp_path}/{name}.table\nexit {code}\n")
        put(tmp_path, "mpirun", '#!/bin/sh\nfor word; do [ -f "$word.table" ] && exec "$word"; done\nexit 9\n')
        tools = mpi.Tools(str(tmp_path / "mpirun"), {name: str(tmp_path / name) for name in ends})
        return mpi.measure(tools, GANG, tmp_path, OPTIONS, lambda: False, 10, None)

    return make


def test_a_table_that_mpirun_ended_badly_after_is_no_answer(bench):
    assert bench(all_reduce=(across_two_nodes(), 0))[1] == ""
    result, why = bench(all_reduce=(across_two_nodes(), 3))
    assert (result, why) == (None, "all_reduce: ended with exit code 3")


def test_wrong_elements_are_an_answer_whatever_comes_after(bench, tmp_path):
    result, why = bench(all_reduce=(across_two_nodes("nccl_tests_wrong.txt"), 1), all_gather=("", 139))
    assert why == ""
    errors = result.metric("gang_collective_error_count")
    assert errors > 0
    kept = WorkloadResult()
    wrong_values.add_to(kept)  # also where the gang ends before the result is told
    assert kept.metric("gang_collective_error_count") == errors


def test_a_program_that_says_it_failed_and_counts_nothing_has_one_wrong_element():
    text = across_two_nodes().replace("Out of bounds values : 0 OK", "Out of bounds values : 0 FAILED")
    result, _ = mpi.result_of(answers(all_reduce=text), GANG)
    assert result.metric("gang_collective_error_count") == 1


#: The program of a member of which GPUs, SSH and mpirun are made up; the leader's measurement ends with the argument.
MEMBER = """
import sys
from gpuval_workloads.common.device import TorchDevices
from gpuval_workloads.common.result import WorkloadResult, run_workload
from gpuval_workloads.gang import __main__ as program, mpi
problem = sys.argv.pop(1)
measured = WorkloadResult()
for name, value in (("gang_processes_count", 2), ("gang_collective_error_count", 0), ("gang_nodes_count", 2)):
    measured.add_metric(name, value, "count")
program.choose_accelerator = lambda: TorchDevices("cuda", 1, "nccl")
program._OverSsh.begin, program._OverSsh.ssh_options = lambda *_: {"host_key": ""}, lambda *_: []
mpi.find = lambda *_: (mpi.Tools("mpirun", {"all_reduce": "all_reduce_perf"}), "")
mpi.measure = lambda *_: (None if problem else measured, problem)
sys.exit(run_workload(program.main))
"""


@pytest.mark.parametrize("problem", ["", "all_reduce: no table"])
def test_all_members_have_what_the_leader_measured_or_why_it_has_nothing(tmp_path, problem):
    listed = [{"node": f"n{number}", "address": f"127.0.0.{number}", "slots": 1} for number in (1, 2)]
    port, started = free_port(), []
    for index in (0, 1):
        own = tmp_path / str(index)
        own.mkdir()
        gang = {"name": "all", "members": listed, "index": index, "port": port, "ssh_port": port + 2}
        environment = {
            **os.environ, "PYTHONPATH": str(NODE), "GPUVAL_GANG": json.dumps(gang), "GPUVAL_GANG_TOKEN": "t" * 32,
            "GPUVAL_WORK_DIR": str(own), "GPUVAL_RESULT_FILE": str(own / "result.json"), "GPUVAL_ACCELERATOR": "cpu",
        }  # fmt: skip
        command = [sys.executable, "-c", MEMBER, problem, "collectives", "--tool", "nccl-tests"]
        started.append(
            TorchProcess(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    for index, process in enumerate(started):
        out, err = process.communicate(timeout=100)
        result = json.loads((tmp_path / str(index) / "result.json").read_text())
        assert result["environment"]["gang"]["joined"] is True
        if problem:
            assert f"crash: the gang has ended: nccl-tests gave no answer: {problem}" in err, out + err
        else:
            assert process.returncode == 0, out + err
            assert result["environment"]["tool"] == "nccl-tests"
            assert {"name": "gang_processes_count", "value": 2, "unit": "count", "scope": "node"} in result["metrics"]
