"""Pods of a round of gangs: how they are named, what they are given, what they ask for."""

import base64
import json
import re
import stat
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    config_maps,
    gangs,
    manifests,
    names,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettingsError, for_gang, parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.scheduler import KubernetesScheduler
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import scheduler as schedulers
from gpuval_runner import plan as node_plan

from tests.kit.builders import make_run
from tests.kit.kubernetes_schemas import kubernetes_validate
from tests.kit.round_objects import Together, of_gang, round_objects

PARENT = "20261120-201500-3f2a"
RUN = f"{PARENT}.all"
NODES = ["node-1", "node-2", "NODE-2", "n" * 253]
VERSIONS = ["1.30", "1.33", "1.36"]
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
IMAGE = "registry.example/training:1"
DECLARATIONS = {
    "collective": {"command": ["{python}", "-m", "gpuval_workloads.gang", "collectives"], "needs": ["facts", "image"]},
    "deepspeed": {"command": ["{python}", "-m", "gpuval_workloads.gang", "training"], "needs": ["facts", "image"]},
}
KEYS = {
    "gpuval.json": "{}",
    "token": "t0ken-5ecret",
    "id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY----- 5ecret",
    "id_ed25519.pub": "ssh-ed25519 AAAA gpuval",
}
TOGETHER = Together(gangs.GangRound(PARENT, "all"), KEYS)
RDMA = {"gang": {"resources": {"rdma/hca_shared_devices_a": 1}}}


def gang(index, nodes=NODES):
    members = [{"node": node, "address": gangs.address(RUN, node, "gpuval"), "slots": 8} for node in nodes]
    return {"name": "all", "members": members, "index": index, "port": 29500, "ssh_port": 3022}


def plan(node="node-1", stages=tuple(DECLARATIONS), nodes=NODES, container=None):
    settings = plans.PlanSettings(
        run_id=RUN,
        node=node,
        created_at="2026-11-20T20:00:00Z",
        deadline_seconds=3600,
        heartbeat_seconds=10,
        runtime="auto",
        sku="nvidia",
        gpu_count=8,
        python="python3",
        models_dir=None,
        container=container or {},
        gang=gang(nodes.index(node), nodes),
    )
    return plans.build(settings, list(stages), DECLARATIONS)


def test_a_pod_in_the_image_of_multi_node_stages_looks_for_their_packages(monkeypatch):
    own = {"diagnostics": {"command": ["{python}", "-m", "gpuval_workloads.diagnostics"]}}
    multi_node = {**DECLARATIONS, "deepspeed": {**DECLARATIONS["deepspeed"], "requires": [{"import": "deepspeed"}]}}
    values = {
        schedulers.WORKLOADS: own,
        schedulers.GANG_WORKLOADS: multi_node,
        "gpuval_pods": {"image": IMAGE},
    }
    values |= {"gpuval_heartbeat_seconds": 10, "gpuval_telemetry": False, "gpuval_telemetry_seconds": 1}
    values |= {"gpuval_workload_python": "python3", "gpuval_container": {}}
    asked = []

    def chosen(_action, _name, _task_vars, variables, *_others):
        asked.append(variables)
        return {variable: values.get(variable, "") for variable in variables}

    monkeypatch.setattr(schedulers, "values_for", chosen)
    scheduler = KubernetesScheduler(SimpleNamespace(task_vars={}), None)
    node = {"stages": ["diagnostics"], "sku": "nvidia", "gpu_count": 8, "gang_stages": list(DECLARATIONS)}
    run = {"run_id": PARENT, "deadline_seconds": 3600, "heartbeat_seconds": 10, "nodes": {"node-1": node}}
    (stage,) = scheduler.order(run, "node-1").plan["stages"]
    assert stage["environment"] == {"GPUVAL_NEEDED_PACKAGES": "deepspeed"}
    del node["gang_stages"]
    (stage,) = scheduler.order(run, "node-1").plan["stages"]
    assert stage["environment"] == {}
    assert schedulers.GANG_WORKLOADS not in asked[-1]


def made(asked=None, nodes=NODES, queue="", together=TOGETHER):
    settings = parse({"image": IMAGE, **(asked or {})}, queue)
    placements = [
        manifests.PodAttempt(
            manifests.PodTarget(node, node[:63].lower(), "0" * 32, {"nvidia.com/gpu": 8}),
            settings,
            manifests.pod_plan(plan(node), settings),
            "nvidia",
            store={"put": "https://s3/x?X-Amz-Signature=5igned"},
        )
        for node in nodes
    ]
    return round_objects(RUN, {"runner": b"r", "workloads": b"w"}, placements, together)


