"""The stage from its command line on: programs on PATH that print what the vendors' tools print, or misbehave."""

import gc
import os
import re
import signal
import time
from pathlib import Path

import jsonschema
import pytest
import yaml
from gpuval_workloads.common import command
from gpuval_workloads.common.command import ExecutableSearch
from gpuval_workloads.vendor_tools import hl_qual, program
from gpuval_workloads.vendor_tools.answer import PASS, SKIPPED, ToolTask
from gpuval_workloads.vendor_tools.program import parse_arguments

from tests.kit.workload_process import COLLECTION, Workload, is_alive

DATA = Path(__file__).resolve().parents[2] / "data" / "vendor_tools"
ROLE = COLLECTION / "roles" / "vendor_tools"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")


@pytest.fixture
def bin_folder(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def put(folder, name, script):
    """Put an executable of the shell there; it may say where the golden outputs are."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nDATA={DATA}\n{script}\n")
    path.chmod(0o755)
    return path


def run(tmp_path, *arguments, accelerator="nvidia", gpus="8", path=None):
    """Run the stage with nothing on PATH but the shell's own and the folder's programs."""
    on_path = f"{path or tmp_path / 'bin'}:/usr/bin:/bin"
    return Workload(
        tmp_path,
        "gpuval_workloads.vendor_tools",
        *arguments,
        GPUVAL_ACCELERATOR=accelerator,
        GPUVAL_GPU_COUNT=gpus,
        PATH=on_path,
    )


def assert_gone(pid):
    """A process that was killed takes a moment to go."""
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def put_collectives(folder, script='cat "$DATA/nccl_tests_all_reduce.txt"'):
    for name in COLLECTIVES:
        put(folder, f"{name}_perf", script)


def test_the_tools_of_a_healthy_node(tmp_path, bin_folder):
    put_collectives(bin_folder, 'echo "$@" >> "$0.arguments"; cat "$DATA/nccl_tests_all_reduce.txt"')
    put(bin_folder, "dcgmi", 'echo "$@" > "$0.arguments"; cat "$DATA/dcgm4_level2.json"')
    ended = run(tmp_path, "--level", "2", "--seconds", "60").end()
    assert ended.code == 0, ended.err
    assert ended.result["state"] == "success"
    assert ended.metric("vendor_tools_run_count") == 2
    assert ended.metric("vendor_tools_failed_count") == 0
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv"):
        assert ended.metric(f"nccl_tests_{collective}_bus_bytes_per_second") == pytest.approx(366.5e9, rel=1e-3)
        assert ended.metric(f"nccl_tests_{collective}_latency_seconds") == pytest.approx(34e-6)
    assert ended.metric("nccl_tests_error_count") == 0
    assert ended.metric("dcgm_pcie_gpu_to_host_bandwidth_bytes_per_second", "gpu:7") == pytest.approx(55.12e9)
    assert {series["x_unit"] for series in ended.result["series"]} == {"bytes"}
    assert len(ended.result["series"]) == 6
    assert (bin_folder / "alltoall_perf.arguments").read_text() == "-b 8 -e 8G -f 2 -g 8\n"
    assert (bin_folder / "dcgmi.arguments").read_text() == "diag -r 2 -j\n"
    assert "6 of 6 collectives over 8 GPUs" in ended.result["message"]
    assert "dcgm: # Out" not in ended.out
    assert "nccl_tests_all_reduce: # Out of bounds values : 0 OK" in ended.out
    assert '"DCGM Diagnostic"' in ended.out  # the log of the stage is what is kept of it
    assert (tmp_path / "vendor_tools/dcgm.txt").read_text() == (DATA / "dcgm4_level2.json").read_text()


@pytest.mark.parametrize(
    "line", ["Test NCCL failure common.cu:958 'unhandled cuda error'", "GPU has fallen off the bus"]
)
def test_an_error_on_standard_error_beside_good_results_fails_the_stage(tmp_path, bin_folder, line):
    put_collectives(bin_folder, f'echo "{line}" >&2; cat "$DATA/nccl_tests_all_reduce.txt"')
    ended = run(tmp_path, "--seconds", "60").end()
    assert ended.result["state"] == "failure"
    assert f"nccl_tests: FAIL: {line}" in ended.result["message"]


def test_results_that_were_not_checked_leave_out_the_figure_of_answers(tmp_path, bin_folder):
    put_collectives(bin_folder, 'cat "$DATA/nccl_tests_unchecked.txt"')
    ended = run(tmp_path, "--seconds", "60").end()
    assert (ended.code, ended.metric("vendor_tools_failed_count")) == (0, 0)
    assert "vendor_tools_answered_count" not in {metric["name"] for metric in ended.result["metrics"]}
    assert "it checked no result (#wrong N/A)" in ended.result["message"]


def test_no_tool_is_a_success_that_says_what_was_looked_for(tmp_path, bin_folder):
    ended = run(tmp_path, "--seconds", "20").end()
    assert (ended.code, ended.result["state"]) == (0, "success")
    assert ended.metric("vendor_tools_run_count") == 0
    assert ended.metric("vendor_tools_failed_count") == 0
    assert "nccl_tests: left out: all_reduce_perf was found nowhere" in ended.result["message"]
    assert "dcgm: left out: dcgmi was found nowhere" in ended.result["message"]
    assert ended.metric("vendor_tools_not_run_count") == 2
    assert ended.metric("vendor_tools_answered_count") == 0


def test_a_cpu_node_needs_none_of_them(tmp_path, bin_folder):
    put(bin_folder, "dcgmi", "touch $0.ran")
    ended = run(tmp_path, "--seconds", "20", accelerator="cpu", gpus="").end()
    assert ended.code == 0
    assert ended.metric("vendor_tools_run_count") == 0
    assert not (bin_folder / "dcgmi.ran").exists()


def metrics(ended):
    return {metric["name"] for metric in ended.result["metrics"]}


def test_what_a_profile_requires_and_did_not_run_is_missing(tmp_path, bin_folder):
    """No figure that its criterion needs: INCOMPLETE, and the message and the environment name what did not run."""
    none = run(tmp_path, "--required", "--seconds", "20").end()
    assert (none.code, none.metric("vendor_tools_failed_count")) == (0, 0)
    assert "vendor_tools_answered_count" not in metrics(none)
    put_collectives(bin_folder)
    ended = run(tmp_path, "--required", "--tools", "nccl_tests,dcgm", "--seconds", "20").end()
    assert ended.metric("vendor_tools_run_count") == 1
    assert ended.metric("vendor_tools_failed_count") == 0
    assert "vendor_tools_answered_count" not in metrics(ended)
    assert "dcgm: left out: dcgmi was found nowhere" in ended.result["message"]
    assert ended.result["environment"]["not_run"] == {"dcgm": ["dcgm"]}
    (bin_folder / "sendrecv_perf").unlink()
    ended = run(tmp_path, "--required", "--tools", "nccl_tests", "--seconds", "20").end()
    assert "vendor_tools_answered_count" not in metrics(ended)
    assert "not run: sendrecv_perf" in ended.result["message"]
    put_collectives(bin_folder)
    ended = run(tmp_path, "--required", "--seconds", "20").end()
    assert ended.metric("vendor_tools_answered_count") == 1
    assert "not on this node: dcgm" in ended.result["message"]


@pytest.mark.parametrize("required", [[], ["--required"]])
def test_a_tool_that_skipped_its_tests_of_the_hardware_is_missing_evidence(tmp_path, bin_folder, required):
    put(bin_folder, "dcgmi", 'cat "$DATA/dcgm4_level2_skipped.json"')
    ended = run(tmp_path, "--seconds", "20", *required).end()
    assert (ended.metric("vendor_tools_run_count"), ended.metric("vendor_tools_failed_count")) == (1, 0)
    assert "vendor_tools_answered_count" not in metrics(ended)
    assert ended.metric("dcgm_skipped_count") == 24
    assert "dcgm: incomplete: it tested no hardware: memory, pcie skipped" in ended.result["message"]


def test_the_figure_that_the_tools_have_answered_is_required():
    checks = {check["name"]: check for check in yaml.safe_load((ROLE / "files" / "criteria.yml").read_text())["checks"]}
    assert checks["vendor_tools_complete"]["metric"] == "vendor_tools_answered_count"
    assert checks["vendor_tools_complete"]["severity"] == "required"


def test_a_gpu_that_dcgm_fails_is_named(tmp_path, bin_folder):
    put(bin_folder, "dcgmi", 'echo "starting {now}"; cat "$DATA/dcgm4_level2_failed.json"; exit 226')
    ended = run(tmp_path, "--seconds", "20").end()
    assert (ended.code, ended.result["state"]) == (1, "failure")
    assert "dcgm: FAIL: gpu:5 memory: Detected 1 volatile double-bit ECC error" in ended.result["message"]
    assert ended.metric("dcgm_memory_failed_count", "gpu:5") == 1
    assert ended.metric("vendor_tools_failed_count") == 1


def test_a_warning_of_dcgm_with_its_exit_code_is_no_failure(tmp_path, bin_folder):
    put(bin_folder, "dcgmi", 'cat "$DATA/dcgm4_level2_warning.json"; exit 226')
    ended = run(tmp_path, "--seconds", "20").end()
    assert ended.metric("vendor_tools_failed_count") == 0
    assert "Persistence mode" in ended.result["message"]


def test_wrong_results_fail_and_the_rest_is_still_measured(tmp_path, bin_folder):
    put_collectives(bin_folder)
    put(bin_folder, "broadcast_perf", 'cat "$DATA/nccl_tests_wrong.txt"; exit 1')
    ended = run(tmp_path, "--seconds", "20").end()
    assert ended.result["state"] == "failure"
    assert "broadcast: 24 wrong elements, of 1,073,741,824 bytes" in ended.result["message"]
    assert ended.metric("nccl_tests_error_count") == 24
    assert ended.metric("nccl_tests_all_reduce_bus_bytes_per_second") > 0


def test_gpus_too_slow_for_the_largest_size_are_measured_at_a_smaller_one(tmp_path, bin_folder):
    smaller = "s/maxBytes 8589934592/maxBytes 1073741824/;/^ *[248][1-9][0-9]\\{8\\} /d"
    script = f'case "$*" in *"-e 8G"*) exec sleep 600;; esac\nsed -e "{smaller}" "$DATA/nccl_tests_all_reduce.txt"'
    for name in ("all_reduce", "all_gather", "broadcast"):
        put(bin_folder, f"{name}_perf", f'echo "$4" >> "{tmp_path}/sizes"\n{script}')
    ended = run(tmp_path, "--seconds", "12").end()
    assert ended.metric("vendor_tools_failed_count") == 0, ended.result["message"]
    assert (tmp_path / "sizes").read_text().split() == ["8G", "1G", "1G", "1G"]
    assert ended.metric("nccl_tests_broadcast_largest_bytes") == 2**30


def test_a_gpu_fewer_than_declared_is_reported_in_the_words_of_the_tool(tmp_path, bin_folder):
    put(bin_folder, "all_reduce_perf", "echo 'Invalid number of GPUs: 8 requested but only 7 were found.' >&2; exit 3")
    ended = run(tmp_path, "--seconds", "20").end()
    assert ended.metric("vendor_tools_failed_count") == 1
    assert "exit code 3; it printed no table: Invalid number of GPUs: 8 requested but only 7" in ended.result["message"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 600", "had not ended after"),
        ("trap '' TERM; echo starting; while :; do sleep 1; done", "had not ended after"),
        ('cat "$DATA/dcgm4_level2.json"; kill -SEGV $$', "was killed by SIGSEGV"),
        ("echo 'Error: a DCGM library could not be found'; exit 255", "exit code 255"),
        ('head -c 3000 "$DATA/dcgm4_level2.json"', "missing or cut short"),
        ('cat "$DATA/dcgm4_level2.json"; yes | head -c 6000000; cat "$DATA/dcgm4_level2.json"', "were left out"),
        ("head -c 200000 /dev/urandom", "missing or cut short"),
        ('cat "$DATA/dcgm4_level2.json"; exit 3', "exit code 3"),
    ],
    ids=["hangs", "ignores TERM", "signal", "error", "cut short", "flood", "rubbish", "exit code"],
)
def test_a_tool_that_gives_no_answer_is_no_pass(tmp_path, bin_folder, monkeypatch, script, reason):
    put(bin_folder, "dcgmi", script)
    start = time.monotonic()
    ended = run(tmp_path, "--seconds", "2" if "not ended" in reason else "30").end()
    assert time.monotonic() - start < 100
    assert (ended.code, ended.result["state"]) == (0, "success")
    assert ended.metric("vendor_tools_run_count") == 1
    assert ended.metric("vendor_tools_failed_count") == 1
    assert "dcgm: no answer:" in ended.result["message"]
    assert reason in ended.result["message"]
    assert not [metric for metric in ended.result["metrics"] if metric["name"].startswith("dcgm_")]
    assert len(ended.out) < 3_000_000


@pytest.mark.parametrize("words", ["to the host engine", "to the specified host: localhost"])
def test_dcgm_without_its_host_engine_is_left_out(tmp_path, bin_folder, words):
    """Where an image has dcgmi alone, the node is no worse for it."""
    put(bin_folder, "dcgmi", f"echo 'Error: unable to establish a connection {words}'; exit 255")
    ended = run(tmp_path, "--seconds", "20").end()
    assert ended.metric("vendor_tools_failed_count") == ended.metric("vendor_tools_run_count") == 0
    assert ended.metric("vendor_tools_left_out_count") == ended.metric("vendor_tools_not_run_count") == 1
    assert "dcgm: left out: no host engine answers dcgmi" in ended.result["message"]


def test_a_tool_that_hangs_leaves_time_and_nothing_else_behind(tmp_path, bin_folder):
    put(bin_folder, "all_reduce_perf", f'sleep 600 & echo $! > "{tmp_path}/child"; exec sleep 600')
    put(bin_folder, "dcgmi", 'cat "$DATA/dcgm4_level2.json"')
    ended = run(tmp_path, "--seconds", "12").end()
    message = ended.result["message"]
    assert re.search(r"nccl_tests: no answer: all_reduce: had not ended after \d+ s", message), message
    assert "24 results passed" in message, "dcgmi has what is left of the 12 s"
    assert ended.metric("vendor_tools_failed_count") == 1
    assert ended.metric("dcgm_results_count") == 24
    assert_gone(int((tmp_path / "child").read_text()))


def test_a_stage_that_is_stopped_stops_its_tool(tmp_path, bin_folder):
    put(bin_folder, "dcgmi", f'echo $$ > "{tmp_path}/tool"; echo begun; sleep 600')
    workload = run(tmp_path, "--seconds", "300")
    workload.wait_for_line("dcgm: begun")  # what is stopped while it starts a tool leaves it to the runner
    workload.process.send_signal(signal.SIGTERM)
    ended = workload.end()
    assert ended.code == 143
    assert ended.result["state"] == "running"
    assert_gone(int((tmp_path / "tool").read_text()))


def test_the_tools_of_amd_have_their_own_names(tmp_path, bin_folder):
    put_collectives(bin_folder, 'cat "$DATA/rccl_tests_all_reduce.txt"')
    put(bin_folder, "rvs", 'echo "$@" > "$0.arguments"; cat "$DATA/rvs_level3.txt"')
    put(bin_folder, "agfhc", "touch $0.ran")
    ended = run(tmp_path, "--seconds", "60", "--level", "3", accelerator="amd").end()
    assert ended.metric("rccl_tests_all_to_all_bus_bytes_per_second") == pytest.approx(363.2e9, rel=1e-2)
    assert ended.metric("rvs_gst_fp16_trig_tflops", "gpu:1") == pytest.approx(1064.66)
    assert (bin_folder / "rvs.arguments").read_text().startswith("-r 3 -j ")
    assert ended.metric("vendor_tools_left_out_count") == 1
    assert ended.metric("vendor_tools_failed_count") == 0
    assert "agfhc: left out: its shortest recipe takes 5 minutes" in ended.result["message"]
    assert not (bin_folder / "agfhc.ran").exists()


def test_a_gpu_that_only_the_json_of_rvs_fails_is_found(tmp_path, bin_folder):
    put(bin_folder, "rvs", 'cat "$DATA/rvs_level3.txt"; cp "$DATA/rvs_trailing_comma.json" "$4"')
    ended = run(tmp_path, "--seconds", "60", accelerator="amd").end()
    assert ended.result["state"] == "failure"
    assert "rvs: FAIL: gpu:1 gst-fp16-trig: GPU id 27226 at 0000:15:00.0" in ended.result["message"]


def test_the_recipe_of_agfhc_is_the_longest_that_fits(tmp_path, bin_folder):
    put(bin_folder, "agfhc", 'echo "$@" > "$0.arguments"; mkdir -p "$5"; cat "$DATA/agfhc_all_lvl1.txt"')
    ended = run(tmp_path, "--seconds", "1000", "--level", "3", accelerator="amd").end()
    assert ended.metric("agfhc_tests_count") == 5
    assert (bin_folder / "agfhc.arguments").read_text().startswith("-r all_lvl2 --simple-output -o ")


def test_the_failures_in_results_json_of_agfhc_count(tmp_path, bin_folder):
    put(bin_folder, "agfhc", 'mkdir -p "$5"; echo \'{"summary": {"total_failed": 2}}\' > "$5/results.json"; '
        'cat "$DATA/agfhc_all_lvl1.txt"')  # fmt: skip
    ended = run(tmp_path, "--seconds", "1000", accelerator="amd").end()
    assert ended.result["state"] == "failure"
    assert "2 tests failed by its results.json" in ended.result["message"]


def test_hl_qual_is_started_in_its_own_folder_with_the_switch_of_its_model(tmp_path):
    folder = tmp_path / "qual" / "gaudi3" / "bin"
    put(folder, "hl_qual", 'echo "$PWD $__python_cmd $@" > arguments; cat "$DATA/hl_qual_failed.txt"')
    ended = run(tmp_path, "--path", str(folder), "--seconds", "120", accelerator="gaudi").end()
    where, python, model, *rest = (folder / "arguments").read_text().split()
    assert (where, python, model) == (str(folder), "python3", "-gaudi3")
    assert rest[:4] == ["-c", "all", "-rmod", "parallel"]
    assert ended.result["state"] == "failure"
    assert "hl_qual: FAIL: gpu:6 Device accel6: 0000:b3:00.0: FAILED" in ended.result["message"]


#: As Intel's script prints it: its state is a file beside it.
PORTS = """
cd "$(dirname "$0")"; echo "$1" >> calls
case "$1" in
  --up) test -e broken || echo up > state ;;
  --status) for n in 0 1; do printf 'accel%s\\n3 ports %s (1, 8, 22)\\n' $n "$(cat state)"; done ;;
