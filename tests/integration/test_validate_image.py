"""The image docker/validate, built for CPUs, as its users run it: no network, no engine's socket, root or any user."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.integration import test_in_cluster
from tests.integration.test_in_cluster import kit, new_fleet, store  # noqa: F401 - fixtures
from tests.kit.container_fleet import needs_docker
from tests.kit.fleet import QUICK, ROOT, Done, Playing

BASE = "gpuval-debian:bookworm"
TAG = f"test-{os.getpid()}"
REFERENCE = f"gpuval-test/validate:{TAG}-cpu"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
BUILD_SECONDS, RUN_SECONDS = 1800, 1200
REPORTS = {"report.json", "report.html", "cluster_test_report.json"}
USER, OTHER_USER = 12345, 54321
pytestmark = pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)  # alone on two cores all of them take 5 minutes
#: As short as real work can be, and as much of it at any pace; heartbeat and polls are not the profile's.
SETTINGS = {**QUICK, "training_seconds": 0, "training_steps": 40}
SHORT = json.dumps({name: value for name, value in SETTINGS.items() if name != "gpuval_profile"})


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Built by the release's own program, which also tries it."""
    needs_docker()
    subprocess.run([ROOT / "roles/testbed/files/make-base", BASE], check=True, timeout=BUILD_SECONDS)
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", wheels]
    index = ["--retries", "0", "--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    subprocess.run([*pip, *index, "-r", ROOT / "docker/training/torch.txt"], check=True, timeout=300)
    command = [sys.executable, ROOT / "tools/publish_images.py", "cpu", "--image", "validate", "--base", BASE]
    command += ["--registry", "gpuval-test", "--tag", TAG, "--output", tmp_path_factory.mktemp("images")]
    command += ["--wheels", wheels, "--certificate", CERTIFICATES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    yield REFERENCE
    subprocess.run(["docker", "rmi", "-f", REFERENCE], capture_output=True, timeout=120, check=False)


class Container(Playing):
    """A container of the image that runs in the foreground, and is removed at the end."""

    def __init__(self, options, arguments):
        self.name = f"gpuval-test-{uuid.uuid4().hex[:12]}"
        command = ["docker", "run", "--rm", "--network", "none", "--name", self.name, "-e", "OMP_NUM_THREADS=1"]
        command += [*options, REFERENCE, *arguments]
        super().__init__(command, ROOT, dict(os.environ))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["docker", "rm", "-f", self.name], capture_output=True, timeout=60, check=False)
        self.kill()


def run(*arguments, options=()) -> Done:
    with Container(options, arguments) as container:
        return container.wait(RUN_SECONDS)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def mounted(folder, place="/out"):
    return ("-v", f"{folder}:{place}")


def check_reports(folder, verdict):
    """The three reports are whole, and agree on the verdict; returns report.json."""
    assert {path.name for path in folder.glob("*.*")} == REPORTS
    report = report_file.unpacked(report_file.read(folder / "report.json"))
    cluster_test = json.loads((folder / "cluster_test_report.json").read_text())
    schemas.validate("cluster_test", cluster_test, what="cluster_test_report.json")
    assert (report["verdict"], cluster_test["acceptance"]["status"]) == (verdict, verdict)
    assert f"<title>{verdict}" in (folder / "report.html").read_text()
    return report, cluster_test


def test_any_user_gets_a_verdict_with_a_root_that_is_read_only(image, out):
    """Without a name, a home, a network or a place to write but /tmp and the mounted folder."""
    os.chown(out, USER, USER)
    options = ("--user", f"{USER}:{USER}", "--read-only", "--tmpfs", "/tmp", *mounted(out))
    done = run("--", "-e", SHORT, options=options)
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PASS (no GPU was tested)" in done.output
    report, cluster_test = check_reports(out, "PASS")
    (node,) = report["nodes"]
    assert {stage["state"] for stage in node["stages"]} == {"success"}
    assert node["name"] == "localhost"
    assert cluster_test["world_size"] >= 1
    assert cluster_test["performance"]["localhost"]["training_tokens_per_second"] > 0
    assert (out / "report.json").stat().st_uid == USER


def test_validation_alone_is_partial_and_no_failure(image, out):
    short = ("-e", "GPUVAL_HEARTBEAT_SECONDS=2", "-e", "GPUVAL_SKU=cpu")
    options = (*short, "--hostname", "gpu-r01-n2", *mounted(out, "/reports"))
    done = run("--validation-only", "--output", "/reports/today", "--", "-e", SHORT, options=options)
    assert done.code == 0, done
    assert "no folder is mounted" not in done.output
    report, _cluster_test = check_reports(out / "today", "PARTIAL")
    (node,) = report["nodes"]
    assert (node["name"], node["sku"]) == ("gpu-r01-n2", "cpu")
    assert [stage["name"] for stage in node["stages"]] == ["facts", "diagnostics"]


def test_what_does_not_pass_is_no_success(image, out):
    options = ("-e", 'GPUVAL_STAGES=["facts"]', "-e", "GPUVAL_GPU_COUNT=8", *mounted(out))
    done = run(options=options)
    assert done.code == 1, done
    assert "FINAL ACCEPTANCE: FAIL" in done.output
    assert "Validate again what did not pass: `docker run ... IMAGE`" in done.output
    check_reports(out, "FAIL")
    assert "/tmp/gpuval-" not in (out / "report.html").read_text(), "what ends with the container"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profil", "quick"], "[--output FOLDER] [-- ANSIBLE-PLAYBOOK-OPTION ...] gpuval: error: unrecognized"),
        (["validte"], "validte: No such file or directory. Options begin with --: see --help"),
    ],
)
def test_a_mistyped_option_says_what_exists_and_starts_nothing(image, out, arguments, said):
    done = run(*arguments, options=mounted(out))
    assert (done.code, [*out.iterdir()]) == (2, []), done
    assert said in done.told


