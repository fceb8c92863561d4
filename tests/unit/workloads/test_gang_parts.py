"""What a gang's program makes of its plan, its launchers' files, and NCCL's log."""

import ipaddress
import json
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_workloads.common.device import CPU, TorchDevices
from gpuval_workloads.common.launch import StallError
from gpuval_workloads.common.ranks import Ranks, node_ranks
from gpuval_workloads.common.result import WorkloadCrash, WorkloadFailure, WorkloadResult
from gpuval_workloads.gang import (
    collectives,
    config,
    launching,
    members,
    membership,
    training,
    transport,
)
from gpuval_workloads.gang.control_channel import GangStop
from gpuval_workloads.gang.host import rdma

from tests.kit.needs import SYS_ADMIN, lacking
from tests.kit.sysfs_tree import Tree
from tests.kit.workload_process import NODE

MEMBERS = [{"node": "a", "address": "10.0.0.1", "slots": 8}, {"node": "b", "address": "10.0.0.2", "slots": 4}]


def document(**more):
    return json.dumps({"name": "all", "members": MEMBERS, "index": 1, "port": 29500, "ssh_port": 3022, **more})


def test_ranks_are_numbered_member_by_member():
    gang = members.parse(document())
    assert (gang.own.node, gang.leader.node, gang.is_leader, gang.world_size) == ("b", "a", False, 12)
    assert [gang.first_rank(i) for i in (0, 1)] == [0, 8]
    assert [gang.owner(rank) for rank in (0, 7, 8, 11)] == [(0, 0), (0, 7), (1, 0), (1, 3)]
    with pytest.raises(IndexError):
        gang.owner(12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "does not describe"), ("[]", "does not describe"), ("{}", "members"),
        (document(index=2), "no member 2"), (document(index=-1), "no member -1"),
        (document(members=[{**MEMBERS[0], "slots": 0}], index=0), "no processes"),
        (document(members=[MEMBERS[0], {**MEMBERS[1], "address": "10.0.0.1"}]), "same address"),
        (document(members=[MEMBERS[0], {**MEMBERS[1], "node": "a"}]), "same node"),
    ],
)  # fmt: skip
def test_a_gang_that_makes_no_sense_is_refused(text, told):
    with pytest.raises(WorkloadFailure, match=told):
        members.parse(text)


def test_ranks_of_a_gang_have_their_own_nodes_devices():
    environ = {"RANK": "10", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    assert node_ranks(environ) == range(8, 12)
    assert node_ranks({"RANK": "10", "LOCAL_RANK": "2", "LOCAL_SIZE": "4"}) == range(8, 12)  # DeepSpeed's launcher
    ranks = Ranks(10, 12, TorchDevices("cuda", 4, "nccl"), None, range(8, 12))
    assert (ranks.local_rank, str(ranks.device), ranks.scope, ranks.scope_of(8)) == (2, "cuda:2", "gpu:2", "gpu:0")
    assert Ranks(1, 2, CPU).scope == "rank:1"


def test_files_of_the_launchers(tmp_path):
    gang = members.parse(document())
    assert launching.hostfile(gang) == "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"
    assert "--node-rank=1" in launching.torchrun_place(gang)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "brought").write_text("its key")
    options = membership.client(gang, tmp_path, tmp_path / "keys" / "brought", ["ssh-ed25519 AAA", "ssh-ed25519 BBB"])
    assert f"UserKnownHostsFile={tmp_path / 'known_hosts'}" in options
    assert (tmp_path / "known_hosts").read_text() == (
        "[10.0.0.1]:3022 ssh-ed25519 AAA\n[10.0.0.2]:3022 ssh-ed25519 BBB\n"
    )


def test_a_stop_before_the_ranks_begin_keeps_them_from_beginning():
    ended = []
    stopper = launching.Stopper(lambda: ended.append(1))
    stopper(GangStop("b", "b was lost"))
    with pytest.raises(StallError, match="b was lost"), stopper:
        pass
    assert not ended