esac
"""


def test_network_ports_that_hl_qual_takes_down_are_up_after_it(tmp_path):
    folder = tmp_path / "qual" / "gaudi3" / "bin"
    put(folder, "manage_network_ifs.sh", PORTS)
    (folder / "state").write_text("up\n")
    put(folder, "hl_qual", 'echo down > state; cat "$DATA/hl_qual.txt"')
    ended = run(tmp_path, "--path", str(folder), "--seconds", "300", accelerator="gaudi").end()
    assert (folder / "calls").read_text().split() == ["--status", "--up", "--status"]
    assert ended.result["message"] == "hl_qual: functional test passed (network ports brought up again)"


def test_ports_that_stay_down_are_a_fault_of_their_device(tmp_path, monkeypatch):
    monkeypatch.setattr(hl_qual, "SETTLE_SECONDS", 0)
    script = put(tmp_path, "manage_network_ifs.sh", PORTS)
    (tmp_path / "state").write_text("up\n")
    job = ToolTask("hl_qual", ExecutableSearch([], {}), 8, 2, time.monotonic() + 60, tmp_path)
    ports = hl_qual.GaudiPorts(job, tmp_path)
    (tmp_path / "state").write_text("down\n")
    (tmp_path / "broken").touch()
    ports.bring_up()
    first, second = ports.lost()
    assert (first.scope, second.scope) == ("gpu:0", "gpu:1")
    assert first.text == f"3 ports are down since hl_qual: run {script} --up on the node, check its cables"


@pytest.mark.parametrize("end", ["exit 1", "echo accel0; exit 1", "echo accel0: cannot be read; exit 1"])
def test_ports_whose_state_is_not_reported_after_hl_qual_are_missing_evidence_and_no_fault(tmp_path, monkeypatch, end):
    monkeypatch.setattr(hl_qual, "SETTLE_SECONDS", 0)
    folder = tmp_path / "qual" / "gaudi3" / "bin"
    put(folder, "manage_network_ifs.sh", f'test -e "$(dirname "$0")/stuck" && {{ {end}; }}\n{PORTS}')
    (folder / "state").write_text("up\n")
    put(folder, "hl_qual", 'touch stuck; cat "$DATA/hl_qual.txt"')
    job = ToolTask("hl_qual", ExecutableSearch([folder], {}), 8, 2, time.monotonic() + 120, tmp_path)
    answer = hl_qual.run(job)
    assert (answer.verdict, answer.faults) == (SKIPPED, [])
    assert "did not report the network ports of gpu:0, gpu:1" in answer.reason


def test_ports_whose_state_is_not_reported_before_hl_qual_are_said_to_be_not_compared(tmp_path):
    folder = tmp_path / "qual" / "gaudi3" / "bin"
    put(folder, "manage_network_ifs.sh", "exit 1")
    put(folder, "hl_qual", 'cat "$DATA/hl_qual.txt"')
    job = ToolTask("hl_qual", ExecutableSearch([folder], {}), 8, 2, time.monotonic() + 120, tmp_path)
    answer = hl_qual.run(job)
    assert answer.verdict == PASS
    assert answer.notes == ["network ports not compared: manage_network_ifs.sh --status reported none before it"]


@pytest.mark.parametrize(
    ("text", "up"),
    [
        ("accel0\n3 ports down (5, 8, 9)\naccel1\n2 ports up (2, 3)\n1 port down (7)\n", {0: 0, 1: 2}),
        ("hl0\n3 ports up\n", {0: 3}),
        ("accel0\n3 ports up\naccel1\n", {0: 3}),
        ("3 ports up\n\0\n", {}),
        ("permission denied", {}),
    ],
)
def test_the_status_of_the_ports_is_read(text, up):
    assert hl_qual.count_ports(text) == up


def test_how_many_gpus_there_are_is_known_before_collectives_run(tmp_path, bin_folder):
    put_collectives(bin_folder)
    one = run(tmp_path, "--seconds", "20", gpus="1").end()
    assert one.metric("vendor_tools_left_out_count") == 1
    assert one.metric("vendor_tools_failed_count") == 0
    unknown = run(tmp_path, "--seconds", "20", "--tools", "nccl_tests", accelerator="cpu", gpus="").end()
    assert unknown.metric("vendor_tools_failed_count") == 1
    assert "set gpuval_gpu_count" in unknown.result["message"]


@pytest.mark.parametrize(
    "arguments", [["--tools", "nvqual"], ["--tools", ","], ["--level", "5"], ["--seconds", "0"], ["--seconds", "nan"]]
)
def test_what_makes_no_sense_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_gpus_are_counted_by_their_devices(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "accel/accel0", "accel/accel_controlD0"):
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for node, gpu in enumerate((0, 0, 42583, 27226, 36479)):
        path = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(node) / "gpu_id"
        path.parent.mkdir(parents=True)
        path.write_text(f"{gpu}\n")
    counts = {kind: program.gpu_count({}, kind, tmp_path) for kind in ("nvidia", "amd", "gaudi", "cpu")}
    assert counts == {"nvidia": 2, "amd": 3, "gaudi": 1, "cpu": None}
    assert program.gpu_count({"GPUVAL_GPU_COUNT": "8"}, "nvidia", tmp_path) == 8
    assert program.gpu_count({}, "nvidia", tmp_path / "nothing") is None
    assert program.vendor({}, tmp_path) == "nvidia"
    assert program.vendor({"GPUVAL_ACCELERATOR": "amd"}, tmp_path) == "amd"
    assert program.vendor({}, tmp_path / "nothing") == "cpu"


def test_folders_given_come_before_path_and_only_executables_count(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    put(mine, "dcgmi", "true")
    put(theirs, "dcgmi", "true")
    found = ExecutableSearch([mine], {"PATH": str(theirs)}, usual=())
    assert found.find("dcgmi") == mine / "dcgmi"
    (mine / "dcgmi").chmod(0o644)
    assert found.find("dcgmi") == theirs / "dcgmi"
    assert found.find("rvs") is None


# Running another user's program


def test_a_program_that_cannot_be_started_says_why(tmp_path):
    assert command.run([tmp_path / "missing"], 5).how() == "could not be started: No such file or directory"
    (tmp_path / "broken").write_text("no program")
    (tmp_path / "broken").chmod(0o755)
    assert "could not be started: Exec format error" in command.run([tmp_path / "broken"], 5).how()
    assert "could not be started" in command.run(["true"], 5, cwd=tmp_path / "nowhere").how()


def test_of_too_much_output_the_beginning_and_the_end_are_kept():
    ended = command.run(["sh", "-c", "echo first; yes middle | head -c 9000000; echo last"], 60)
    assert (ended.code, ended.output[:6], ended.output[-5:]) == (0, "first\n", "last\n")
    assert len(ended.output) < 4.5 * 2**20
    assert ended.lost_bytes == 9_000_011 - (len(ended.output) - len(f"\n[{ended.lost_bytes} bytes left out]\n"))


def test_a_silent_program_is_reported_on(monkeypatch):
    monkeypatch.setattr(command, "QUIET_SECONDS", 0.3)
    words = []
    command.run(["sleep", "1.2"], 20, say=words.append)
    assert len(words) >= 2
    assert words[0].startswith("still runs")


def test_what_a_program_leaves_in_its_group_ends_with_it(tmp_path):
    ended = command.run(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child"], 20)
    assert ended.code == 0
    assert ended.seconds < 60
    assert_gone(int((tmp_path / "child").read_text()))


def test_a_process_that_left_the_group_and_holds_the_pipe_is_not_waited_for(tmp_path):
    start = time.monotonic()
    ended = command.run(["sh", "-c", f"setsid sh -c 'echo $$ > {tmp_path}/child; sleep 90' & sleep 0.5; echo done"], 60)
    assert time.monotonic() - start < 45
    assert "done" in ended.output
    del ended
    gc.collect()  # the pipe that is still held must not be mistaken for that of a later program
    for _ in range(5):
        assert command.run(["echo", "mine"], 20).output == "mine\n"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


# The role


def test_criteria_follow_their_schema_and_required_ones_stand_on_what_is_always_there(tmp_path, bin_folder):
    schema = yaml.safe_load((COLLECTION / "schemas" / "criteria.schema.json").read_text())
    criteria = yaml.safe_load((ROLE / "files" / "criteria.yml").read_text())
    jsonschema.Draft202012Validator(schema).validate(criteria)
    always = {metric["name"] for metric in run(tmp_path, "--seconds", "5").end().result["metrics"]}
    assert criteria["stage"] == "vendor_tools"
    assert all(check["metric"] in always and "stage" not in check for check in criteria["checks"])


def test_the_criterion_shown_in_the_documentation_is_one():
    page = (COLLECTION.parents[3] / "docs" / "design" / "vendor_tools.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    schema = yaml.safe_load((COLLECTION / "schemas" / "criteria.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(block))