def test_a_folder_that_cannot_be_written_is_named_before_the_work(image, out):
    os.chown(out, USER, USER)
    out.chmod(0o755)
    done = run(options=("--user", f"{OTHER_USER}:{OTHER_USER}", *mounted(out)))
    assert done.code == 2, done
    assert f"/out cannot be written (Permission denied): let uid {OTHER_USER} write the mounted folder" in done.told


def test_without_a_mounted_folder_it_says_where_the_reports_are(image):
    options = ("--read-only", "--tmpfs", "/tmp", "-e", "GPUVAL_PROFIL=quick")
    done = run(options=options)
    assert done.code == 1, done
    assert "no folder is mounted: the reports in /tmp/gpuval-out-" in done.told
    assert 'to keep them add -v "$PWD/out:/out"' in done.told
    assert "gpuval_profil: no such setting; is it gpuval_profile?" in done.told


def test_a_mistyped_profile_names_those_that_exist(image, out):
    done = run("--profile", "quik", options=mounted(out))
    assert done.code == 1, done
    assert "gpuval_profile quik: must be one of quick, standard, burnin, soak; is it quick?" in done.told


def test_sigterm_ends_it_and_keeps_what_was_recorded(image, out):
    with Container(mounted(out), ["--", "-e", SHORT, "-e", "training_seconds=300"]) as container:
        container.expect("facts: success")
        subprocess.run(["docker", "stop", "--time", "60", container.name], check=True, timeout=120, capture_output=True)
        done = container.wait(RUN_SECONDS)
    assert done.code == 128 + signal.SIGTERM, done
    assert "SIGTERM ended the container" in done.told
    assert "no report in /out; what was recorded is in /out/runs" in done.told
    assert "go on working" not in done.told
    record = json.loads((out / "runs/latest/nodes/localhost/facts.json").read_text())
    assert record["state"] == "success"
    assert not [*out.glob("*.json")]


def test_it_is_a_controller_as_well(image, tmp_path):
    """The folder of a project in place of /out; the user's inventory, and the results beside it."""
    (tmp_path / "inventory").write_text(
        'node-1 ansible_connection=local ansible_python_interpreter="{{ ansible_playbook_python }}"\n'
        "[all:vars]\ngpuval_runtime=host\ngpuval_node_dir=/tmp/node\n"
    )
    command = ["ansible-playbook", "gpuval.fleet.validate", "-i", "inventory", "-e", '{"gpuval_stages": ["facts"]}']
    done = run(*command, options=mounted(tmp_path))
    assert done.code == 0, done
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert (tmp_path / "results/latest/report.json").exists()


def test_it_is_the_controller_of_a_cluster(image, kit, new_fleet):  # noqa: F811 - fixtures
    """As the pod of `make in-cluster` runs it: a user without a name, a root that is read-only, no capabilities."""
    kit.on_stage.image = image
    run_id = test_in_cluster.started(kit, new_fleet().play("gpuval.fleet.in_cluster"))
    assert test_in_cluster.ended(kit, run_id) == "Complete", kit.on_stage.pods
    assert f"run {run_id}: 2 node(s)" in kit.on_stage.pods[run_id][0]
