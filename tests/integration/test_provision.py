"""The playbooks against the API on a loopback port."""

import json
import stat
import subprocess

import pytest

from tests.kit.cluster import ClusterKit
from tests.kit.doks import TOKEN, Doks
from tests.kit.fleet import ANSIBLE_PLAYBOOK
from tests.kit.project import Project

POOLS = [{"name": "gpu", "size": "gpu-h200x8-1128gb", "count": 2,
          "taints": [{"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}]}]  # fmt: skip
SETTINGS = {"provision_name": "site", "provision_region": "tor1", "provision_node_pools": POOLS,
            "provision_poll_seconds": 0.2, "provision_timeout_seconds": 60}  # fmt: skip


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path / "project", nodes={"localhost": {}})
    project.root.mkdir()
    project.lay_out()
    return project


def test_a_cluster_is_planned_created_read_by_an_inventory_and_deleted(project):
    with ClusterKit(project.root.parent) as kit, Doks() as doks:
        doks.kubeconfig = kit.kubeconfig.read_text()
        for name in ("gpu-0", "gpu-1", "cpu-0"):
            kit.add_node(name)
        environment = {**project.environment, **doks.environment(project.root.parent)}
        environment["ANSIBLE_CONFIG"] = str(project.root / "ansible.cfg")
        folder = project.root / "inventories/site"

        def play(playbook, *options):
            command = [
                f"gpuval.fleet.{playbook}",
                "-i",
                "inventories/local",
                "-e",
                json.dumps(SETTINGS),
                "-vvv",
                *options,
            ]
            done = project._start(command, project.root, environment).wait()
            assert TOKEN not in done.output
            assert "kit-token" not in done.output
            return done

        planned = play("provision", "--check")
        assert planned.code == 0, planned
        assert "cost: 55.04 USD/hour, 1320.96 USD/day" in planned.output
        assert {method for method, _ in doks.requests} == {"GET"}
        assert not folder.exists()

        misspelled = play("provision", "-e", "provision_confirm=site", "-e", "provision_node_pool=3")
        assert misspelled.code != 0
        assert "started: -e: provision_node_pool: no such setting; is it provision_node_pools?" in misspelled.told
        assert {method for method, _ in doks.requests} == {"GET"}

        doks.faults["POST", "/v2/kubernetes/clusters"] = [(422, "will exceed your limit")]
        refused = play("provision", "-e", "provision_confirm=site")
        assert refused.code != 0
        assert "POST /v2/kubernetes/clusters is refused (422): will exceed your limit" in refused.told
        assert doks.clusters == []

        listed = play("provision", "-e", "provision_list=true", "-e", "provision_name=")
        assert listed.code == 0, listed
        assert "VPC a1-b2 default-tor1 in tor1, the default of its region" in listed.output
        assert "size gpu-h200x8-1128gb: 27.520 USD/hour, in tor1" in listed.output

        assert [method for method, _ in doks.requests if method != "GET"] == ["POST"]

        done = play("provision", "-e", "provision_confirm=site")
        assert done.code == 0, done
        (cluster,) = doks.clusters
        assert "gpuval:site" in cluster["tags"]
        assert cluster["node_pools"][0]["taints"] == POOLS[0]["taints"]
        assert stat.S_IMODE((folder / "kubeconfig").stat().st_mode) == 0o600
        read = subprocess.run(
            [str(ANSIBLE_PLAYBOOK.with_name("ansible-inventory")), "-i", str(folder), "--list"],
            cwd=project.root, env=project.environment, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert sorted(json.loads(read.stdout)["_meta"]["hostvars"]) == ["gpu-0", "gpu-1"]

        theirs = doks.add("theirs", ["gpuval:site-2"], POOLS)
        deleted = play("deprovision", "-e", "provision_confirm=site", "-e", "provision_node_pool=3")
        assert deleted.code == 0, deleted
        assert "provision_node_pool: no such setting" in deleted.told
        assert doks.clusters == [theirs]
        assert list(folder.iterdir()) == []
    assert doks.strangers == []
