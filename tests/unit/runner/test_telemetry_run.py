"""Telemetry beside real stages of a real runner, with GPUs by NVML's stand-in."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from gpuval_runner import plan as plans
from gpuval_runner.errors import NodePlanError
from gpuval_runner.record import StageRecord
from gpuval_runner.result import MAX_ENVIRONMENT, MAX_METRICS, ResultFile
from gpuval_runner.telemetry import child, kernel_log
from gpuval_runner.telemetry.monitor import END_SECONDS, PROCESS, Handover, Telemetry
from gpuval_runner.telemetry.summary import TelemetrySummary

from tests.kit.runner import SERIES_SCHEMA, SUCCEED, plan, stage, until
from tests.kit.telemetry import build_nvml

HOST = {"telemetry_samples_count", "cpu_utilisation_mean_ratio", "memory_used_max_bytes"}
OF_EACH_GPU = {
    "gpu_temperature_max_celsius",
    "gpu_power_mean_watts",
    "gpu_power_max_watts",
    "gpu_power_limit_watts",
    "gpu_utilisation_mean_ratio",
    "gpu_memory_used_max_bytes",
    "gpu_throttle_thermal_ratio",
    "gpu_throttle_power_ratio",
    "gpu_throttle_hardware_ratio",
    "gpu_ecc_corrected_new_count",
    "gpu_ecc_uncorrected_new_count",
    "gpu_row_remap_new_count",
    "gpu_link_error_new_count",
    "gpu_link_corrected_new_count",
    "gpu_pcie_replay_new_count",
    "gpu_pcie_width_min_count",
}
OF_BUSY_GPUS = {
    "gpu_power_busy_mean_watts",
    "gpu_power_busy_ratio",
    "gpu_sm_clock_busy_mean_hertz",
    "gpu_pcie_generation_min_count",
}
CPU = {"accelerator": {"vendor": "cpu", "count": 0}, "telemetry_seconds": 0.1}
GPUS = {"accelerator": {"vendor": "nvidia", "count": 8}, "telemetry_seconds": 0.1}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library, tmp_path):
    """The runner's environment on a node whose driver is the stand-in, and the folder that says what it says."""
    said = tmp_path / "said"
    said.mkdir()
    return {"LD_LIBRARY_PATH": str(library.parent), "NVIDIA_STAND_IN": str(said)}, said


@pytest.fixture(autouse=True)
def own_helper():
    """A test's helper has the test's environment."""
    PROCESS.close()
    yield
    PROCESS.close()


def metrics(record, scope="node"):
    return {metric["name"]: metric["value"] for metric in record["metrics"] if metric["scope"] == scope}


def wait_for_samples(node, count):
    """Wait until the record of the stage at work tells of so many samples."""

    def sampled():
        return "work" in node.states() and metrics(node.record("work")).get("telemetry_samples_count", 0) >= count

    until(sampled, what=f"{count} samples")