def test_a_stop_while_they_run_ends_them_and_none_after():
    ended = []
    stopper = launching.Stopper(lambda: ended.append(1))
    with stopper:
        stopper(GangStop("b", "b was lost"))
    stopper(GangStop("b", "again"))
    assert ended == [1]


def test_the_interface_of_an_address():
    assert membership.interface_of("127.0.0.1") == "lo"
    assert membership.interface_of("192.0.2.77") is None and membership.interface_of("a-name") is None


def in_a_namespace(*lines):
    """What a script prints where eth7 has two IPv4 addresses of one network, and one of IPv6."""
    if os.geteuid() or not shutil.which("ip") or subprocess.run(["unshare", "-n", "true"], check=False).returncode:
        lacking(f"{SYS_ADMIN.format(to='to make network namespaces')}, with iproute2")
    script = (
        "set -e; ip link set lo up; ip link add eth7 type veth peer name eth8; ip link set eth8 up; "
        "ip link set eth7 up; ip address add 10.9.8.7/24 dev eth7; ip address add 10.9.8.8/24 dev eth7; "
        'ip address add fd00:9::7/64 dev eth7 nodad; exec "$@"'
    )
    code = "\n".join(["from gpuval_workloads.gang import membership, members", *lines])
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(NODE)}, timeout=30, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.split()


def test_the_interface_of_further_addresses_is_found():
    addresses = ["10.9.8.7", "10.9.8.8", "fd00:9::7", "fd00:9:0::0007", "10.9.8.9"]
    found = in_a_namespace(
        f"print(*map(membership.interface_of, {addresses}))", "print(membership.network_of('10.9.8.8', []))"
    )
    assert found == ["eth7", "eth7", "eth7", "eth7", "None", "10.9.8.0/24"]


def test_a_name_that_means_the_loopback_interface_here_is_no_address_for_others():
    own = document(members=[{**MEMBERS[0], "address": "n-1"}, {**MEMBERS[1], "address": "n-2"}], index=0)
    found = in_a_namespace(
        "known = {'n-1': '127.0.1.1', 'n-2': '10.9.8.20'}",
        "membership.socket.getaddrinfo = lambda name, *_, **__: [(0, 0, 0, '', (known[name], 0))]",
        f"gang = members.parse({own!r})",
        "print(membership.own_address(gang, 0))",
        "known['n-1'] = '10.9.8.8'",
        "print(membership.own_address(gang, 0))",
        "known.update({'n-1': '127.0.1.1', 'n-2': '192.0.2.1'})",
        "print(membership.own_address(gang, 0))",
    )
    assert found == ["10.9.8.7", "10.9.8.8", "127.0.1.1"]


def test_the_network_of_the_members_is_that_of_the_first_widened(monkeypatch):
    held = []
    monkeypatch.setattr(membership, "addresses", lambda: [(1, ipaddress.ip_interface(held[-1]))])
    held.append("10.2.8.5/24")
    assert membership.network_of("10.2.8.5", ["10.2.8.5", "10.2.8.99"]) == "10.2.8.0/24"
    assert membership.network_of("10.2.8.5", ["10.2.8.5", "10.2.9.1"]) == "10.2.8.0/23"
    held.append("10.2.8.5/32")  # as clouds and pods have it
    assert membership.network_of("10.2.8.5", ["10.2.8.4"]) == "10.2.8.4/31"
    assert membership.network_of("10.2.8.5", ["10.2.250.4"]) == "10.2.0.0/16"
    assert membership.network_of("10.2.8.5", ["10.3.8.5"]) is None
    assert membership.network_of("10.2.8.5", ["192.168.0.1"]) is None
    assert membership.network_of("10.2.8.5", ["node-2"]) is None
    assert membership.network_of("10.2.8.6", []) is None
    held.append("10.2.8.5/8")
    assert membership.network_of("10.2.8.5", ["10.77.8.5"]) == "10.0.0.0/8"
    held.append("127.0.0.1/8")
    assert membership.network_of("127.0.0.1", []) is None
    held.append("::1/128")
    assert membership.network_of("::1", []) is None


