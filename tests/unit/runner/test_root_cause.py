"""The root cause of a stage: the logs in data/root_causes have the formats of public reports, shortened."""

import itertools
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from gpuval_node import root_cause
from gpuval_runner.telemetry.events import HARMLESS_XIDS
from gpuval_workloads.common import tool_output

from tests.kit.runner import stage

LOGS = Path(__file__).with_name("data") / "root_causes"
EXPECTED = yaml.safe_load((LOGS / "expected.yml").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_first_failure_of_a_log_is_found_with_its_rank_and_class(name):
    expected = EXPECTED[name]
    cause = root_cause.in_log(LOGS / f"{name}.log")
    assert expected["text"] in cause.text
    assert (cause.name, cause.rank) == (expected["class"], expected["rank"])
    assert cause.package == expected.get("package", cause.package)


def test_every_log_has_an_expected_cause():
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[1,1]<stderr>:", "1: ", "(Worker_TP1 pid=77) "])
@pytest.mark.parametrize(
    "noise",
    [
        "Received signal 15; terminating.",
        "=" * 60,
        "-" * 60,
        "step 4 loss: 2.31",
        "[gpuval] kernel: nothing",
        "WARNING:launcher:Sending process 9 closing signal SIGTERM",
        "RuntimeError: Broken pipe",
        "/opt/x.py:3: UserWarning: error while reading the cache",
        "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.",
        "[rank9]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 9.",
    ],
)
def test_what_others_print_before_and_after_hides_no_cause(prefix, noise):
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "KeyError: 'labels'"]
    own = "\n".join(f"{prefix}{line}" for line in lines)
    cause = root_cause.in_text(f"{noise}\n{own}\n{noise}\n")
    assert (cause.text, cause.name) == ("KeyError: 'labels'", "own_program")
    assert cause.rank == (1 if prefix else None)


def test_interleaved_tracebacks_are_told_apart_by_their_ranks():
    lines = []
    for line in ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>'):
        lines += [f"[rank{rank}]: {line}" for rank in range(4)]
    lines += ["[rank2]: ValueError: rank 2 fails", "[rank0]: EOFError", "[rank1]: OSError: Broken pipe"]
    cause = root_cause.in_text("\n".join(lines))
    assert (cause.text, cause.rank) == ("ValueError: rank 2 fails", 2)


@pytest.mark.parametrize("host", ["node-2", "gpu-7.example.org", "gpu:3"])
def test_what_a_launcher_puts_before_the_lines_of_a_host_is_no_part_of_them(host):
    lines = ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "queue.Empty", "done")
    text = "\n".join(f"{host}: {line}\nother: step 1" for line in lines)
    assert root_cause.in_text(text).text == "queue.Empty"


def test_a_rank_of_one_node_of_several_is_not_guessed():
    text = "[default1]:Traceback (most recent call last):\n[default1]:KeyError: 'x'\n"
    assert root_cause.in_text(text).rank == 1
    assert root_cause.in_text(text, local_is_global=False).rank is None


@pytest.mark.parametrize("label", ["1: ", "[1,1]<stderr>:"])
def test_a_task_that_starts_ranks_itself_is_none_of_them(label):
    own = f"{label}Traceback (most recent call last):\n{label}KeyError: 'x'\n"
    assert root_cause.in_text(own).rank == 1
    assert root_cause.in_text(f"{own}{label}torch.distributed.elastic.errors.ChildFailedError:").rank is None


def test_a_long_line_keeps_its_end():
    text = root_cause.in_text(f"RuntimeError: {'x' * 5000} out of range").text
    assert len(text) <= root_cause.MAX_TEXT
    assert text.endswith("out of range")


def test_what_only_sounds_like_a_failure_is_a_probable_cause():
    cause = root_cause.in_text("retries failed: 0\nstep 1 error: 0.25\n0 failed\nthe licence could not be read\nbye\n")
    assert cause.sentence() == "probable cause: the licence could not be read"
    assert not cause.is_primary
    steps = "".join(f"step {n} loss: 2.0\n" for n in range(3))
    assert root_cause.in_text(f"the cache could not be read\n{steps}bye\n") is None


def test_figures_of_errors_are_progress():
    handled = "ModuleNotFoundError: No module named 'flash_attn'\n"
    steps = "".join(f"step {n} loss: 2.{n} error: 0.{n}\n" for n in range(40))
    assert root_cause.in_text(f"{handled}{steps}ZeroDivisionError: division by zero\n").name == "own_program"


def test_without_a_failure_there_is_no_cause():
    assert root_cause.in_text("step 1 loss: 2.31\n0 errors\n====\nMeanAbsoluteError: 0.25\n") is None
    assert root_cause.in_text("") is None
    assert root_cause.in_log(Path("/no/such/log")) is None