def helpers():
    """Helper processes of this user's runners that are alive."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"gpuval_runner.telemetry.child" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_cpu_stage_has_the_hosts_figures_and_its_own(node):
    own = (
        '{"state":"success","message":"m","environment":{"torch":"x","telemetry":"mine"},'
        '"metrics":[{"name":"a_seconds","value":1.5,"unit":"seconds","scope":"node"},'
        '{"name":"telemetry_samples_count","value":-1,"unit":"count","scope":"node"}],'
        '"series":[{"name":"loss","unit":"nats","scope":"node","x_unit":"step","x":[1],"y":[2]}]}'
    )
    node.put_plan(stage("work", f"{node.until_released}; printf '%s' '{own}' > $GPUVAL_RESULT_FILE"), **CPU)
    process = node.begin("run")
    wait_for_samples(node, 2)
    node.release()
    assert process.wait(30) == 0
    record = node.record("work")
    assert record["message"] == "m"  # nothing outlived it, nothing was stopped
    found = metrics(record)
    assert found["a_seconds"] == 1.5 and found["telemetry_samples_count"] == -1  # the workload's own are never replaced
    assert found.keys() >= HOST and not any(name.startswith("gpu_") for name in found)
    assert record["environment"]["torch"] == "x" and record["environment"]["telemetry"] == "mine"
    series = json.loads(node.files.result("series/work").read_text())
    SERIES_SCHEMA.validate(series)
    assert [curve["name"] for curve in series["series"]] == ["loss"]


def test_without_the_setting_nothing_is_sampled(node):
    node.put_plan(stage("work"))
    assert node.call("run").returncode == 0
    assert node.record("work")["metrics"] == [] and node.record("work")["environment"] == {}


def test_a_gpu_stage_has_all_figures_and_curves(node, gpus):
    node.put_plan(stage("work", f"{node.until_released}; {SUCCEED}"), **GPUS)
    process = node.begin("run", environment=gpus[0])
    wait_for_samples(node, 5)
    node.release()
    assert process.wait(30) == 0
    record = node.record("work")
    assert record["message"] == "done"
    for index in range(7):
        found = metrics(record, f"gpu:{index}")
        assert found.keys() >= OF_EACH_GPU | OF_BUSY_GPUS
        assert found["gpu_power_busy_mean_watts"] == 690.5 + index
        assert found["gpu_power_busy_ratio"] == pytest.approx((690.5 + index) / 700)
        assert found["gpu_ecc_uncorrected_new_count"] == 0
    assert metrics(record, "gpu:2")["gpu_throttle_hardware_ratio"] == 1
    assert not metrics(record, "gpu:7").keys() & OF_BUSY_GPUS  # it was never busy
    of_node = metrics(record)
    assert (of_node["gpu_lost_count"], of_node["topology_changed_count"]) == (0, 0)
    assert of_node["telemetry_samples_count"] >= 5
    assert record["environment"]["telemetry"]["source"] == "nvml"
    series = json.loads(node.files.result("series/work").read_text())
    SERIES_SCHEMA.validate(series)
    power = [curve for curve in series["series"] if curve["name"] == "gpu_power_watts"]
    assert [curve["scope"] for curve in power] == [f"gpu:{index}" for index in range(8)]
    assert set(power[3]["y"]) == {693.5} and 0 <= power[3]["x"][0] < power[3]["x"][-1] < 10
    assert ", with 40 curves" in node.log("work")


def test_what_goes_wrong_meanwhile_is_found_and_named(node, gpus):
    environment, said = gpus
    node.put_plan(stage("work", f"{node.until_released}; {SUCCEED}"), **GPUS)
    process = node.begin("run", environment=environment)
    wait_for_samples(node, 2)
    for name, index in (("errors", 5), ("down", 6), ("lost", 4), ("narrow", 1)):
        (said / name).write_text(str(index))
    wait_for_samples(node, metrics(node.record("work"))["telemetry_samples_count"] + 2)
    node.release()
    assert process.wait(30) == 0
    record = node.record("work")
    assert record["state"] == "success"
    of_node, fifth = metrics(record), metrics(record, "gpu:5")
    assert (of_node["gpu_lost_count"], of_node["topology_changed_count"]) == (1, 3)
    assert fifth["gpu_ecc_corrected_new_count"] == 2 and fifth["gpu_ecc_uncorrected_new_count"] == 3
    assert (fifth["gpu_row_remap_new_count"], fifth["gpu_pcie_replay_new_count"]) == (1, 7)
    assert fifth["gpu_link_error_new_count"] == 9
    assert fifth["gpu_link_corrected_new_count"] > 0
    changes = record["environment"]["telemetry"]["changes"]
    for words in ("gpu:4 (0000:14:00.0) is lost", "gpu:5 (0000:15:00.0) link 3: 9 new errors", "link 7 went down"):
        assert any(words in change for change in changes), changes
    assert "gpu_ecc_corrected_new_count" not in metrics(record, "gpu:4")  # not guessed
    assert record["environment"]["telemetry"]["absent"]["gpu:4"] == "the GPU is lost"


@pytest.mark.parametrize(
    ("command", "changes", "state"),
    [
        ("sleep 0.8; kill -9 $$", {}, "crash"),
        ("sleep 60", {"timeout_seconds": 0.8}, "timeout"),  # its helper samples once more at the end
        ("trap '' TERM; sleep 60", {"timeout_seconds": 0.8, "grace_seconds": 0.5}, "timeout"),
    ],
)
def test_a_stage_that_did_not_end_well_has_its_evidence(node, gpus, command, changes, state):
    node.put_plan(stage("work", command, **changes), **GPUS)
    assert node.call("run", environment=gpus[0]).returncode == 1
    record = node.record("work")
    assert record["state"] == state and "telemetry" not in record["message"]
    assert metrics(record, "gpu:3").keys() >= OF_EACH_GPU
    assert metrics(record)["gpu_lost_count"] == 0


def test_a_plan_says_how_often():
    document = plan(stage("work"))
    assert plans.parse(document).telemetry_seconds == 0
    assert plans.parse({**document, "telemetry_seconds": 2.5}).telemetry_seconds == 2.5
    for wrong in (-1, "1", float("inf")):
        with pytest.raises(NodePlanError, match="telemetry_seconds"):
            plans.parse({**document, "telemetry_seconds": wrong})


def test_a_full_record_keeps_the_output_of_the_workload():
    document = plan(stage("work"))
    parsed = plans.parse(document)
    record = StageRecord.pending(parsed, parsed.stages[0])
    own = [{"name": "own_count", "value": n, "unit": "count", "scope": f"rank:{n}"} for n in range(MAX_METRICS)]
    record.merge(ResultFile(metrics=own, environment={f"k{n}": n for n in range(MAX_ENVIRONMENT - 1)}))
    more = [{"name": "telemetry_samples_count", "value": 1, "unit": "count", "scope": "node"}]
    record.add_telemetry(more, {"telemetry": {}, "kernel_events": []})
    assert record.metrics == own
    assert len(record.environment) == MAX_ENVIRONMENT and "telemetry" in record.environment


def test_a_command_that_is_not_there_is_reported_as_before(node):
    node.put_plan(stage("work", ["/no/such/command"]), **CPU)
    assert node.call("run").returncode == 1
    assert node.record("work")["message"].startswith("cannot start: command not found")


def test_the_runner_that_is_asked_to_end_leaves_no_helper(node, gpus):
    node.put_plan(stage("work", "sleep 60"), **GPUS)
    before = set(helpers())
    process = node.begin("run", environment=gpus[0])
    mine = until(lambda: set(helpers()) - before, what="a helper")
    process.terminate()
    process.communicate(timeout=20)
    until(lambda: not mine & set(helpers()), what="the helper's end")


def test_a_runner_that_is_killed_leaves_no_helper(node, gpus):
    node.put_plan(stage("work", "sleep 3"), **GPUS)
    before = set(helpers())
    process = node.begin("run", environment=gpus[0])
    mine = until(lambda: set(helpers()) - before, what="a helper")
    process.kill()
    until(lambda: not mine & set(helpers()), what="the helper's end")


def test_the_stages_of_a_run_share_a_helper_that_no_stage_can_end(node, gpus):
    """Not even one that is stopped with all that it started; a helper that is killed is replaced."""
    of_runner = "for p in $(cat /proc/$PPID/task/*/children); do [ $p = $$ ] || echo $p; done"
    names = ("first", "stopped", "third", "killer", "last")
    commands = {
        "first": f"sleep 0.5; {of_runner} > {node.base}/first; {SUCCEED}",
        "stopped": "sleep 60",
        "third": f"sleep 0.5; {of_runner} > {node.base}/third; {SUCCEED}",
        "killer": f"sleep 0.5; kill -9 `{of_runner}`; {SUCCEED}",
        "last": f"sleep 0.5; {of_runner} > {node.base}/last; {SUCCEED}",
    }
    stages = [stage(name, commands[name], **({"timeout_seconds": 0.5} if name == "stopped" else {})) for name in names]
    node.put_plan(*stages, **GPUS)
    assert node.call("run", environment=gpus[0]).returncode == 1
    pids = {name: (node.base / name).read_text().split() for name in ("first", "third", "last")}
    assert len(pids["first"]) == 1 and pids["third"] == pids["first"] and len(pids["last"]) == 1
    assert pids["last"] != pids["first"]
    assert [node.states()[name] for name in names] == ["success", "timeout", "success", "success", "success"]
    for name in ("first", "stopped", "third", "last"):
        assert "outlived" not in node.record(name)["message"] and "telemetry" not in node.record(name)["message"]
        assert metrics(node.record(name))["gpu_lost_count"] == 0, name
        cost = node.record(name)["environment"]["telemetry"]["cpu_seconds"]
        assert cost < sum(node.record(each)["duration_seconds"] for each in names)
    assert "telemetry ended before the stage did" in node.record("killer")["message"]
    assert not {int(pid) for each in pids.values() for pid in each} & set(helpers())


def test_a_helper_whose_source_failed_does_not_serve_the_next_stage(monkeypatch, tmp_path):
    """What a driver's library holds after an error is not known."""
    carried, served = Handover(), []
    for vendor in ("cpu", "cpu", "nvidia", "nvidia"):
        monkeypatch.setenv("PATH", str(tmp_path))
        telemetry = Telemetry(0.1, vendor, carried=carried)
        served.append(carried.helper.process.pid)
        until(lambda held=telemetry: held.tick() or held.summary._host_samples, what="a sample")
        telemetry.end()
        assert (carried.helper is not None) == (vendor == "cpu")
    carried.close()
    assert served[0] == served[1] == served[2] != served[3]