def test_what_runs_below_is_ended_also_what_lost_its_parent():
    code = (
        "import subprocess, sys, time\n"
        "from gpuval_node.process_stat import adopt_orphans\n"
        "from gpuval_workloads.common import processes\n"
        "adopt_orphans()\n"
        "subprocess.run(['sh', '-c', 'setsid sh -c \"trap : TERM; sleep 60 & wait; wait\" & echo $!'])\n"
        "time.sleep(0.3)\n"
        "import os\n"
        "assert processes.below(os.getpid())\n"
        "processes.END_SECONDS = 0.5\n"
        "processes.end_below()\n"
        "assert not processes.below(os.getpid())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(NODE)}, timeout=30, check=False
    )
    assert done.returncode == 0


LOG = """\
node1:77:99 [0] NCCL INFO Using network IB
node1:77:99 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA
node1:77:99 [0] NCCL INFO Channel 01/0 : 0[0] -> 15[7] [send] via NET/IB/3(1)/GDRDMA
node1:77:99 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:77:99 [0] NCCL INFO AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
node1:77:99 [0] NCCL INFO AllReduce: 8 Bytes -> Algo 0 proto 0 time 27.6
"""


def test_the_network_that_was_used_is_read_from_the_log():
    assert transport.networks(LOG) == {"IB"} and transport.initialised(LOG) == {"IB"}
    assert transport.reads_gpu_memory(LOG) is True
    assert transport.choices(LOG.splitlines()) == {"AllReduce": {8589934592: ("RING", "SIMPLE"), 8: ("TREE", "LL")}}


def test_names_of_networks_may_have_blanks():
    log = LOG.replace("network IB", "network AWS Libfabric").replace("NET/IB", "NET/AWS Libfabric")
    assert transport.networks(log) == transport.initialised(log) == {"AWS Libfabric"}
    assert transport.reads_gpu_memory(log) is True


def test_a_fall_back_to_tcp_shows():
    fallen = LOG.replace("NET/IB/0/GDRDMA", "NET/Socket/0")
    assert transport.networks(fallen) == {"IB", "Socket"}
    assert transport.reads_gpu_memory(fallen) is False
    assert transport.networks("nothing") == set() and transport.reads_gpu_memory("nothing") is None


#: Two trays over NVLink: lines as NCCL 2.27 and 2.30 print them on GB200 (NVIDIA/nccl issue 1769, NVIDIA/aicr), also
#: for the communicator of two ranks.
OVER_NVLINK = """\
tray1:77:99 [1] NCCL INFO Using network IB
tray1:77:99 [1] NCCL INFO MNNVL busId 0x901000 fabric UUID 3143b15bc2cd192b.28cc9b5473fb5b93 cliqueId 0x7ffe state 3
tray1:77:99 [1] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 1
tray1:77:99 [1] NCCL INFO comm 0xabc123 rank 1 nRanks 8 nNodes 1 localRanks 8 localRank 1 MNNVL 1
tray1:77:99 [1] NCCL INFO Channel 00/0 : 3[3] -> 4[0] via P2P/MNNVL
tray1:77:99 [1] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 2 cliqueRank 1 nvlDomainSize 2
"""
FALLEN_BACK = "tray1:77:99 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA\n"


def test_nvlink_between_nodes_is_a_network():
    assert transport.networks(LOG.replace("P2P/CUMEM", "P2P/MNNVL")) == {"IB", "MNNVL"}


