"""Two pods of a round of gangs, run for real on one network: they find each other by name and work as one."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import gangs, manifests
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

from tests.kit.builders import make_run
from tests.kit.fleet import NODE_PYTHON, valid
from tests.kit.podman_pod import libraries_of
from tests.kit.round_objects import Together, round_objects

RUN = "pods.all"
NODES = ["node-1", "node-2"]
POD_SECONDS = 300
MOST_BYTES = 1 << 20


@pytest.fixture
def network(podman, request):
    name = f"gpuval-{abs(hash(request.node.name)) % 10**8}"
    done = podman.ask("network", "create", name)
    if done.returncode:
        pytest.skip(f"podman makes no network: {done.stderr.strip()[-300:]}")
    yield name
    podman.ask("network", "rm", "--force", name)


@pytest.fixture
def together(tmp_path):
    """The keys of a round, as the controller makes them."""
    folder = run_folder.RunFolder(tmp_path / "round")
    folder.path.mkdir()
    place = {"run_id": RUN, "folder": "pods/gangs/all", "created_at": run_folder.now()}
    folder.write_run(make_run(NODES, stages=["collective"], sku="cpu", gpu_count=0, **place))
    keys.make(folder)
    return Together(gangs.GangRound("pods", "all"), keys.files_for(folder, NODES[0]))


def plan(node, arguments):
    members = [{"node": one, "address": gangs.address(RUN, one, "gpuval"), "slots": 1} for one in NODES]
    settings = plans.PlanSettings(
        run_id=RUN,
        node=node,
        created_at=run_folder.now(),
        deadline_seconds=600,
        heartbeat_seconds=2,
        runtime="host",
        sku="cpu",
        gpu_count=0,
        python=str(NODE_PYTHON),
        models_dir=None,
        container={"python": str(NODE_PYTHON), "volumes": libraries_of(NODE_PYTHON)},
        telemetry_seconds=0,
        gang={"name": "all", "members": members, "index": NODES.index(node), "port": 29500, "ssh_port": 3022},
    )
    command = ["{python}", "-m", "gpuval_workloads.gang", *arguments]
    return plans.build(settings, ["collective"], {"collective": {"command": command, "timeout_seconds": POD_SECONDS}})


def test_pods_find_each_other_by_name_and_measure_collectives(podman, network, together):
    settings = parse({"image": podman.image, "environment": {"OMP_NUM_THREADS": "1"}})
    arguments = ["collectives", "--seconds", "2", "--only", "all_reduce", "--most-bytes", str(MOST_BYTES)]
    placements = [
        manifests.PodAttempt(
            manifests.PodTarget(node), settings, manifests.pod_plan(plan(node, arguments), settings), "cpu"
        )
        for node in NODES
    ]
    code = launch_inputs.archives(bytecode=False)
    objects = round_objects(RUN, code, placements, together)
    jobs = [item for item in objects if item["kind"] == "Job"]
    with ThreadPoolExecutor(len(jobs)) as pool:
        ended = list(pool.map(lambda job: podman.play(job, objects, POD_SECONDS, network), jobs))
    records = {}
    for job, (exit_code, said) in zip(jobs, ended, strict=True):
        (path,) = (podman.folder / job["metadata"]["name"]).glob("state/records/collective.json")
        record = json.loads(path.read_text())
        assert exit_code == 0, f"{said}\n{json.dumps(record, indent=1)}"
        valid("record", record)
        assert record["state"] == "success", record["message"]
        assert together.keys["token"] not in said + path.read_text()
        records[record["node"]] = record
    assert set(records) == set(NODES)
    assert {record["environment"]["gang"]["name"] for record in records.values()} == {"all"}
    figures = {item["name"]: item["value"] for item in records["node-1"]["metrics"]}
    assert figures["gang_all_reduce_bus_bytes_per_second"] > 0, figures
    assert figures["gang_collective_error_count"] == 0
