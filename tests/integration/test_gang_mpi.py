"""Open MPI across a gang, for real: members in network namespaces of their own, their SSH servers, mpirun's daemons.

The GPUs alone are made up: a script stands where nccl-tests lies, prints a table of theirs as its first rank, and on
each node leaves a line in NCCL's log.
"""

import json
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.needs import needs_namespaces, needs_programs

pytest.importorskip("torch")

from gpuval_workloads.common.result import EXIT_CRASH
from gpuval_workloads.gang.config import NAMES

TESTS = Path(__file__).resolve().parents[1]
NODE = TESTS.parent / "collections" / "ansible_collections" / "gpuval" / "fleet" / "node"
TABLE = TESTS / "data" / "vendor_tools" / "nccl_tests_all_reduce.txt"
SLOTS = 2
#: What hosts tell of the devices that they have.
OF_DEVICES = ("rdma_ports", "rdma_firmware", "rdma_gids", "gang_nic_pcie")
NO_ANSWER = "#!/bin/sh\n# libmpi\necho no device\nexit 3\n"
NO_TABLE = "all_reduce: ended with exit code 3; it printed no table"
PROGRAM = """#!/bin/sh
# in place of a program linked against libmpi
echo "$OMPI_COMM_WORLD_RANK $*" >> "$GPUVAL_RANK_DIR/../ranks"
log=$(dirname "$NCCL_DEBUG_FILE")/nccl.$(hostname).$$.log
echo "x:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/$NCCL_NET/0/GDRDMA" > "$log"
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exit 0
for rank in $(seq 0 $((OMPI_COMM_WORLD_SIZE - 1))); do echo "#  Rank $rank Group  0 Pid 1 on a device 0 [0] H200"; done
cat {table}
"""
MEMBER = """
import sys
from gpuval_workloads.common.device import TorchDevices
from gpuval_workloads.common.result import run_workload
from gpuval_workloads.gang import __main__ as program
program.choose_accelerator = lambda: TorchDevices("cuda", {slots}, "nccl")
sys.exit(run_workload(program.main))
"""


@pytest.fixture(scope="module", autouse=True)
def machine():
    needs_namespaces()
    needs_programs(
        {"mpirun": "openmpi-bin", "orted": "openmpi-bin", "ssh-keygen": "openssh-client", "sshd": "openssh-server"}
    )


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


@pytest.fixture
def hosts():
    """Three network namespaces on one bridge, with their addresses."""
    mark = uuid.uuid4().hex[:5]
    with ExitStack() as stack:
        ip("netns", "add", f"gvs{mark}")  # the switch is in a namespace as well, so that nothing is left on the host
        stack.callback(ip, "netns", "del", f"gvs{mark}")
        switch = ("-n", f"gvs{mark}")
        ip(*switch, "link", "add", "br0", "type", "bridge")
        ip(*switch, "link", "set", "br0", "up")
        made = []
        for number in (1, 2, 3):
            name = f"gv{number}{mark}"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
            eth = f"eth{number}"  # interfaces are not named alike everywhere
            ip("-n", name, "link", "add", eth, "type", "veth", "peer", "name", f"p{number}", "netns", f"gvs{mark}")
            ip(*switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "address", "add", f"10.213.7.{number}/24", "dev", eth)
            ip("-n", name, "link", "set", eth, "up")
            made.append((name, f"10.213.7.{number}"))
        yield made