def test_a_driver_that_hangs_stops_nothing_but_itself(gpus, monkeypatch, tmp_path):
    environment, said = gpus
    for name in ("journalctl", "dmesg"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\nexit 1\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    telemetry = Telemetry(0.1, "nvidia", hung_seconds=0.5, kmsg=Path("/no/kmsg"))

    def sampled():
        telemetry.tick()
        return metrics({"metrics": telemetry.summary.metrics()}, "gpu:6")

    until(sampled, what="a sample")
    (said / "hang").write_text("6")
    slowest = 0.0
    deadline = time.monotonic() + 40
    while not telemetry.summary.problem:
        assert time.monotonic() < deadline
        begun = time.monotonic()
        telemetry.tick()
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(0.05)
    assert slowest < 20  # a call that hangs does for ever
    hosts = telemetry.summary._host_samples
    until(lambda: telemetry.tick() or telemetry.summary._host_samples > hosts + 2, what="the host's samples to go on")
    begun = time.monotonic()
    telemetry.end()
    assert time.monotonic() - begun < 30
    assert (
        "telemetry of the GPUs stopped after" in telemetry.summary.problem
        and "did not return within" in telemetry.summary.problem
    )
    found = {metric["name"] for metric in telemetry.summary.metrics()}
    assert "gpu_power_mean_watts" in found and "gpu_lost_count" not in found
    environment = telemetry.summary.environment()["telemetry"]
    assert environment["absent"]["gpus"] == telemetry.summary.problem
    assert environment["absent"]["kernel_log"]


def test_a_helper_that_is_killed_is_reported(monkeypatch):
    telemetry = Telemetry(0.1, "cpu")
    until(lambda: telemetry.tick() or telemetry.summary._host_samples, what="a sample")
    telemetry._helper.process.kill()
    telemetry.end()
    assert telemetry.summary.problem == "telemetry ended before the stage did"


def test_the_kernels_messages_reach_the_record_and_the_log(tmp_path):
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, before the stage\n")
    telemetry = Telemetry(0.1, "cpu", kmsg=log)
    with log.open("ab") as stream:
        stream.write(b"3,2,2,-;NVRM: Xid (PCI:0000:10:00): 48, pid=7, DBE\n")
        stream.write(b"11,3,3,-;NVRM: Xid (PCI:0000:10:00): 79, forged by a user\n")
        stream.write(b"3,4,4,-;mlx5_core 0000:01:00.0 enp1s0f0: Link down\n")
    telemetry.end()
    found = metrics({"metrics": telemetry.summary.metrics()})
    assert (found["kernel_xid_count"], found["kernel_xid_critical_count"], found["kernel_link_flap_count"]) == (1, 1, 1)
    assert telemetry.summary.kernel_lines == [
        "NVRM: Xid (PCI:0000:10:00): 48, pid=7, DBE",
        "mlx5_core 0000:01:00.0 enp1s0f0: Link down",
    ]


def test_a_source_without_a_driver_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    telemetry = Telemetry(0.1, "nvidia")
    time.sleep(0.5)
    telemetry.end()
    absent = telemetry.summary.environment()["telemetry"]["absent"]
    assert "libnvidia-ml.so.1 cannot be loaded" in absent["gpus"]
    assert telemetry.summary.problem == ""  # the facts stage judges that, not every stage again


def test_it_works_from_the_archive_with_a_tool_in_place_of_nvml(tmp_path):
    """As on a node: one zip application with the hardware package, started without its own folder in the path."""
    archive = tmp_path / "runner.pyz"
    archive.write_bytes(payload.runner_pyz())
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\necho 'index, uuid, pci.bus_id, power.draw [W], utilization.gpu [%]'\n"
        "echo '0, GPU-a, 00000000:10:00.0, 300.00 W, 95 %'\n"
    )
    tool.chmod(0o755)
    program = (
        "import json, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from gpuval_runner.telemetry.monitor import Telemetry\n"
        "telemetry = Telemetry(0.1, 'nvidia')\n"
        "for _ in range(40): time.sleep(0.1); telemetry.tick()\n"
        "telemetry.end(); print(json.dumps([telemetry.summary.metrics(), telemetry.summary.environment()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive)],
        env={"PATH": f"{tool.parent}:{os.environ['PATH']}", "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found, environment = json.loads(done.stdout)
    assert environment["telemetry"]["source"] == "nvidia-smi", environment
    assert metrics({"metrics": found}, "gpu:0")["gpu_power_busy_mean_watts"] == 300
    assert "libnvidia-ml.so.1 cannot be loaded" in environment["telemetry"]["absent"]["nvml"]


def test_it_costs_less_than_a_hundredth_of_a_core(library, monkeypatch):
    """For 8 GPUs at a period of 1 s: five seconds' samples at 0.1 s are fifty, which may take half a second."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    costs = []
    for seconds in (0.5, 5.5):
        telemetry = Telemetry(0.1, "nvidia")
        begun = time.process_time()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            telemetry.tick()
            time.sleep(0.2)
        telemetry.end()
        own = time.process_time() - begun
        samples = metrics({"metrics": telemetry.summary.metrics()})["telemetry_samples_count"]
        costs.append((samples, telemetry.summary.environment()["telemetry"]["cpu_seconds"] + own))
    (few, start), (many, whole) = costs
    each = (whole - start) / (many - few)
    print(f"{each * 1000:.2f} ms of processor time for a sample of 8 GPUs, start and end {start:.3f} s")
    assert many - few > 20 and each < 0.01, "of a processor, however many others wait for it"


def test_what_the_kernel_says_between_two_stages_is_reported_by_the_second(tmp_path):
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, before the first stage\n")
    carried, counts = Handover(), []
    for _ in range(3):
        telemetry = Telemetry(0.1, "cpu", kmsg=log, carried=carried)
        telemetry.end()
        counts.append(metrics({"metrics": telemetry.summary.metrics()})["kernel_xid_count"])
        if len(counts) == 1:
            with log.open("ab") as stream:
                stream.write(b"3,2,2,-;NVRM: Xid (PCI:0000:10:00): 79, between the stages\n")
    carried.close()
    assert counts == [0, 1, 0]


def sampled(telemetry):
    until(lambda: telemetry.tick() or telemetry.summary._samples, what="a sample")


def test_a_gpu_that_is_lost_between_two_stages_is_reported_by_the_second(gpus, monkeypatch):
    environment, said = gpus
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    carried, counts = Handover(), []
    for _ in range(2):
        telemetry = Telemetry(0.1, "nvidia", kmsg=Path("/no/kmsg"), carried=carried)
        sampled(telemetry)
        telemetry.end()
        counts.append(metrics({"metrics": telemetry.summary.metrics()})["gpu_lost_count"])
        (said / "lost").write_text("4")
    assert counts == [0, 1]
    assert telemetry.summary.environment()["telemetry"]["changes"] == ["gpu:4 (0000:14:00.0) was lost before the stage"]
    alone = Telemetry(0.1, "nvidia", kmsg=Path("/no/kmsg"), carried=Handover())
    sampled(alone)
    alone.end()
    assert metrics({"metrics": alone.summary.metrics()})["gpu_lost_count"] == 1


def test_the_last_look_reads_a_long_log_to_its_end(tmp_path):
    log = tmp_path / "kmsg"
    log.touch()
    telemetry = Telemetry(3600, "cpu", kmsg=log, carried=Handover())
    until(lambda: telemetry.tick() or telemetry.summary._host_samples, what="the first look")
    record = b"3,1,1,-;NVRM: Xid (PCI:0000:10:00): 48, ".ljust(8000, b"x") + b"\n"
    with log.open("ab") as stream:
        stream.write(record * (2 * kernel_log.MAX_RECORDS))
    telemetry.end()
    found = metrics({"metrics": telemetry.summary.metrics()})
    assert found["kernel_xid_count"] == 2 * kernel_log.MAX_RECORDS and found["kernel_mce_count"] == 0


def test_a_flood_that_does_not_end_is_reported_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "MAX_RECORDS", 3)
    monkeypatch.setattr(child, "DRAIN_SECONDS", 0.0)
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,1,-;NVRM: Xid (PCI:0000:10:00): 48, x\n" * 10_000)
    summary = TelemetrySummary(0.0, 1.0)
    with log.open("rb", buffering=0) as stream:
        settings = {
            "period_seconds": 1,
            "root": "/",
            "vendor": "cpu",
            "hung_seconds": 1,
            "no_kmsg": "",
            "since": [0, 0],
        }
        monkeypatch.setattr(child, "report", lambda kind, **fields: summary.take({"kind": kind, **fields}))
        helper = child.Helper({**settings, "kmsg": stream.fileno()})
        helper._drain(helper._log)
        helper._report_end("", "/dev/kmsg")
    found = metrics({"metrics": summary.metrics()})
    assert 0 < found["kernel_xid_count"] < 10_000 and "kernel_mce_count" not in found
    assert "kernel_log_lost" in summary.environment()["telemetry"]


@pytest.mark.parametrize("end_seconds", [1.5, END_SECONDS])
def test_slow_tools_hide_no_lost_gpu_and_a_killed_helper_leaves_a_reason(tmp_path, end_seconds):
    """As on a node, from the archive: AMD's and the log's tools hang when the stage ends, and one card is gone."""
    archive = tmp_path / "runner.pyz"
    archive.write_bytes(payload.runner_pyz())
    for name in ("amd-smi", "rocm-smi", "journalctl", "dmesg"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\n[ -e {tmp_path}/slow ] && exec sleep 60\nexit 1\n")
        tool.chmod(0o755)
    for index in range(2):
        device = tmp_path / f"devices/0000:0{index}:00.0"
        device.mkdir(parents=True)
        for name, text in (("vendor", "0x1002"), ("mem_info_vram_used", "1"), ("unique_id", f"feed{index}")):
            (device / name).write_text(text)
        card = tmp_path / f"root/sys/class/drm/card{index}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    program = (
        "import json, shutil, sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from gpuval_runner.telemetry.monitor import Telemetry\n"
        "place = Path(sys.argv[2])\n"
        "telemetry = Telemetry(0.1, 'amd', root=str(place / 'root'), kmsg=Path('/no/kmsg'), "
        f"end_seconds={end_seconds})\n"
        "deadline = time.monotonic() + 20\n"
        "while telemetry.summary._samples < 2 and time.monotonic() < deadline: time.sleep(0.1); telemetry.tick()\n"
        "(place / 'slow').touch(); shutil.rmtree(place / 'devices/0000:01:00.0')\n"
        "begun = time.monotonic(); telemetry.end(); took = time.monotonic() - begun\n"
        "summary = telemetry.summary\n"
        "print(json.dumps([took, telemetry.summary.problem, summary.metrics(), summary.environment()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive), str(tmp_path)],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    took, problem, found, environment = json.loads(done.stdout)
    of_node = metrics({"metrics": found})
    assert (of_node["gpu_lost_count"], of_node["topology_changed_count"]) == (1, 1)
    assert environment["telemetry"]["absent"]["kernel_log"] == kernel_log.LATE
    assert "kernel_xid_count" not in of_node and problem == ""
    assert took < end_seconds + 20
    if end_seconds == END_SECONDS:  # nothing had to be killed
        assert "did not answer within" in environment["telemetry"]["absent"]["amd-smi"]