def test_only_the_present_attempt_counts(tmp_path):
    log = tmp_path / "log"
    log.write_text("[gpuval] t a attempt 1 starts\nKeyError: 'old'\n[gpuval] t a attempt 2 starts\nValueError: new\n")
    assert root_cause.in_log(log, " a attempt 2 starts\n").text == "ValueError: new"


def test_of_a_large_log_the_beginning_and_the_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(root_cause, "HEAD_BYTES", 1000)
    monkeypatch.setattr(root_cause, "TAIL_BYTES", 1000)
    log = tmp_path / "log"
    log.write_text("step 1\n" * 10_000 + "KeyError: 'end'\n")
    assert root_cause.in_log(log).text == "KeyError: 'end'"
    log.write_text("KeyError: 'begin'\n" + "\0" * 10_000 + "\n")
    assert root_cause.in_log(log).text == "KeyError: 'begin'"


def test_lines_that_are_compared_are_bounded(monkeypatch):
    monkeypatch.setattr(root_cause, "MAX_COMPARED", 10)
    noise = "\n".join(f"failure of {chr(97 + n)}" for n in range(20))
    assert root_cause.in_text(f"{noise}\nCUDA error: x\n").text == "failure of a"
    assert root_cause.in_text(f"{noise}\nKeyError: 'x'\n").text == "KeyError: 'x'"


def sample_of(line, choice):
    """A line of a log that a line of the data describes, with the same choice at all its places."""
    sample = re.sub(r"\{(package|command|file)\}", "libx", line.strip("^$"))
    sample = re.sub(r"\{(rank|local|code|number)\}", "7", sample)
    return re.sub(r"\{([^}]*)\}", lambda place: (place[1].split("|") * 8)[choice], sample).replace("*", "x")


def test_the_data_is_what_its_schema_says_and_every_line_of_it_can_be_found():
    document = root_cause.data()
    schemas.validate("causes", document, what="root_causes.json")
    patterns = root_cause.patterns()
    for group in document["lines"]:
        for line, choice in itertools.product(group["lines"], range(8)):
            sample = sample_of(line, choice)
            assert patterns.look_up(sample)[0], (line, sample)
            is_failure = group["weight"] not in ("none", "detail")
            assert not is_failure or any(word in sample.lower() for word in patterns.words), sample


def test_the_harmless_xids_are_those_of_the_telemetry():
    for number in range(1, 170):
        cause = root_cause.in_text(f"NVRM: Xid (PCI:0000:9d:00): {number}, pid=1, x")
        assert (cause.name == "hardware") == (number not in HARMLESS_XIDS)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:9d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)",
    ],
)
def test_an_xid_whose_text_says_that_it_is_grave_is_a_hardware_fault(line):
    assert root_cause.in_text(line).name == "hardware"