@pytest.mark.parametrize(
    ("networks", "names", "states", "told"),
    [
        ([], ["IB"], [], None),
        (["IB"], [], ["ACTIVE"], ""),
        (["Socket"], [], [], ""),
        (["Socket"], [], ["ACTIVE"], "although 1 RDMA ports are here (mlx5_0:1 ACTIVE)"),
        (
            ["Socket"],
            [],
            ["INIT", None],
            "declare gpuval_network: tcp where sockets are meant",
        ),
        (["IB", "Socket"], [], ["ACTIVE"], "went by IB and Socket although"),
        (["Socket"], ["Socket"], ["ACTIVE"], ""),
        (["IBext_v8"], ["IB", "IBext*"], [], ""),
        (["gib"], ["gIB"], [], ""),
        (["Socket"], ["IB", "IBext*"], [], "went by Socket, not by IB or IBext* as declared"),
        (["IB", "Socket"], ["IB"], [], "not by IB as declared"),
        (["IB", "MNNVL"], ["IB"], [], ""),
        (["MNNVL"], ["IB"], [], "not by IB as declared"),
        (["MNNVL"], [], ["ACTIVE"], ""),
    ],
)
def test_another_network_than_expected_is_reported(networks, names, states, told):
    ports = [rdma.Port(f"mlx5_{i}", 1, state, None, None, None) for i, state in enumerate(states)]
    found = transport.complaint(networks, names, ports)
    assert found == told if not told else told in found


@pytest.mark.parametrize(
    ("fabric", "networks", "told"),
    [
        ("nvlink", ["MNNVL"], ""),
        ("nvlink", ["IB"], "went by IB, not by NVLink alone: check IMEX"),
        ("nvlink", ["IB", "MNNVL"], "went by IB and MNNVL, not by NVLink alone"),
        ("nvlink", [], None),
        ("network", ["IB"], ""),
        ("network", ["IBext_v8"], ""),
        ("network", ["MNNVL"], "went by MNNVL although NCCL_MNNVL_ENABLE=0 chooses the network"),
        ("network", ["IB", "MNNVL"], "although NCCL_MNNVL_ENABLE=0"),
        ("network", ["Socket"], "went by Socket, not by IB or IBext* as declared"),
        ("network", [], None),
    ],
)
def test_the_other_fabric_of_a_rack_is_reported(fabric, networks, told):
    found = transport.complaint(networks, ["IB", "IBext*"], [], fabric=fabric)
    assert found == told if not told else told in found


RACK = [
    {"node": f"tray{number}", "address": f"10.0.0.{number}", "slots": 4, "clique": f"uuid-{(number - 1) // 2}.1"}
    for number in range(1, 6)
]


def test_over_nvlink_a_gang_is_that_of_the_clique():
    gang = members.parse(document(members=RACK, index=3))
    within = gang.within_clique()
    assert [member.node for member in within.members] == ["tray3", "tray4"]
    assert (within.own.node, within.leader.node, within.world_size) == ("tray4", "tray3", 8)
    assert (within.name, within.port) == ("all, clique uuid-1.1", 29500)
    for listed, index in ((RACK, 4), ([{**RACK[0], "clique": ""}, {**RACK[1], "clique": ""}], 0), (MEMBERS, 0)):
        with pytest.raises(WorkloadFailure, match="no other member of gang all is in the NVLink clique"):
            members.parse(document(members=listed, index=index)).within_clique()


@pytest.mark.parametrize(
    ("listed", "arguments", "variables"),
    [
        (MEMBERS, [], {}),
        (RACK, [], {"GPUVAL_GANG_FABRIC": "network", "NCCL_MNNVL_ENABLE": "0"}),
        (
            RACK,
            ["--fabric", "nvlink"],
            {"GPUVAL_GANG_FABRIC": "nvlink", "NCCL_MNNVL_ENABLE": "1", "GPUVAL_GANG_NVLINK_SENT_BYTES": ""},
        ),
    ],
)
def test_only_nodes_of_an_nvlink_domain_choose_a_fabric(monkeypatch, listed, arguments, variables):
    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi
    gang = members.parse(document(members=listed))
    assert collectives.fabric_environment(config.parse_arguments(["collectives", *arguments]), gang) == variables


