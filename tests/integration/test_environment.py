"""`make environment`: from bare nodes to a verdict, and what it says where it cannot install."""

import json
import os
import re
import subprocess

import pytest

from tests.kit.container_fleet import NODE_DIR, ContainerFleet, Node
from tests.kit.fleet import ANSIBLE_PLAYBOOK, ROOT, Fleet
from tests.kit.ports import free_port
from tests.kit.tiny_wheels import wheels_of_nodes

ENVIRONMENT = "gpuval.fleet.environment"
HANG_SECONDS = 1200
NAMES = ["bare-1", "bare-2", "bare-3"]
BUT_SECOND = ["bare-1", "bare-3"]
#: The stages that prove an environment with least work; steps, and limits that only what hangs exceeds.
PACELESS = {
    "gpuval_stages": ["facts", "diagnostics", "training"],
    "training_arguments": ["--processes", "1"],
    "training_seconds": 0,
    "training_steps": 24,
    "training_batch_size": 4,
    "gpuval_environment": {"OMP_WAIT_POLICY": "passive"},  # threads of three nodes on one machine do not spin
    "training_timeout_seconds": HANG_SECONDS,
    "training_inactivity_seconds": HANG_SECONDS,
    "diagnostics_timeout_seconds": HANG_SECONDS,
}


class BareFleet(ContainerFleet):
    """Machines with sshd and python3 alone, used by the make targets as a new user does."""

    def make(self, *words, seconds=HANG_SECONDS, **variables):
        """Run a make target; what this machine has already is not made again."""
        self.home.mkdir(parents=True, exist_ok=True)
        settings = self.root / "settings.json"
        settings.write_text(json.dumps(self.variables))
        arguments = " ".join(["-e", f"@{settings}", *(f"-e {name}={value}" for name, value in variables.items())])
        command = ["make", "-o", ".venv/.ready", *words, *([] if words[0] == "inventory" else [f"ARGS={arguments}"])]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, cwd=ROOT, env=self.environment, timeout=seconds, check=False, **options)
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.mark.timeout(4 * HANG_SECONDS)
def test_three_bare_nodes_from_inventory_to_verdict_in_four_commands(tmp_path):
    wheels = wheels_of_nodes()
    settings = {"gpuval_workload_python": "auto", **PACELESS}
    with BareFleet(tmp_path, [Node(name) for name in NAMES], settings) as fleet:
        inventory = f"INVENTORY={tmp_path / 'mine'}"
        nodes = " ".join(f"{name}={fleet.bed.address(name)}" for name in NAMES)
        fleet.make(
            "inventory", f"NODES={nodes}", "SSH_USER=root", f"KEY={fleet.bed.key}", f"OUTPUT={tmp_path / 'mine'}"
        )

        execute(fleet, NAMES[1], "echo 'deb [trusted=yes] http://127.0.0.1:9 none main' >/etc/apt/sources.list")
        output = fleet.make("environment", inventory, f"WHEELS={wheels}")
        lines = re.findall(
            r"^(bare-\d): installed: Python 3\.11\.\d+, torch \S+, deepspeed \S+, transformers \S+", output, re.M
        )
        assert sorted(lines) == NAMES, output
        assert re.findall(r"^(bare-\d): .*, fio, perftest$", output, re.M) in (BUT_SECOND, BUT_SECOND[::-1]), output
        command = "apt-get -q update; apt-get -q -y --no-install-recommends install fio perftest"
        (cause,) = re.findall(
            rf"bare-2: not installed: fio, perftest: (.*): run on the node, as root: {command}",
            " ".join(output.split()),
        )
        assert "Unable to locate package fio" in cause
        for name in BUT_SECOND:
            assert re.search(r"fio-3.*Version: \d", execute(fleet, name, "fio --version; ib_write_bw --version"), re.S)

        output = fleet.make("validate", inventory)
        assert "Nodes: 3 expected, 3 PASS, 0 FAIL, 0 INCOMPLETE" in output, output
        command = fleet.record("bare-2", "training")["command"]
        assert command[0] == f"{NODE_DIR}/environment/bin/python"

        fleet.make("clean", inventory, cleanup_environment="true")
        assert {name: fleet.left_on(name) for name in NAMES} == {name: [] for name in NAMES}


@pytest.mark.timeout(2 * HANG_SECONDS)
def test_system_packages_without_root_with_become_and_for_a_stage_that_needs_them(tmp_path):
    machines = [Node("plain", user="ops"), Node("becomes", user="ops", sudo="free")]
    settings = {"gpuval_workload_python": "/usr/bin/python3", "gpuval_stages": ["facts"]}
    with ContainerFleet(tmp_path, machines, settings) as fleet:
        done = fleet.play(ENVIRONMENT)
        assert done.code == 0, done
        assert "plain: not installed: fio, perftest: it needs root: run on the node, as root: " in done.told, done
        assert re.search(r"becomes: installed: [^:]* is left alone, fio, perftest ", done.told), done

        done = fleet.play(ENVIRONMENT, "--check")
        assert done.code == 0, done
        assert re.search(r"becomes: /usr/bin/python3 [^:]* is left alone, fio, perftest ", done.told), done
        assert "is left alone, fio would be installed, perftest would be installed" in done.told, done

        fleet.settings["gpuval_stages"] = ["facts", "storage"]
        done = fleet.play(ENVIRONMENT)
        assert done.code != 0
        lacks = "plain: Environment: no_package: stages need what this node lacks: storage needs fio"
        assert lacks in done.told, done
        assert "failed on 1 of 2 node(s): plain" in done.told


# Quicker: nodes that are this machine, and wheels of a few lines


def test_a_node_without_internet_and_without_wheels(tmp_path):
    index = f"http://127.0.0.1:{free_port()}/simple"
    done = local(tmp_path, environment_index=index).play(ENVIRONMENT)
    assert done.code != 0
    assert f"node-1: Environment: no_package_index: no package index answers at {index}/uv/" in done.told
    assert "let the node reach environment_index" in done.told


def test_a_node_that_is_away_is_named_and_stops_no_other(tmp_path):
    fleet = local(tmp_path)
    fleet.nodes["node-2"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": free_port()}
    done = fleet.play(ENVIRONMENT, "--check")
    assert done.code != 0
    assert "node-1: torch==" in done.told
    assert "node-2: Environment: refused: " in done.told
    assert "failed on 1 of 2 node(s): node-2" in done.told


def test_doctor_and_the_launch_name_what_is_missing(tmp_path):
    python = tmp_path / "bin/python3"  # finds no PyTorch
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')
    python.chmod(0o755)
    fleet = local(tmp_path)
    fleet.more_environment["PATH"] = f"{python.parent}:{ANSIBLE_PLAYBOOK.parent}:{os.environ['PATH']}"
    for done in (fleet.play("gpuval.fleet.doctor", "--tags", "nodes"), fleet.play("gpuval.fleet.validate")):
        assert done.code != 0
        assert "torch (not installed: " in done.told
        assert "`make environment" in done.told


def execute(fleet, node, command):
    return fleet.bed.execute(node, "sh", "-c", f"{{ {command}; }} 2>&1 || true")


def local(root, **settings):
    fixed = {"environment_system_packages": [], "gpuval_workload_python": "auto", "gpuval_sku": "cpu", **settings}
    return Fleet(root, settings=fixed)