@pytest.mark.parametrize(
    "line",
    [
        "[ 99.123456] amdgpu 0000:9d:00.0: amdgpu: 3 correctable hardware errors detected in umc block",
        "[ 99.123456] amdgpu 0000:9d:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "[ 99.123456] mce: [Hardware Error]: Machine check events logged",
        "[ 99.123456] pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "NVRM: Xid (PCI:0000:9d:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 09 (0x025525c6 0x00000000)",
        "INFO:check:looking for uncorrectable ECC errors",
        "  Uncorrectable ECC errors : 0",
        "| 00000000:9D:00.0 Off | Volatile Uncorr. ECC |",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "torch.distributed.DistBackendError: NCCL error, unhandled system error, NCCL version 2.21.5",
        "HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang",
        "Segmentation fault (core dumped)",
    ],
)
def test_what_hardware_does_not_report_is_no_hardware_fault(line):
    cause = root_cause.in_text(line)
    assert cause is None or cause.name == root_cause.UNPROVEN


@pytest.mark.parametrize(
    "document",
    [None, [], "x", {}, {"class": "A b", "text": "x"}, {"class": "hardware"}, {"class": "hardware", "text": 3}],
)
def test_what_is_no_cause_is_refused(document):
    assert root_cause.read_cause(document) is None


def test_a_cause_of_a_record_is_bounded_and_printable():
    cause = root_cause.read_cause({"class": "hardware", "text": "a\x1b\n" + "b" * 999, "rank": -1, "package": 3})
    assert (cause.name, cause.text[:4], len(cause.text), cause.rank, cause.package) == (
        "hardware",
        "a  b",
        300,
        None,
        "",
    )
    own = root_cause.RootCause("environment", "x", 3, "fio")
    assert root_cause.read_cause(json.loads(json.dumps(own.document()))) == own


def test_an_earlier_attempt_at_the_head_of_a_long_log_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(root_cause, "HEAD_BYTES", 100)
    monkeypatch.setattr(root_cause, "TAIL_BYTES", 100)
    earlier = "NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus.\n"
    log = tmp_path / "training.log"
    log.write_text(f"{earlier}{'.' * 100}\nattempt 2 starts\n{'.' * 100}\nKeyError: 'labels'\n")
    assert root_cause.in_log(log).name == "hardware"
    assert root_cause.in_log(log, "attempt 2 starts\n").name == "own_program"


def test_the_runner_as_it_travels_finds_causes(tmp_path):
    (tmp_path / "runner.pyz").write_bytes(payload.runner_pyz())
    assert "gpuval_node/root_causes.json" in zipfile.ZipFile(tmp_path / "runner.pyz").namelist()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from gpuval_node import root_cause;"
        "print(root_cause.in_text('bash: line 3: fio: command not found').package)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "runner.pyz"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "fio"


# --- stages ----------------------------------------------------------------------------------------------------------

LOST = "echo 'Received signal 15; terminating.'; echo ===================="
RESULT = "echo '{}' > $GPUVAL_RESULT_FILE"


def test_records_of_failed_stages_name_their_cause(node):
    node.put_plan(
        stage("types", f"echo '[rank1]: TypeError: no number'; {LOST}; exit 1"),
        stage("lacks", "fio_of_no_node; exit 127"),
        stage("missing", command=["/no/such/tool"]),
        stage("plain", "echo out of ideas; echo ======; exit 4"),
        stage(
            "freed",
            RESULT.format('{"state":"running","message":"the gang has ended: n2: exit code 3"}')
            + "; echo saved step 9; echo the gang ends: n2: exit code 3; exit 2",
        ),
        stage("good", "echo \"KeyError: 'caught'\"; " + RESULT.format('{"state":"success"}')),
        stage("denies", "echo error; " + RESULT.format('{"state":"failure","message":"loss is NaN"}')),
    )
    node.call("run")
    names = ("types", "lacks", "missing", "plain", "good", "denies")
    causes = {name: node.record(name)["environment"].get("cause") for name in names}
    assert causes["types"] == {"class": "own_program", "text": "TypeError: no number", "rank": 1}
    assert (causes["lacks"]["class"], causes["lacks"]["package"]) == ("environment", "fio_of_no_node")
    assert causes["missing"]["class"] == "environment"
    assert causes["plain"] is causes["good"] is causes["denies"] is None
    assert node.record("types")["message"] == "exit code 1 without a result; cause: rank 1: TypeError: no number"
    assert node.record("plain")["message"].endswith("last output: out of ideas")
    freed = "exit code 2 without a result; the gang has ended: n2: exit code 3; last output: saved step 9"
    assert node.record("freed")["message"] == freed, "its own line about the gang is said already"
    assert node.record("denies")["message"] == "loss is NaN"


def test_an_exit_code_of_a_signal_has_its_name():
    line = "E1128 09:47:29.373000 16551 torch/distributed/elastic/multiprocessing/api.py:1002] "
    cause = root_cause.in_text(line + "failed (exitcode: -9) local_rank: 1 (pid: 16670) of binary: /usr/bin/python3")
    assert (cause.text, cause.rank) == ("exit code -9: Signal 9 (SIGKILL)", 1)


@pytest.mark.parametrize(
    "line",
    [
        "GPU 3 has fallen off the bus",
        "Uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:9d:00): 48, pid=1, DBE",
        "HW Exception by GPU node-2",
        "gpu05: Test NCCL failure common.cu:958",
        "CUDA error: invalid argument",
        "hipErrorNoDevice",
        "Memory access fault by GPU node-1",
        "Segmentation fault (core dumped)",
    ],
)
def test_what_fails_a_tool_is_a_cause_of_a_crash(line):
    """The readers of tools' output have patterns of their own, with denials; both sets know these texts."""
    assert tool_output.error_lines(line, complete=True)
    assert root_cause.in_text(line).is_primary


@pytest.mark.parametrize(
    "line", ["An MPI communication peer process has unexpectedly disconnected.  This", "Exception in thread Thread-3:"]
)
def test_who_loses_a_peer_is_not_the_cause(line):
    log = f"{line}\n[1,7]<stderr>:*** Aborted at 1589333333 (unix time)\n"
    assert root_cause.in_text(log).rank is None
    assert root_cause.in_text(log + "[1,3]<stderr>:CUDA error: invalid argument\n").rank == 3


def test_the_reason_of_a_container_that_does_not_start_is_its_own_log():
    cause = root_cause.in_text(
        "slurmstepd-gpu02: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd: error: pyxis: printing enroot log file:\n"
        "slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli, see the manual\n"
        "slurmstepd: error: pyxis: couldn't start container\n"
    )
    assert (cause.name, cause.package) == ("environment", "nvidia-container-cli")


def test_a_warning_of_nccl_says_more_than_its_unhandled_error():
    warning = "gpu01:57:83 [0] ibvwrap.c:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\n"
    failure = (
        "gpu01: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n"
    )
    assert "ibv_modify_qp" in root_cause.in_text(warning + failure).text
    assert "unhandled system error" in root_cause.in_text(failure).text