def test_an_infiniband_controller_without_its_driver_is_no_reason_for_sockets(tmp_path):
    tree = Tree(tmp_path)
    for address, kind in (("0000:17:00.0", "0x020700"), ("0000:18:00.0", "0x020000"), ("0000:2a:00.0", "0x020700")):
        tree.pci(address, **{"class": kind})
    (tree.sys / "devices/0000:2a:00.0/infiniband/mlx5_0").mkdir(parents=True)
    found = rdma.without_driver(Sysfs(tmp_path))
    assert found == ["0000:17:00.0"]
    assert rdma.without_driver(Sysfs(tmp_path / "none")) == []
    told = transport.complaint(["Socket"], [], [], found)
    assert "although 1 InfiniBand controllers are here without a driver (0000:17:00.0): load it" in told
    assert transport.complaint(["Socket"], ["Socket"], [], found) == ""
    assert transport.complaint(["IB"], [], [], found) == ""


@pytest.mark.parametrize(
    ("networks", "is_ib"),
    [(["IB"], True), (["IBext_v8"], True), (["IB", "MNNVL"], False), (["Socket"], False), ([], False)],
)
def test_what_counts_as_infiniband(networks, is_ib):
    assert transport.is_ib(networks) is is_ib


def completed(tmp_path, monkeypatch, log, *, nodes=2, rate="200 Gb/sec (4X HDR)", arguments=(), processes=8):
    """What a node's result is completed with: 20 GB/s on the bus beside two active ports, others that carry nothing."""
    tree = Tree(tmp_path)
    states = {"mlx5_0": ("4: ACTIVE", rate), "mlx5_1": ("4: ACTIVE", rate), "mlx5_2": ("1: DOWN", "400 Gb/sec (4X)")}
    for name, (state, of_port) in {**states, "mlx5_3": ("4: ACTIVE", "unknown")}.items():
        tree.rdma(name)
        tree.port(name, state=state, rate=of_port)
    monkeypatch.setattr(collectives, "SYSFS", Sysfs(tmp_path))
    monkeypatch.setattr(collectives.nccl_log, "read", lambda _environ: log)
    result = WorkloadResult()
    result.add_metric("gang_all_reduce_bus_bytes_per_second", 20e9, "bytes/s")
    result.add_metric("gang_collective_error_count", 0, "count")
    result.add_metric("gang_processes_count", processes, "count")
    result.add_metric("gang_collective_largest_bytes", 1 << 29, "bytes")
    parsed = config.parse_arguments(["collectives", "--only", "all_reduce", *arguments])
    collectives.complete(result, parsed, TorchDevices("cuda", 8, "nccl"), nodes, 8)
    return {one["name"]: one["value"] for one in result.metrics} | {"message": result.message}


@pytest.mark.parametrize(
    ("log", "processes", "unexpected", "told"),
    [
        (OVER_NVLINK, 8, 0, "2 nodes by MNNVL"),
        (OVER_NVLINK + FALLEN_BACK, 8, 1, "went by IB and MNNVL, not by NVLink alone"),
        (FALLEN_BACK, 8, 1, "went by IB, not by NVLink alone"),
        (OVER_NVLINK, 12, None, "shows an NVLink clique of 8 of 12 GPUs"),
        ("", 8, None, "does not tell by which network"),
    ],
)
def test_nvlink_is_proven_by_channels_and_by_the_clique(tmp_path, monkeypatch, log, processes, unexpected, told):
    monkeypatch.setenv("GPUVAL_GANG_FABRIC", "nvlink")
    over_nvlink = {"arguments": ["--fabric", "nvlink"], "processes": processes}
    found = completed(tmp_path, monkeypatch, log, **over_nvlink)
    assert found.get("gang_network_unexpected_count") == unexpected
    assert told in found["message"]