def run(hosts, folder, program, *arguments, slots=SLOTS):
    """Run the members; return for each its exit code, log, result and the ranks that it had."""
    keys, tools = folder / "keys", folder / "tools"
    for made in (keys, tools):
        made.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "id_ed25519")], check=True)
    (tools / "all_reduce_perf").write_text(program)
    (tools / "all_reduce_perf").chmod(0o755)
    members = [{"node": f"node-{i}", "address": address, "slots": slots} for i, (_, address) in enumerate(hosts, 1)]
    started = []
    for index, (name, _) in enumerate(hosts):
        own = folder / str(index)
        own.mkdir()
        gang = {"name": "all", "members": members, "index": index, "port": 29500, "ssh_port": 3022}
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("GPUVAL_", "NCCL_", "OMPI_"))},
            "PYTHONPATH": str(NODE), "PYTHONUNBUFFERED": "1", "GPUVAL_GANG": json.dumps(gang), "TMPDIR": str(own),
            "GPUVAL_WORK_DIR": str(own), "GPUVAL_RESULT_FILE": str(own / "result.json"), "GPUVAL_GANG_TOKEN": "t" * 32,
            "GPUVAL_GANG_KEYS": str(keys), "NCCL_TESTS_DIR": str(tools),
            "PATH": f"{tools}:{os.environ['PATH']}", "NCCL_NET": "IB",
            "GPUVAL_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = ["ip", "netns", "exec", name, sys.executable, "-c", MEMBER.format(slots=slots), "collectives",
                   "--only", "all_reduce", "--join-seconds", "120", "--seconds", "4", *arguments]  # fmt: skip
        with (own / "log").open("w") as log:
            started.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
    ended = []
    for index, process in enumerate(started):
        own = folder / str(index)
        code = process.wait(300)
        result = json.loads((own / "result.json").read_text()) if (own / "result.json").exists() else None
        ranks = sorted((own / "ranks").read_text().splitlines()) if (own / "ranks").exists() else []
        ended.append((code, (own / "log").read_text(), result, ranks))
    return ended


def test_every_member_has_its_ranks_and_the_result(hosts, tmp_path):
    ended = run(hosts, tmp_path, PROGRAM.replace("{table}", f"grep -v '^#  Rank' {TABLE}").replace("cat grep", "grep"))
    for index, (code, log, result, ranks) in enumerate(ended):
        assert code == 0, log
        own = range(index * SLOTS, (index + 1) * SLOTS)
        assert [line.split()[0] for line in ranks] == [str(rank) for rank in own]
        assert ranks[0].endswith("-b 8 -e 8589934592 -f 2 -g 1 -c 1")
        metrics = {one["name"]: one["value"] for one in result["metrics"]}
        assert metrics["gang_all_reduce_bus_bytes_per_second"] == pytest.approx(366.2e9)
        assert (metrics["gang_nodes_count"], metrics["gang_processes_count"]) == (3, 6)
        assert (metrics["gang_collective_error_count"], metrics["gang_network_unexpected_count"]) == (0, 0)
        assert {name: told for name, told in result["fingerprints"].items() if name not in OF_DEVICES} == {
            "gang_network": "IB", "gang_gpu_direct": "on", "gang_shape": "3x2", "gang_mtu": "1500",
            **{f"gang_{name}_asked": "yes" if name == "all_reduce" else "no" for name in NAMES},
        }  # fmt: skip
        assert result["environment"]["tool"] == "nccl-tests"
        assert result["environment"]["gang"]["nodes"] == 3


def test_what_gives_no_answer_implicates_no_node(hosts, tmp_path):
    for code, log, result, _ in run(hosts[:2], tmp_path, NO_ANSWER, "--tool", "nccl-tests"):
        assert code == EXIT_CRASH, log
        ends = [line for line in log.splitlines() if line.startswith(("crash: ", "failure: "))]
        (end,) = ends
        assert end.startswith(f"crash: the gang has ended: nccl-tests gave no answer: {NO_TABLE}")
        gang = result["environment"]["gang"]
        assert (gang["name"], gang["joined"], gang["stopped_by"]) == ("all", True, None)


def test_torch_measures_where_they_give_no_answer(hosts, tmp_path):
    """The ranks of torch take the CPU, which is there."""
    for code, log, result, _ in run(hosts[:2], tmp_path, NO_ANSWER, slots=1):
        assert code == 0, log
        assert (result["environment"]["tool"], result["fingerprints"]["gang_network"]) == ("torch", "gloo")
        assert result["environment"]["no_nccl_tests"].startswith(NO_TABLE)
        metrics = {one["name"]: one["value"] for one in result["metrics"] if one["scope"] == "node"}
        assert (metrics["gang_nodes_count"], metrics["gang_absent_nodes_count"]) == (2, 0)
        assert metrics["gang_collective_error_count"] == 0
