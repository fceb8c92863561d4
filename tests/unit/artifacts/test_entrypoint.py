"""docker/validate/entrypoint.py: what the image is told, what it refuses, and with which status it ends."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docker/validate/entrypoint.py"
MIB = 1 << 20
GPU = "0000:{:02x}:00.0"


@pytest.fixture(scope="module")
def entrypoint():
    spec = importlib.util.spec_from_file_location("entrypoint", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profil", "quick"], "unrecognized arguments: --profil quick"),
        (["--validationonly"], "unrecognized arguments: --validationonly"),
        (["--validation"], "unrecognized arguments: --validation"),
        (["--profile"], "--profile: expected one argument"),
        (["--validation-only", "now"], "unrecognized arguments: now"),
    ],
)
def test_a_mistyped_option_says_what_exists(entrypoint, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        entrypoint.main(words)
    error = capsys.readouterr().err
    assert ended.value.code == entrypoint.NOT_STARTED
    assert said in error
    assert "[--profile NAME] [--validation-only] [--output FOLDER] [-- ANSIBLE-PLAYBOOK-OPTION ...]" in error


def test_the_help_names_the_profiles_that_ship(entrypoint, capsys):
    with pytest.raises(SystemExit):
        entrypoint.main(["--help"])
    shown = capsys.readouterr().out
    assert all(path.stem in shown for path in (COLLECTION / "profiles").glob("*.yml"))


def test_what_follows_two_dashes_is_of_ansible_playbook(entrypoint):
    options = entrypoint.parse_options(["--profile", "standard", "--", "-e", "x=1", "--", "--check"])
    assert (options.profile, options.validation_only) == ("standard", False)
    assert options.ansible_arguments == ["-e", "x=1", "--", "--check"]


def test_settings_come_from_the_environment(entrypoint):
    environment = {"GPUVAL_GPU_COUNT": "8", "GPUVAL_STAGES": '["facts"]', "GPUVAL_HF_TOKEN": "0123", "HOME": "/"}
    settings = {"gpuval_gpu_count": "8", "gpuval_stages": ["facts"], "gpuval_hf_token": "0123"}
    assert entrypoint.settings_of(environment) == settings
    with pytest.raises(entrypoint.StartError, match="GPUVAL_STAGES begins like JSON, but is not"):
        entrypoint.settings_of({"GPUVAL_STAGES": "[facts]"})


@pytest.fixture
def machine(tmp_path):
    """A machine's tree with NVIDIA GPUs, of which this container has some device files."""

    def make(gpus, given, driver="nvidia"):
        for index in range(gpus):
            device = tmp_path / "sys/bus/pci/devices" / GPU.format(index)
            device.mkdir(parents=True)
            for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2335")):
                (device / name).write_text(value)
            if driver:
                (tmp_path / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
                (device / "driver").symlink_to(f"../../drivers/{driver}")
                information = tmp_path / "proc/driver/nvidia/gpus" / GPU.format(index) / "information"
                information.parent.mkdir(parents=True)
                information.write_text(f"Model: H200\nDevice Minor: \t {index}\n")
        (tmp_path / "dev").mkdir()
        for index in range(given):
            (tmp_path / f"dev/nvidia{index}").touch()
        return Tree(str(tmp_path))

    return make


def test_gpus_that_are_not_in_the_container_are_never_left_out_in_silence(entrypoint, machine):
    said = r"8 GPU\(s\) of this machine \(nvidia\) are not in this container: add --gpus all .* -e GPUVAL_SKU=cpu"
    with pytest.raises(entrypoint.StartError, match=said):
        entrypoint.check_gpus(machine(8, 0), 16 << 30, False)


def test_some_of_the_gpus_are_tested_and_the_others_named(entrypoint, machine, capsys):
    entrypoint.check_gpus(machine(8, 2), 16 << 30, True)
    assert "2 of 8 GPUs are in this container: the others are not tested" in capsys.readouterr().out


def test_some_of_the_gpus_do_not_stand_for_all_unless_their_number_is_declared(entrypoint, machine):
    said = r"2 of 8 GPUs are in this container: add --gpus all .*; to test these alone, add -e GPUVAL_GPU_COUNT=2"
    with pytest.raises(entrypoint.StartError, match=said):
        entrypoint.check_gpus(machine(8, 2), 16 << 30, False)


def test_gpus_without_a_driver_are_the_verdicts_to_judge(entrypoint, machine):
    entrypoint.check_gpus(machine(8, 0, driver=""), 64 * MIB, False)


@pytest.mark.parametrize(
    ("gpus", "shared", "is_refused"), [(8, 64 * MIB, True), (8, 1024 * MIB, False), (1, 64 * MIB, False)]
)
def test_gpus_that_work_together_need_shared_memory(entrypoint, machine, gpus, shared, is_refused):
    tree = machine(gpus, gpus)
    if is_refused:
        with pytest.raises(entrypoint.StartError, match=r"/dev/shm has 64 MiB, too little for 8 GPUs .* --ipc=host"):
            entrypoint.check_gpus(tree, shared, False)
    else:
        entrypoint.check_gpus(tree, shared, False)


@pytest.mark.parametrize(
    ("hostname", "name"),
    [("gpu-r01-n2", "gpu-r01-n2"), ("3f2a9b1c4d5e", "localhost"), ("feed", "feed")],
)
def test_a_machine_is_named_by_its_host_name_but_not_by_its_containers(entrypoint, hostname, name):
    assert entrypoint.machine_name(hostname) == name


@pytest.fixture
def validate(entrypoint, monkeypatch, tmp_path):
    """Validates with a playbook that only leaves a report; returns the exit status."""

    def run(*words, verdict="", asked=None, status=0):
        def play(_command, _ending):
            if verdict:
                folder = tmp_path / "out/runs/machine/run-1"
                folder.mkdir(parents=True, exist_ok=True)
                for name in entrypoint.REPORTS:
                    asked_run = {"profile": "quick", "narrowed_by": [], **(asked or {})}
                    (folder / name).write_text(json.dumps({"verdict": verdict, "run": asked_run}))
                latest = tmp_path / "out/runs/latest"
                latest.unlink(missing_ok=True)
                latest.symlink_to(folder)
            return status

        monkeypatch.setattr(entrypoint, "run_command", play)
        monkeypatch.setattr(entrypoint, "check_gpus", lambda *_: None)
        return entrypoint.main(["--output", str(tmp_path / "out"), *words])

    return run


@pytest.mark.parametrize(
    ("verdict", "asked", "status", "code"),
    [
        ("PASS", {}, 0, 0),
        ("PARTIAL", {"narrowed_by": ["tags"]}, 0, 0),
        ("PARTIAL", {"profile": "custom"}, 0, 0),  # --validation-only
        ("PARTIAL", {"shortened": ["training_seconds 3 of 20"]}, 0, 0),
        ("PARTIAL", {}, 0, 1),
        ("FAIL", {}, 2, 1),
        ("INCOMPLETE", {}, 2, 1),
        ("PASS", {}, 2, 1),
        ("", {}, 2, 1),
        ("", {}, 0, 1),
        ("", {}, -signal.SIGTERM, 143),
    ],
)
def test_the_exit_status_is_the_verdict(validate, tmp_path, entrypoint, verdict, asked, status, code):
    assert validate(verdict=verdict, asked=asked, status=status) == code
    assert {path.name for path in (tmp_path / "out").glob("*.*")} == (set(entrypoint.REPORTS) if verdict else set())


def test_the_reports_of_an_earlier_run_do_not_answer_for_one_that_did_not_begin(validate, tmp_path):
    assert validate(verdict="PASS") == 0
    assert validate(status=2) == 1
    assert not (tmp_path / "out/report.json").exists()
    assert (tmp_path / "out/runs/latest/report.json").exists()


def test_nor_for_one_that_was_refused(validate, entrypoint, monkeypatch, tmp_path):
    assert validate(verdict="PASS") == 0
    monkeypatch.setenv("GPUVAL_STAGES", "[facts]")
    assert validate() == entrypoint.NOT_STARTED
    assert not [*(tmp_path / "out").glob("*.*")]
    assert (tmp_path / "out/runs/latest/report.json").exists()


def run_entrypoint(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    return subprocess.Popen([sys.executable, str(FILE), *words], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_command_gets_signals_and_its_status_is_passed_on():
    with run_entrypoint("sh", "-c", "exit 7") as process:
        assert process.wait(60) == 7
    with run_entrypoint("sh", "-c", "trap 'echo ended; exit 3' TERM; echo ready; sleep 600 & wait") as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_command_that_ignores_a_signal_is_killed():
    with run_entrypoint("sh", "-c", "trap '' TERM; echo ready; exec sleep 600") as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_run_is_killed_by_any_signal_and_prints_nothing_more():
    """Its own words on a signal, that nodes continue and the run can be resumed, are not true of a container."""
    run = "trap 'echo ended' TERM; echo ready; sleep 600 & wait; wait"
    code = "import signal, sys; sys.path.insert(0, sys.argv[1]); import entrypoint; "
    code += "print(entrypoint.run_command(['sh', '-c', sys.argv[2]], signal.SIGKILL))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    command = [sys.executable, "-c", code, str(FILE.parent), run]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == f"{-signal.SIGTERM:d}\n"
        assert process.wait(60) == 0


def test_the_folder_of_the_reports_is_no_home(tmp_path):
    """podman makes the working directory the home of a user without one; Ansible would leave files there."""
    here = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections"), **here}
    command = [sys.executable, str(FILE), "sh", "-c", "echo $HOME"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"{tmp_path}/gpuval-home-")


def test_a_mistyped_command_is_named(entrypoint, capsys):
    assert entrypoint.main(["validte"]) == 2
    assert "validte: No such file or directory. Options begin with --: see --help" in capsys.readouterr().err


def test_a_bundle_is_verified_by_the_playbook(entrypoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["my bundle", "--key", "a.pem", "--key", "/b.pem", "--known", "vendor.json"]
    *command, settings = entrypoint.verify_command(arguments)
    assert command == ["ansible-playbook", "gpuval.fleet.verify", "-i", "localhost,", "-e"]
    assert json.loads(settings) == {
        "verify_folder": f"{tmp_path}/my bundle",
        "verify_keys": [f"{tmp_path}/a.pem", "/b.pem"],
        "gpuval_signing_keys": [f"{tmp_path}/vendor.json"],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: folder"),
        (["a", "b"], "unrecognized arguments: b"),
        (["a", "--kye", "b"], "unrecognized arguments: --kye b"),
        (["a", "--key"], "--key: expected one argument"),
    ],
)
def test_a_mistyped_verification_says_what_exists(entrypoint, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        entrypoint.main(["verify", *words])
    error = capsys.readouterr().err
    assert ended.value.code == entrypoint.NOT_STARTED
    assert message in error and "gpuval verify [-h] [--key KEY] [--known KNOWN] folder" in error


def test_the_signing_key_is_no_setting(entrypoint):
    assert entrypoint.settings_of({"GPUVAL_SIGNING_KEY": "[secret"}) == {}


@pytest.mark.parametrize(
    ("status", "is_judged", "code", "played"),
    [
        (0, True, 0, ["validate", "clean"]),
        (2, True, 1, ["validate", "clean"]),
        (2, False, 3, ["validate"]),  # another pod may do better
        (0, False, 3, ["validate"]),
        (-signal.SIGTERM, False, 128 + signal.SIGTERM, ["validate"]),
    ],
)
def test_a_controller_ends_as_its_verdict_does(entrypoint, monkeypatch, tmp_path, status, is_judged, code, played):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUVAL_CONTROLLER_RUN", "r1")
    commands = []

    def run(command):
        commands.append(command)
        if is_judged:
            (tmp_path / "results/mine/r1").mkdir(parents=True, exist_ok=True)
            (tmp_path / "results/mine/r1/report.json").touch()
        return status

    monkeypatch.setattr(entrypoint, "run_command", run)
    assert entrypoint.main(["controller", "--clean", "--", "-i", "x"]) == code
    assert [command[1].rpartition(".")[2] for command in commands] == played
    chosen = {"gpuval_run_id": "r1", "run_resume_from_store": True}
    assert all(command[2:4] == ["-i", "x"] and json.loads(command[-1]) == chosen for command in commands)


def test_a_controller_without_a_run_starts_nothing(entrypoint, capsys, monkeypatch):
    monkeypatch.delenv("GPUVAL_CONTROLLER_RUN", raising=False)
    assert entrypoint.main(["controller"]) == entrypoint.NOT_STARTED
    assert "make in-cluster" in capsys.readouterr().err