#: Of `nvidia-smi nvlink -gt d` on two H200 (driver 580.159), shortened: they sent 20 GiB in 10 all_reduce of 1 GiB.
COUNTERS = """\
GPU 0: NVIDIA H200 (UUID: GPU-50e66c4e-6731-d0fd-9f69-90efbcfd8bca)
\t Link 0: Data Tx: {} KiB
\t Link 0: Data Rx: 9 KiB
\t Link 1: Data Tx: 7 KiB
\t Link 1: Data Rx: 9 KiB
"""


@pytest.mark.parametrize(
    ("before", "after", "sent", "told"),
    [
        (0, 1 << 20, 1 << 30, ""),
        (100, 100, 0, "NVLinks sent 0 bytes by their counters (nvidia-smi nvlink -gt d), less than one collective of"),
        (None, 1 << 20, None, ""),
        (0, None, None, ""),
    ],
)
def test_nvlink_is_proven_by_its_counters_where_they_exist(tmp_path, monkeypatch, before, after, sent, told):
    def smi(count):
        (tmp_path / "text").write_text("Not supported" if count is None else COUNTERS.format(count))

    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexec cat {tmp_path}/text\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    smi(before)
    gang = members.parse(document(members=RACK))
    arguments = ["--fabric", "nvlink"]
    for name, value in collectives.fabric_environment(
        config.parse_arguments(["collectives", *arguments]), gang
    ).items():
        monkeypatch.setenv(name, value)
    smi(after)
    found = completed(tmp_path / "sys", monkeypatch, OVER_NVLINK, arguments=arguments)
    assert found.get("gang_nvlink_sent_bytes") == sent
    assert found.get("gang_network_unexpected_count") == (None if told else 0)
    assert told in found["message"]


@pytest.mark.parametrize(("log", "unexpected"), [(LOG, 0), (OVER_NVLINK, 1), ("", None)])
def test_the_network_of_a_rack_is_proven_apart(tmp_path, monkeypatch, log, unexpected):
    monkeypatch.setenv("GPUVAL_GANG_FABRIC", "network")
    assert completed(tmp_path, monkeypatch, log).get("gang_network_unexpected_count") == unexpected


def test_figures_over_nvlink_have_names_of_their_own():
    result = WorkloadResult()
    for name in ("gang_all_reduce_bus_bytes_per_second", "gang_send_receive_lost_ratio", "gang_nodes_count"):
        result.add_metric(name, 1, "count")
    result.add_metric("gang_collective_error_count", 0, "count")
    result.add_series("gang_all_to_all_seconds", "seconds", [8], [1.0], x_unit="bytes")
    collectives.name_after_nvlink(result)
    assert [one["name"] for one in (*result.metrics, *result.series)] == [
        "gang_nvlink_all_reduce_bus_bytes_per_second", "gang_nvlink_send_receive_lost_ratio", "gang_nodes_count",
        "gang_collective_error_count", "gang_nvlink_all_to_all_seconds",
    ]  # fmt: skip


def test_the_bus_is_held_against_the_ports(tmp_path, monkeypatch):
    found = completed(tmp_path, monkeypatch, LOG)
    assert found["gang_rdma_ports_count"] == 4
    assert (found["gang_bus_over_ports_ratio"], found["gang_gpu_direct_off_count"]) == (0.4, 0)


def test_copies_through_the_hosts_memory_are_counted(tmp_path, monkeypatch):
    assert completed(tmp_path, monkeypatch, LOG.replace("/GDRDMA", ""))["gang_gpu_direct_off_count"] == 1


@pytest.mark.parametrize(
    "changes",
    [{"log": LOG.replace("NET/IB", "NET/Socket")}, {"log": LOG, "nodes": 1}, {"log": LOG, "rate": ""}],
)
def test_where_no_port_bounds_the_bus_there_is_no_such_figure(tmp_path, monkeypatch, changes):
    assert "gang_bus_over_ports_ratio" not in completed(tmp_path, monkeypatch, **changes)


