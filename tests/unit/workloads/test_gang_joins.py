"""A member's own program on the loopback interface: what its result says of whether the work had begun."""

import json
import os
import secrets
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from gpuval_workloads.common.device import CPU
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.gang import collectives, control_channel
from gpuval_workloads.gang.config import NAMES, CollectivesConfig, parse_arguments

from tests.kit.gang_channel import gang
from tests.kit.ports import free_port
from tests.kit.torch_server import TorchProcess
from tests.kit.workload_process import NODE


def run_member(folder, port, count=1, arguments=(), index=0, cliques=()):
    """One member of a gang, by the document that the runner leaves."""
    listed = [{"node": f"node-{i + 1}", "address": f"127.0.0.{i + 1}", "slots": 2} for i in range(count)]
    for member, clique in zip(listed, cliques):
        member["clique"] = clique
    document = {"name": "all", "members": listed, "index": index, "port": port, "ssh_port": 3022}
    (folder / "gang.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "gpuval_workloads.gang", "collectives", "--tool", "torch", "--only", "all_reduce"]
    process = TorchProcess(
        [*command, "--seconds", "0.5", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={
            **os.environ, "PYTHONPATH": str(NODE), "GPUVAL_GANG_FILE": str(folder / "gang.json"),
            "GPUVAL_RESULT_FILE": str(folder / "result.json"), "GPUVAL_GANG_TOKEN": "t" * 32,
            "GPUVAL_WORK_DIR": str(folder), "GPUVAL_ACCELERATOR": "cpu",
        },
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    return json.loads((folder / "result.json").read_text()), process.returncode, out, err


def test_work_that_was_done_had_begun_and_says_what_was_asked(tmp_path):
    result, _code, out, err = run_member(tmp_path, free_port())
    assert result["state"] == "success", out + err
    assert result["environment"]["gang"]["joined"] is True
    assert result["fingerprints"]["gang_all_reduce_asked"] == "yes"
    assert result["fingerprints"]["gang_all_to_all_asked"] == "no"
    figures = {item["name"]: item["value"] for item in result["metrics"]}
    assert (figures["gang_collectives_count"], figures["gang_collectives_left_out_count"]) == (1, 5)


def test_over_nvlink_the_members_of_a_clique_work_without_the_others(tmp_path):
    port, cliques = free_port(), ["a.1", "b.1", "b.1"]
    folders = [tmp_path / str(index) for index in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        for folder in folders:
            folder.mkdir()
        done = [
            pool.submit(run_member, folder, port, 3, ["--fabric", "nvlink"], int(folder.name), cliques)
            for folder in folders
        ]
        results = [each.result() for each in done]
    for result, code, out, err in results:
        assert code == 0, out + err
        gang = result["environment"]["gang"]
        assert (gang["name"], gang["nodes"], gang["leader"]) == ("all, clique b.1", 2, "node-2")
        figures = {item["name"]: item["value"] for item in result["metrics"]}
        assert figures["gang_nvlink_all_reduce_bus_bytes_per_second"] > 0
        assert figures["gang_nodes_count"] == 2 and figures["gang_collective_error_count"] == 0
        assert "gang_all_reduce_bus_bytes_per_second" not in figures


def test_who_waited_in_vain_has_not_begun(tmp_path):
    result, code, _out, err = run_member(tmp_path, free_port(), count=2, arguments=["--join-seconds", "1"])
    assert code == 2
    assert "node-2 (127.0.0.2) did not join within 1 s" in err
    assert result["environment"]["gang"]["joined"] is False


@pytest.mark.parametrize("which", [0, 1])
def test_a_port_in_use_is_found_before_the_work_begins(tmp_path, which):
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + which))
        taken.listen()
        result, _code, _out, err = run_member(tmp_path, port)
    assert f"port {port + which} of" in err
    assert "address already in use" in err.lower()
    assert result["environment"]["gang"]["joined"] is False


def test_names_of_collectives_that_there_are_not_are_refused():
    with pytest.raises(SystemExit):
        parse_arguments(["collectives", "--only", "all_reduce", "allreduce"])


def test_all_are_asked_where_none_is_named():
    result = WorkloadResult()
    result.add_metric(collectives.ERRORS, 0, "count")
    collectives.complete(result, CollectivesConfig(), CPU, 1, 1)
    assert {result.fingerprints[f"gang_{name}_asked"] for name in NAMES} == {"yes"}
    assert (result.metric("gang_collectives_count"), result.metric("gang_collectives_left_out_count")) == (0, 0)


@pytest.mark.parametrize("text", [None, 3, "", "####", "eJwDAAAAAAE=", control_channel._packed(["x" * 5000])])
def test_what_all_have_brought_is_bounded_and_checked(text):
    with pytest.raises(control_channel._BrokenError, match="is invalid"):
        control_channel._unpacked(text, 1000)


def test_many_members_may_bring_much():
    """Together more than a line of one member holds."""
    count, port = 24, free_port()
    brought = [secrets.token_hex(control_channel.MAX_BROUGHT // 2 - 100) for _ in range(count)]
    limits = control_channel.ChannelLimits(join_seconds=30, silence_seconds=20)
    lines = [
        control_channel.ControlChannel(gang(port, index, count), "t", limits, dict, lambda _stop: None, brought[index])
        for index in range(count)
    ]
    assert len(control_channel._packed(brought)) > control_channel.MAX_LINE
    for one in lines:
        one.__enter__()
    try:
        with ThreadPoolExecutor(count) as pool:
            assert all(found == brought for found in pool.map(lambda one: one.join(), lines))
    finally:
        for one in lines:
            one.__exit__()
