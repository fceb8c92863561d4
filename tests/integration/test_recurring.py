"""Schedules that validate idle nodes, as `make recurring` writes them."""

import base64
import fcntl
import json
import re
import shutil
import subprocess

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.accepted_condition import ACCEPTED
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import (
    READINESS_TAINT,
    PodSettings,
    covers,
    tolerations,
)

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT
from tests.kit.kubernetes_schemas import kubernetes_validate

KEY = "5ecret-of-the-writer"
INVENTORY = {
    "all": {
        "hosts": {"n1": {"ansible_host": "127.0.0.1", "ansible_port": 9}},
        "vars": {
            "gpuval_placement": "kubernetes",
            "gpuval_namespace": "checks",
            "kubernetes_selector": "nvidia.com/gpu.present=true",
            "gpuval_pods": {"priority_class": "normal", "run_as_user": 1000},
            "gpuval_s3_endpoint": "https://s3.example",
            "gpuval_s3_access_key": "writer",
            "gpuval_s3_secret_key": KEY,
            "kubernetes_controller": {"image": f"registry.example/validate@sha256:{'a' * 64}"},
            "run_recurring_time": "23:05",
            "run_recurring_days": ["mon", "thu"],
            "run_recurring_settings": {"gpuval_retries": 0, "gpuval_webhook_key": "a'b\"c%d"},
        },
    }
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a blank and a per cent sign in its path, which each of the formats reads in its own way."""
    place = tmp_path_factory.mktemp("a b%c")
    (place / "inventory.yml").write_text(json.dumps(INVENTORY))
    command = [*PROGRAM, "-i", place / "inventory.yml", "gpuval.fleet.recurring"]
    extra = ["-e", json.dumps({"run_recurring_output": str(place / "out")})]
    subprocess.run([*command, *extra], cwd=ROOT, check=True, timeout=120)
    return place / "out"


def text(folder, kind):
    return (folder / f"gpuval-recurring.{kind}").read_text()


def test_the_settings_are_those_of_idle_nodes(folder):
    assert json.loads(text(folder, "json")) == {
        "gpuval_only_idle": True,
        "gpuval_profile": "quick",
        "gpuval_deadline_seconds": 3600,
        "gpuval_pods": {"priority_class": "gpuval-recurring", "run_as_user": 1000},
        **INVENTORY["all"]["vars"]["run_recurring_settings"],
    }
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_the_script_validates_cleans_and_ends_as_the_verdict_does(folder, tmp_path):
    stub = tmp_path / "ansible-playbook"
    stub.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ncase "$*" in *fleet.validate*) exit 2 ;; esac\n')
    stub.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(re.sub(r"nice -n 19 \S+", f"nice -n 19 {stub}", text(folder, "sh")))
    assert subprocess.run(["sh", script], check=False).returncode == 2
    validate, clean = (tmp_path / "calls").read_text().splitlines()
    assert clean == validate.replace("fleet.validate", "fleet.clean")
    pattern = (
        r"-i (?P<at>.*)/inventory\.yml gpuval\.fleet\.validate -e gpuval_run_id=recurring-\d{8}-\d{6} "
        r"-e @(?P=at)/out/gpuval-recurring\.json"
    )
    assert re.fullmatch(pattern, validate), validate
    with (folder / "lock").open("w") as lock:  # the last one is still at work
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert subprocess.run(["sh", script], check=False).returncode == 0
    without = {"PATH": str(tmp_path)}  # a controller that cannot lock is no reason to skip all runs
    assert subprocess.run(["/bin/sh", script], check=False, env=without).returncode == 1
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
    assert re.findall(r"^play \w+ (\d+)$", script.read_text(), re.M) == ["5400", "1600"]


@pytest.mark.parametrize("kind", ["crontab", "scrontab"])
def test_the_lines_of_cron(folder, kind):
    *options, line = text(folder, kind).splitlines()
    assert all(option.startswith("#SCRON --") for option in options)
    assert bool(options) is (kind == "scrontab")
    schedule, _, command = line.partition(" '")
    assert schedule == "5 23 * * mon,thu"
    shell = command.replace("\\%", "%").rstrip("'")
    assert "\\%" in command and shell == f"{folder}/gpuval-recurring.sh"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (systemd)")
def test_systemd_takes_the_units(folder, tmp_path):
    for kind in ("service", "timer"):
        shutil.copy(folder / f"gpuval-recurring.{kind}", tmp_path)
    units = sorted(tmp_path.glob("gpuval-recurring.*"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "gpuval" in done.stderr) == (0, False), done.stderr
    assert "OnCalendar=Mon,Thu *-*-* 23:05:00\n" in text(folder, "timer")


def test_the_readiness_rule_keeps_pods_off_all_but_accepted_nodes(folder):
    rule = yaml.safe_load(text(folder, "readiness.yml"))
    assert (rule["apiVersion"], rule["kind"]) == ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
    spec = rule["spec"]
    assert spec["conditions"] == [{"type": ACCEPTED, "requiredStatus": "True"}]
    assert (spec["taint"]["key"], spec["taint"]["effect"]) == (READINESS_TAINT, "NoSchedule")
    assert spec["enforcementMode"] == "continuous"
    (expression,) = spec["nodeSelector"]["matchExpressions"]
    assert expression == {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
    assert any(covers(toleration, spec["taint"]) for toleration in tolerations(PodSettings(), "nvidia.com/gpu"))


def test_the_manifest_is_valid_and_gives_way(folder):
    items = {item["kind"]: item for item in yaml.safe_load_all(text(folder, "yml"))}
    for item in items.values():
        kubernetes_validate.validate(item, "1.36", strict=True)
    assert items.keys() > {"ServiceAccount", "Role", "ClusterRole", "PriorityClass", "ConfigMap", "Secret", "CronJob"}
    priority, job = items["PriorityClass"], items["CronJob"]
    assert (priority["value"] < 0, priority["preemptionPolicy"]) == (True, "Never")
    public, secret = (read_files(items[kind]) for kind in ("ConfigMap", "Secret"))
    of_idle_nodes = json.loads(text(folder, "json"))
    key = of_idle_nodes.pop("gpuval_webhook_key")
    settings = json.loads(public["settings.json"])
    assert settings.items() >= of_idle_nodes.items()
    assert settings["gpuval_pods"]["priority_class"] == priority["metadata"]["name"]
    assert KEY not in str(public) and key not in str(public)
    assert json.loads(secret["secrets.json"])["gpuval_s3_secret_key"] == KEY
    assert (job["spec"]["schedule"], job["spec"]["concurrencyPolicy"]) == ("5 23 * * mon,thu", "Forbid")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:3] == ["controller", "--clean", "--"]
    namespaced = [item for item in items.values() if "namespace" in item["metadata"]]
    assert {item["metadata"]["namespace"] for item in namespaced} == {"checks"}


def read_files(item):
    """Contents by name of a file."""
    content = item["binaryData"] if item["kind"] == "ConfigMap" else item["data"]
    return {key.rpartition(".")[0]: base64.b64decode(value).decode() for key, value in content.items()}