def test_arguments():
    training = config.parse_arguments(["training", "--zero", "3", "--launcher", "deepspeed"])
    assert (training.zero, training.launcher, training.of_one_node().compile) == (3, "deepspeed", "never")
    collectives = config.parse_arguments(["collectives", "--only", "all_reduce", "--expect-network", "IB", "IBext*"])
    assert (collectives.only, collectives.expect_network) == (("all_reduce",), ("IB", "IBext*"))
    assert config.parse_arguments(["collectives", "--most-bytes", "8"]).most_bytes == 8
    for wrong in (["training", "--zero", "4"], ["collectives", "--most-bytes", "7"]):
        with pytest.raises(SystemExit):
            config.parse_arguments(wrong)


def test_zero_does_no_more_than_the_trainings_it_is_held_against():
    """Ratios are of figures with all else alike: DDP clips as much, and does not accumulate or tell of its steps."""
    text = config.template(training.TEMPLATE).substitute(batch=1, stage=2, bf16="true", norm=0.5)
    told = json.loads(text)
    assert told["gradient_clipping"] == 0.5 and told["gradient_accumulation_steps"] == 1
    assert told["wall_clock_breakdown"] is False


def test_templates_are_read_from_the_packed_programs_too(tmp_path):
    packed = tmp_path / "workloads.zip"
    packed.write_bytes(payload.workloads_zip())
    code = (
        "from gpuval_workloads.gang import config\n"
        "for name in ('run.sh', 'deepspeed.json', 'deepspeed_env'):\n"
        f"    assert config.__file__.startswith({str(packed)!r}) and '$' in config.template(name).template\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(packed)}, timeout=30, check=False
    )
    assert done.returncode == 0


def test_a_name_is_looked_up_until_it_is_known(monkeypatch):
    assert membership.resolved("192.0.2.7", 0) == "192.0.2.7"
    answers = iter([OSError(2, "not known"), [(0, 0, 0, "", ("10.0.0.7", 0))]])

    def look_up(*_arguments, **_options):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(membership.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(membership, "LOOK_UP_SECONDS", 0)
    assert membership.resolved("node-1.gangs.gpuval.svc", 60) == "10.0.0.7"
    answers = iter([OSError(2, "not known")])
    with pytest.raises(WorkloadCrash, match="by which the others reach this node, is not known here after 0 s"):
        membership.resolved("node-1.gangs.gpuval.svc", 0)


@pytest.mark.parametrize("password", ["!", "!!", "!locked", "!*", "!$6$salt$hash"])
def test_a_locked_user_is_advised(tmp_path, password):
    shadow = tmp_path / "shadow"
    shadow.write_text(f"daemon:*:19000:0:99999:7:::\nroot:{password}:19000:0:99999:7:::\n")
    with pytest.raises(WorkloadFailure, match=r"user root is locked .* usermod -p '\*' root .* launcher torchrun"):
        membership.check_not_locked("root", shadow)


@pytest.mark.parametrize(
    "text", ["root:*:1::::::", "root::1::::::", "root:$6$salt!:1::::::", "rooty:!:1::::::", "root", ""]
)
def test_who_is_not_locked_goes_on(tmp_path, text):
    shadow = tmp_path / "shadow"
    shadow.write_text(text + "\n")
    membership.check_not_locked("root", shadow)
    membership.check_not_locked("root", tmp_path / "none")


def test_a_user_without_a_name_learns_what_ssh_needs(monkeypatch):
    monkeypatch.setattr(membership.os, "geteuid", lambda: 4_000_000_000)
    with pytest.raises(WorkloadFailure, match=r"user 4000000000 has no line in /etc/passwd"):
        membership.user()