def of(kind, objects):
    return [item for item in objects if item["kind"] == kind]


def pod(asked=None, **options):
    return of("Job", made(asked, **options))[0]["spec"]["template"]["spec"]


def containers(spec):
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "asked", [{}, RDMA, {"gang": {"host_network": True}}, {"run_as_user": 1000}, {"model_cache": {"claim": "models"}}]
)
def test_all_objects_follow_the_schemas_of_kubernetes(version, asked):
    objects = made(asked, queue="gangs")
    assert {item["kind"] for item in objects} == {"ConfigMap", "Service", "Secret", "Job"}
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)


def test_members_find_each_other_by_what_their_pods_are_called():
    objects = made()
    (service,) = of("Service", objects)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    addresses = set()
    for job in of("Job", objects):
        template = job["spec"]["template"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        spec = template["spec"]
        assert spec["subdomain"] == service["metadata"]["name"]
        addresses.add(f"{spec['hostname']}.{spec['subdomain']}.gpuval.svc")
        assert len(spec["hostname"]) <= 63
    assert addresses == {member["address"] for member in gang(0)["members"]}
    assert len(addresses) == len(NODES)
    assert service["spec"]["ports"][0]["port"] == 29500


@pytest.mark.parametrize("run_id", [RUN, "r" * 63, "R_.x"])
def test_names_fit_and_are_not_those_of_the_nodes_own_jobs(run_id):
    made_names = [names.run_name(run_id, gangs.SERVICE), names.run_name(run_id, gangs.KEYS_SECRET)]
    made_names += [names.object_name(run_id, node, 1) for node in NODES]
    own = {names.object_name(PARENT, node, 1) for node in NODES}
    assert all(DNS_LABEL.fullmatch(name) for name in made_names)
    assert len(set(made_names)) == len(made_names) and not own & set(made_names)
    assert len(gangs.address(run_id, "n" * 253, "n" * 63)) <= 253


def test_labels_tell_the_round_the_gang_and_the_run():
    for item in made():
        labels = item["metadata"]["labels"]
        wanted = {"gpuval.io/run": RUN, "gpuval.io/parent": PARENT, "gpuval.io/round": "all"}
        assert labels.items() >= wanted.items()
        if item["kind"] == "Job":
            assert labels["gpuval.io/gang"] == "all"
            assert item["spec"]["template"]["metadata"]["labels"].items() >= {**wanted, "gpuval.io/gang": "all"}.items()


def test_keys_are_in_their_secret_alone_and_mounted_as_ssh_takes_them():
    objects = made()
    for item in objects:
        text = json.dumps(item)
        encoded = [word for word in re.findall(r'"([A-Za-z0-9+/]{8,}={0,2})"', text) if len(word) % 4 == 0]
        whole = text + "".join(base64.b64decode(word).decode("latin-1") for word in encoded)
        is_keys = item["metadata"]["name"] == names.run_name(RUN, gangs.KEYS_SECRET)
        assert ("5ecret" in whole) == is_keys, item["metadata"]["name"]
    assert "5ecret" not in repr(TOGETHER)
    spec = of("Job", objects)[0]["spec"]["template"]["spec"]
    (given,) = (volume["projected"] for volume in spec["volumes"] if volume["name"] == "given")
    items = {
        item["path"]: item["mode"] for source in given["sources"] for item in source.get("secret", {}).get("items", ())
    }
    assert items == {"ssh/token": 0o400, "ssh/id_ed25519": 0o400, "ssh/id_ed25519.pub": 0o444}
    assert all(not mode & (stat.S_IWGRP | stat.S_IWOTH) for mode in items.values())
    for container in containers(spec):
        (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/opt/gpuval")
        assert mount["readOnly"] is True


def test_a_round_without_its_keys_is_refused():
    with pytest.raises(PodSettingsError, match="has no id_ed25519, "):
        made(together=Together(TOGETHER.of, {}))


def test_the_plan_is_one_the_runner_takes_and_brings_no_keys():
    settings = parse({"image": IMAGE})
    found = manifests.pod_plan(plan(container={"ssh_keys": False}), settings)
    schemas.validate("plan", found, what="plan")
    assert json.loads(node_plan.parse(found).gang) == gang(0)
    assert manifests.pod_plan(found, settings) == found
    with pytest.raises(PodSettingsError, match=r"container.ssh_keys"):
        manifests.pod_plan({k: v for k, v in plan().items() if k != "gang"}, settings)


def test_a_pod_of_a_gang_asks_for_the_gpus_and_no_more_by_default():
    spec = pod({"model_cache": {"claim": "models"}})
    for container in containers(spec):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"], "add": ["SETGID", "SETUID", "SYS_CHROOT"]}
        assert context["allowPrivilegeEscalation"] is False and "privileged" not in context
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert "emptyDir" in volumes["models"], "gangs load no model"
    assert manifests.security_level(spec) == "baseline"
    assert "hostNetwork" not in spec
    assert manifests.security_level(pod({"run_as_user": 1000})) == "restricted"


def test_rdma_devices_bring_the_right_to_lock_memory():
    spec = pod({**RDMA, "resources": {"limits": {"memory": "512Gi"}}})
    for container in containers(spec):
        resources = container["resources"]
        assert resources["limits"]["rdma/hca_shared_devices_a"] == resources["requests"]["rdma/hca_shared_devices_a"]
        assert resources["limits"]["memory"] == "512Gi"
        assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
    assert manifests.security_level(spec) == "privileged"
    none = {"gang": {**RDMA["gang"], "capabilities": []}}
    assert "IPC_LOCK" not in containers(pod(none))[0]["securityContext"]["capabilities"]["add"]


def test_what_gangs_ask_for_is_not_asked_for_a_node_alone():
    alone = {key: value for key, value in plan().items() if key != "gang"}
    alone["stages"] = [{**stage, "container": {**stage["container"], "ssh_keys": False}} for stage in alone["stages"]]
    settings = parse({"image": IMAGE, "gang": {**RDMA["gang"], "host_network": True}}, "queue")
    placement = manifests.PodAttempt(
        manifests.PodTarget("node-1", "h", "", {}), settings, manifests.pod_plan(alone, settings)
    )
    (job,) = of("Job", manifests.everything(RUN, "gpuval", {"runner": b"r", "workloads": b"w"}, [placement]))
    spec = job["spec"]["template"]["spec"]
    assert "rdma" not in json.dumps(job) and not spec.keys() & {"hostNetwork", "hostname", "subdomain"}
    assert "suspend" not in job["spec"] and gangs.QUEUE_LABEL not in job["metadata"]["labels"]


def test_a_node_s_network_has_the_node_s_address():
    settings = parse({"image": IMAGE, "gang": {"host_network": "true"}})
    spec = pod({"gang": {"host_network": True}})
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert not spec.keys() & {"hostname", "subdomain"}
    known = {"InternalIP": "10.0.0.7", "Hostname": "node-1"}
    assert gangs.member_address(RUN, "node-1", "gpuval", settings, known) == "10.0.0.7"
    with pytest.raises(PodSettingsError, match="names no InternalIP"):
        gangs.member_address(RUN, "node-1", "gpuval", settings, {})
    own = parse({"image": IMAGE})
    assert gangs.member_address(RUN, "node-1", "gpuval", own, known) == gangs.address(RUN, "node-1", "gpuval")
    not_theirs = parse({"host_network": True, "gang": {"host_network": False}})
    assert for_gang(not_theirs).host_network is False


def test_a_queue_admits_the_jobs_and_not_their_pods():
    for job in of("Job", made(queue="gangs")):
        assert job["spec"]["suspend"] is True
        assert job["metadata"]["labels"][gangs.QUEUE_LABEL] == "gangs"
        assert gangs.QUEUE_LABEL not in job["spec"]["template"]["metadata"]["labels"]
    assert all("suspend" not in job["spec"] for job in of("Job", made()))
    with pytest.raises(PodSettingsError, match="gpuval_kueue_queue: 'No Name'"):
        parse({}, "No Name")


@pytest.mark.parametrize("wrong", [{"resource": {}}, {"host_network": "perhaps"}, {"resources": {"rdma/x": "many"}}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(PodSettingsError, match="gang"):
        parse({"gang": wrong})


def test_the_round_of_a_folder(tmp_path):
    document = make_run(["node-1"], run_id=PARENT, folder=PARENT)
    run = run_folder.RunFolder(tmp_path / "results" / PARENT)
    run.path.mkdir(parents=True)
    below = run_folder.RunFolder(run.path / "gangs" / "search-01")
    assert gangs.round_of(below) is None
    run.write_run(document)
    assert gangs.round_of(below) == gangs.GangRound(PARENT, "search-01")
    assert gangs.round_of(run) is None
    below.path.mkdir(parents=True)
    below.write_run({**document, "run_id": f"{PARENT}.search-01", "folder": f"{PARENT}/gangs/search-01"})
    keys.make(below)
    secret = gangs.keys_secret(RUN, "gpuval", keys.files_for(below, "node-1"))
    assert base64.b64decode(secret["data"]["id_ed25519"]).startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert base64.b64decode(secret["data"]["id_ed25519"]).endswith(b"\n")


def many(count, length=45):
    return [f"ip-10-20-{number:05}".ljust(length, "n") for number in range(count)]


def written(spec, objects, folder):
    """What a kubelet makes of a pod's ConfigMaps: those that the pod mounts, and no more."""
    (given,) = (volume["projected"] for volume in spec["volumes"] if volume["name"] == "given")
    by_name = {item["metadata"]["name"]: item for item in of("ConfigMap", objects)}
    for source in given["sources"]:
        for item in source.get("configMap", {}).get("items", ()):
            (folder / item["path"]).write_text(by_name[source["configMap"]["name"]]["data"][item["key"]])


def test_the_members_are_in_the_cluster_once_and_each_pod_s_plan_is_whole(tmp_path):
    objects = made()
    texts = [text for item in of("ConfigMap", objects) for text in item.get("data", {}).values()]
    assert sum(gangs.address(RUN, "node-1", "gpuval") in text for text in texts) == 1
    for index, job in enumerate(of("Job", objects)):
        folder = tmp_path / str(index)
        folder.mkdir()
        written(job["spec"]["template"]["spec"], objects, folder)
        assert "members" not in json.loads((folder / "plan.json").read_text())["gang"]
        assert json.loads(node_plan.load(folder / "plan.json").gang) == gang(index)


def test_gangs_of_1000_nodes_fit_whatever_their_names():
    for length in (45, 253):
        found = {"all": of_gang(gang(0, many(1000, length)))}
        (only,), places = config_maps.gang_config_maps(RUN, "n" * 63, found)
        assert places == {"all": config_maps.PlanPlace(only["metadata"]["name"], "all.json")}
        assert len(json.dumps(only)) < 1 << 20
        assert only["immutable"] is True
        kubernetes_validate.validate(only, VERSIONS[-1], strict=True)
    settings = parse({"image": IMAGE})
    some = many(1000)
    planned = plan(some[0], nodes=some)
    everybody = [manifests.pod_plan({**planned, "node": node}, settings) for node in some]
    maps, _places = config_maps.plan_config_maps(RUN, "gpuval", everybody)
    assert sum(len(json.dumps(item)) for item in maps) < 4 << 20, "92 MB with the members in each plan"


def test_a_gang_that_is_too_large_is_refused_with_what_to_do():
    found = {"all": of_gang(gang(0, many(7000)))}
    with pytest.raises(
        PodSettingsError, match=r"the 7000 members of gang all \(gpuval_gang_size .* ConfigMap holds 1 MiB"
    ):
        config_maps.gang_config_maps(RUN, "gpuval", found)


def test_gangs_of_a_search_share_a_config_map_and_each_pod_sees_its_own(tmp_path):
    pairs = {f"all.{number}": of_gang(gang(0, many(2))) for number in range(500)}
    maps, places = config_maps.gang_config_maps(RUN, "gpuval", pairs)
    assert len(maps) == 1 and len({place.key for place in places.values()}) == 500
    again, _places = config_maps.gang_config_maps(RUN, "gpuval", pairs)
    assert again == maps, "a controller that takes the round up finds what is there"
    large = {name: of_gang(gang(0, many(1000))) for name in ("a", "b", "c", "d", "e", "f", "g")}
    maps, places = config_maps.gang_config_maps(RUN, "gpuval", large)
    assert len(maps) == 2 and {place.config_map for place in places.values()} == {
        item["metadata"]["name"] for item in maps
    }


def test_a_plan_of_a_gang_without_a_description_is_refused():
    with pytest.raises(PodSettingsError, match="node-1: the members of gang all in its plan are unknown"):
        made(together=None)


@pytest.mark.parametrize("name", ["search-01", "search-117"])
def test_rounds_of_a_search_are_known_by_their_names(name):
    assert gangs.GangRound(PARENT, name).is_of_a_search
    assert not any(
        gangs.GangRound(PARENT, other).is_of_a_search for other in ("all", "all-again", "search", "search-x")
    )
