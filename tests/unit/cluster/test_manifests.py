"""The objects of a run: valid for every version, safe by default, and what was asked for."""

import base64
import json
import re
from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    config_maps,
    manifests,
    names,
    nodes,
    pod_settings,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.manifests import PodAttempt, PodTarget
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettingsError, parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs
from gpuval_runner import plan as node_plan

from tests.kit.kubernetes_schemas import kubernetes_validate

VERSIONS = [f"1.{minor}" for minor in range(30, 37)]
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
IMAGE = "registry.example/gpuval@sha256:" + "a" * 64
CODE = {"runner": b"runner", "workloads": b"workloads"}
DECLARATIONS = {
    "facts": {"command": ["{runner_python}", "{runner}", "facts"]},
    "image": {"command": ["{runner}", "image"]},
    "training": {"command": ["{python}", "-m", "train"], "needs": ["facts", "image"], "image": "train:1"},
    "loading": {"command": ["{python}", "-m", "load"], "needs": ["image"], "grace_seconds": 30.5},
    "inference": {"command": ["{python}", "-m", "serve"], "needs": ["facts", "loading"]},
}
EVERYTHING_ASKED = {
    "image": IMAGE,
    "image_pull_policy": "IfNotPresent",
    "image_pull_secrets": ["registry"],
    "resource": "nvidia.com/gpu",
    "resources": {
        "requests": {"cpu": 8, "memory": "64Gi", "rdma/hca_shared_devices_a": 1},
        "limits": {"memory": "512Gi"},
    },
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}],
    "node_selector": {"pool": "gpu"},
    "shm_bytes": 137438953472,
    "model_cache": {"nfs": {"server": "10.0.0.1", "path": "/models", "mount_options": ["nfsvers=4.1", "hard"]}},
    "host_network": True,
    "privileged": True,
    "run_as_user": 1000,
    "capabilities": ["IPC_LOCK", "SYS_ADMIN"],
    "runtime_class": "nvidia",
    "priority_class": "batch",
    "annotations": {"team": "hardware"},
    "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
    "environment": {"https_proxy": "http://proxy:3128"},
    "python": "/opt/venv/bin/python",
    "deadline_slack_seconds": 60,
}
CACHES = [
    {"empty_dir": {}},
    {"empty_dir": {"size": "100Gi", "memory": True}},
    {"host_path": "/var/lib/gpuval/models"},
    {"claim": "models"},
    {"nfs": {"server": "nfs.example", "path": "/models"}},
    {"nfs": {"server": "nfs.example", "path": "/models", "mount_options": ["nfsvers=4.1"], "size": "2Ti"}},
]
GPUS = {"nvidia.com/gpu": 8}


def plan(node="node-1", run_id="run-1", stages=tuple(DECLARATIONS), sku="h200", container=None, **declared):
    settings = plans.PlanSettings(
        run_id=run_id,
        node=node,
        created_at="2026-11-20T20:00:00Z",
        deadline_seconds=7200.5,
        heartbeat_seconds=10,
        runtime="auto",
        sku=sku,
        gpu_count=None,
        python="python3",
        models_dir=None,
        container=container or {},
        nonce="0" * 32,
    )
    return plans.build(settings, list(stages), {**DECLARATIONS, **declared})


def placement(asked=None, target=None, sku="h200", attempt=1, **planned):
    settings = parse({"image": IMAGE, **(asked or {})})
    node = planned.get("node", "node-1")
    made = manifests.pod_plan(plan(sku=sku, **planned), settings)
    return PodAttempt(
        target=target or PodTarget(node, f"{node}.example", "0123456789abcdef0123456789abcdef", GPUS),
        settings=settings,
        plan={**made, "attempt": attempt},
        sku=sku,
        store={"schema": "gpuval.store/1", "put": {"records/facts": "https://s3/x?X-Amz-Signature=5ecret"}},
        rclone_config="[models]\nsecret_access_key = 5ecret\n",
        ca="-----BEGIN CERTIFICATE-----\n",
    )


def made(*placements, run_id="run-1", **options):
    return manifests.everything(run_id, "gpuval", CODE, placements, **options)


def of(kind, objects):
    return [item for item in objects if item["kind"] == kind]


def job(*arguments, **options):
    (found,) = of("Job", made(placement(*arguments, **options)))
    return found


def pod(*arguments, **options):
    return job(*arguments, **options)["spec"]["template"]["spec"]


def containers(spec):
    return [*spec.get("initContainers", ()), *spec["containers"]]


# For every version


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_follow_the_schemas_of_kubernetes(version):
    asked = [{}, EVERYTHING_ASKED, *({"model_cache": cache} for cache in CACHES)]
    host = {"container": {"volumes": ["/data:/data:ro"], "memory_bytes": 1 << 30, "cpus": 1.5, "shm_bytes": 1 << 20}}
    placements = [placement(settings, node=f"node-{number}") for number, settings in enumerate(asked)]
    placements += [placement({}, node="cpu", sku="cpu"), placement({}, node="one", stages=["facts"])]
    placements += [placement({}, node="host", **host)]
    objects = made(*placements, make_namespace=True)
    kinds = {"Namespace", "ConfigMap", "Secret", "Job", "PersistentVolume", "PersistentVolumeClaim"}
    assert {item["kind"] for item in objects} == kinds
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)


def test_the_schemas_are_strict_enough_to_see_a_misspelt_field():
    wrong = job()
    wrong["spec"]["template"]["spec"]["tolerationz"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="tolerationz"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_objects_are_plain_json_and_the_same_each_time():
    first, second = (made(placement(EVERYTHING_ASKED), make_namespace=True) for _ in range(2))
    assert json.loads(json.dumps(first)) == first == second


# Names and labels

NODES = ["node-1", "NODE-1", "node.1", "node_1", "n" * 253, "n" * 252 + "m", "1", "a-", "x..y"]
RUNS = ["r", "20261120-201500-3f2a", "r" * 63, "r" * 62 + "s", "a.b", "a_", "a-", "A"]


def test_names_and_labels_are_what_the_api_takes_and_never_clash():
    found = {}
    for run_id in RUNS:
        for node in NODES:
            for attempt in (1, 2):
                found[names.object_name(run_id, node, attempt)] = (run_id, node, attempt)
                labels = names.node_metadata(run_id, "", node, attempt)["labels"]
                assert all(LABEL_VALUE.fullmatch(value) for value in labels.values()), labels
    assert len(found) == len(RUNS) * len(NODES) * 2
    assert all(DNS_LABEL.fullmatch(name) and len(name) <= 57 for name in found), "the pods' get six more characters"
    assert len({names.label_value(text) for text in {*RUNS, *NODES}}) == len({*RUNS, *NODES})


def test_nodes_of_a_pool_whose_names_begin_alike_have_names_of_their_own():
    pool = [f"gke-a-cluster-with-a-long-name-gpu-pool-1a2b3c4d-{number:05x}" for number in range(20_000)]
    assert len({names.host_name(node) for node in pool}) == len(pool)
    assert max(len(names.object_name("r", node, 2)) for node in pool) + len("-x7k2p") <= 63


def test_a_label_that_fits_is_the_text_itself():
    assert names.label_value("20261120-201500-3f2a") == "20261120-201500-3f2a"
    assert names.run_selector("r1") == "app.kubernetes.io/managed-by=gpuval,gpuval.io/run=r1"


def test_a_stage_is_found_by_its_container():
    assert names.stage_of(names.container_name("load_a_b")) == "load_a_b"


def test_everything_of_a_run_has_its_labels_and_exact_names():
    run_id, node = "a_", "N" * 100
    objects = made(placement(EVERYTHING_ASKED, run_id=run_id, node=node), run_id=run_id)
    for item in objects:
        metadata = item["metadata"]
        assert metadata["labels"].items() >= names.run_labels(run_id).items()
        assert metadata["annotations"]["gpuval.io/run-id"] == run_id
        if item["kind"] in ("Job", "Secret"):
            assert metadata["labels"].items() >= names.node_metadata(run_id, "", node, 1)["labels"].items()
            assert metadata["annotations"]["gpuval.io/node-name"] == node
    (made_job,) = of("Job", objects)
    template = made_job["spec"]["template"]["metadata"]
    assert (
        template["labels"].items()
        >= {**names.node_metadata(run_id, "", node, 1)["labels"], "kueue.x-k8s.io/queue-name": "gpus"}.items()
    )
    assert template["annotations"].items() >= {"team": "hardware", "gpuval.io/node-name": node}.items()


def test_labels_of_the_site_do_not_hide_ours():
    labels = job({"labels": {"gpuval.io/run": "other", names.MANAGED_LABEL: "helm"}})["metadata"]["labels"]
    assert labels.items() >= names.node_metadata("run-1", "", "node-1", 1)["labels"].items()


def test_the_namespace_belongs_to_no_run():
    (found,) = of("Namespace", made(placement(), make_namespace=True))
    assert names.RUN_LABEL not in found["metadata"]["labels"]
    assert of("Namespace", made(placement())) == []


def test_a_node_of_the_api_as_a_target():
    node = {
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1.example"}},
        "status": {
            "nodeInfo": {"machineID": "abc"},
            "allocatable": {"cpu": "128", "memory": "1000Ki", "nvidia.com/gpu": "8", "example.com/odd": "1k"},
        },
    }
    assert manifests.target_of("n1", nodes.describe(node)) == PodTarget(
        "n1", "n1.example", "abc", {"nvidia.com/gpu": 8}
    )
    assert manifests.target_of("n1", nodes.describe({"metadata": {"name": "n1"}})) == PodTarget("n1", allocatable={})


# Plans


def test_a_pods_plan_is_one_the_runner_takes():
    found = manifests.pod_plan(plan(container={"python": None}), parse({"image": IMAGE, "python": "/opt/python"}))
    schemas.validate("plan", found, what="plan")
    read = node_plan.parse(found)
    assert read.runtime == "pod"
    assert [stage.name for stage in read.stages] == ["facts", "training", "loading", "inference"]
    assert [stage.image for stage in read.stages] == [IMAGE, "train:1", IMAGE, IMAGE]
    assert {stage.container.python for stage in read.stages} == {"/opt/python"}
    assert "image" not in {needed for stage in read.stages for needed in stage.needs}
    assert read.models_dir == "/var/lib/gpuval/models"
    assert manifests.pod_plan(found, parse({"image": IMAGE, "python": "/opt/python"})) == found


@pytest.mark.parametrize("cache", CACHES)
def test_nodes_that_share_a_cache_do_not_share_a_folder(cache):
    first, second = (placement({"model_cache": cache}, node=node).plan["models_dir"] for node in ("a", "b"))
    assert (first != second) == bool({"claim", "nfs"} & set(cache))


@pytest.mark.parametrize(
    ("asked", "container", "message"),
    [
        ({"image": None}, {}, "stage facts has no image.*gpuval_pods.image"),
        ({}, {"ulimits": {"nofile": "1:1"}}, "container.ulimits"),
        ({}, {"user": "me"}, "gpuval_pods.run_as_user"),
        ({}, {"devices": ["/dev/kfd"]}, "device plugins"),
        ({}, {"ipc": "host"}, "shm_bytes"),
        ({}, {"arguments": ["--x"]}, "container.arguments"),
        ({}, {"network": "host"}, "gpuval_pods.host_network"),
        ({}, {"volumes": ["named:/data"]}, "no folder of the node"),
    ],
)
def test_what_a_pod_cannot_give_is_reported(asked, container, message):
    with pytest.raises(PodSettingsError, match=message):
        made(placement(asked, container=container))


def test_a_plan_of_nothing_but_images_is_refused():
    with pytest.raises(PodSettingsError, match="no stage but image"):
        placement(stages=["image"])


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_that_goes_with_its_pod(cache):
    assert parse({"model_cache": cache}).loses_models == ("empty_dir" in cache)


def test_plans_of_many_nodes_share_config_maps_within_the_limit():
    settings = parse({"image": IMAGE})
    many = [manifests.pod_plan(plan(node=f"node-{number}"), settings) for number in range(1000)]
    maps, places = config_maps.plan_config_maps("run-1", "gpuval", many)
    assert 1 < len(maps) <= 6
    assert len({item["metadata"]["name"] for item in maps}) == len(maps)
    assert all(len(json.dumps(item)) < 1 << 20 for item in maps)
    by_name = {item["metadata"]["name"]: item for item in maps}
    for wanted in many:
        place = places[wanted["node"], 1]
        assert json.loads(by_name[place.config_map]["data"][place.key]) == wanted
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", place.key) for place in places.values())


def programs(runner, workloads):
    return {"runner": runner, "workloads": workloads}


def test_config_maps_of_other_content_have_other_names():
    settings = parse({"image": IMAGE})
    one, two = (config_maps.plan_config_maps("r", "n", [manifests.pod_plan(plan(n), settings)])[0] for n in ("a", "b"))
    assert one[0]["metadata"]["name"] != two[0]["metadata"]["name"]
    first, second = (config_maps.code_config_map("r", "n", programs(data, b"")) for data in (b"1", b"2"))
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_the_programs_fit_into_a_config_map():
    found = config_maps.code_config_map("r", "n", launch_inputs.archives(bytecode=False))
    held = {name: base64.b64decode(data) for name, data in found["binaryData"].items()}
    assert held == {"runner.pyz": payload.runner_pyz(bytecode=False), "workloads.zip": payload.workloads_zip()}
    assert sum(map(len, held.values())) <= (1 << 20) * 2 // 3, "a third stays free for programs to come"
    assert config_maps.MOST_PROGRAM_BYTES < 1 << 20
    with pytest.raises(PodSettingsError, match="1 MiB"):
        config_maps.code_config_map("r", "n", programs(b"x" * 600_000, b"x" * 600_000))


def test_a_second_attempt_brings_the_records_of_the_first():
    item = replace(placement(attempt=2), earlier=[{"stage": "facts", "state": "success"}, {"stage": "my_stage"}])
    (secret,) = of("Secret", made(item))
    assert secret["metadata"]["name"] == names.object_name("run-1", "node-1", 2)
    assert json.loads(base64.b64decode(secret["data"]["record-facts.json"]))["state"] == "success"
    assert "record-my-stage.json" in secret["data"]
    with pytest.raises(PodSettingsError, match="1 MiB"):
        made(replace(item, earlier=[{"stage": "facts", "message": "x" * 1_000_000}]))


# Secrets


def test_secrets_are_in_secrets_alone():
    objects = made(placement(), placement(node="node-2"))
    for item in objects:
        text = json.dumps(item)
        encoded = [word for word in re.findall(r'"([A-Za-z0-9+/]{8,}={0,2})"', text) if len(word) % 4 == 0]
        whole = text + "".join(base64.b64decode(word).decode("latin-1") for word in encoded)
        assert ("5ecret" in whole) == (item["kind"] == "Secret"), item["kind"]
    assert len({item["metadata"]["name"] for item in of("Secret", objects)}) == 2


def with_secrets():
    command = ["{python}", "-m", "gpuval_workloads.job"]
    declared = {name: {"command": command, "image": IMAGE, "secrets": ["HF_TOKEN"]} for name in ("mine", "other")}
    item = placement(stages=("facts", *declared), **declared)
    return replace(item, secrets={name: {"HF_TOKEN": f"5ecret-of-{name}"} for name in declared})


def test_a_secret_shows_nothing_in_messages():
    assert "5ecret" not in repr(placement())
    assert "5ecret" not in repr(with_secrets())


def test_a_jobs_secret_is_a_variable_of_its_container_alone():
    objects = made(with_secrets())
    ((secret,), (found,)) = of("Secret", objects), of("Job", objects)
    spec = found["spec"]["template"]["spec"]
    for container in containers(spec):
        (*_, last) = container["env"]
        if container["name"] == "facts":
            assert all("valueFrom" not in one for one in container["env"])
            continue
        key = last["valueFrom"]["secretKeyRef"]["key"]
        assert (last["name"], last["valueFrom"]["secretKeyRef"]["name"]) == ("HF_TOKEN", secret["metadata"]["name"])
        assert base64.b64decode(secret["data"][key]).decode() == f"5ecret-of-{container['name']}"
    (mounted,) = (one["secret"] for one in spec["volumes"][0]["projected"]["sources"] if "secret" in one)
    files = {item["path"] for item in mounted["items"]}
    assert {"machine-id", "store.json", "rclone.conf", "ca.pem"} == files, "and no stage finds another's"
    assert "5ecret" not in json.dumps(found)


# Pods


def test_a_pod_is_harmless_by_default():
    spec = pod()
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for made_container in containers(spec):
        context = made_container["securityContext"]
        assert context == {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
        assert set(made_container["resources"]["requests"]) == {"cpu", "memory", "nvidia.com/gpu"}
    for name in ("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "nodeName"):
        assert name not in spec


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        ({}, "baseline"),
        ({"run_as_user": 1000}, "restricted"),
        ({"run_as_user": 1000, "capabilities": ["CHOWN"]}, "baseline"),
        ({"run_as_user": 1000, "model_cache": CACHES[4]}, "baseline"),
        ({"run_as_user": 1000, "model_cache": CACHES[5]}, "restricted"),
        ({"run_as_user": 1000, "model_cache": CACHES[2]}, "privileged"),
        ({"capabilities": ["IPC_LOCK"]}, "privileged"),
        ({"host_network": True}, "privileged"),
        ({"privileged": True}, "privileged"),
    ],
)
def test_the_namespace_asks_for_the_strictest_standard_its_pods_meet(asked, level):
    (found,) = of("Namespace", made(placement(), placement(asked, node="node-2"), make_namespace=True))
    own = manifests.security_level(pod(asked))
    assert own == level
    expected = max(level, "baseline", key=manifests.LEVELS.index)
    assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == expected


def test_another_user_than_root_owns_what_it_is_given():
    context = pod({"run_as_user": "1000"})["securityContext"]
    expected = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "fsGroup": 1000}
    assert context.items() >= expected.items()


def test_stages_run_one_after_another_and_the_last_decides():
    spec = pod()
    assert [item["name"] for item in containers(spec)] == ["facts", "training", "loading", "inference"]
    assert len(spec["containers"]) == 1
    for item in containers(spec):
        assert item["command"][:3] == ["python3", "/opt/gpuval/runner.pyz", "pod"]
        assert item["command"][item["command"].index("--stage") + 1] == item["name"]
        assert ("--last" in item["command"]) == (item["name"] == "inference")
    assert "initContainers" not in pod(stages=["facts"])


def test_a_job_runs_once_and_ends():
    spec = job()["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 0)
    assert spec["activeDeadlineSeconds"] == 8101
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 31 + 75
    assert "ttlSecondsAfterFinished" not in spec


def test_a_pod_goes_to_its_node_and_to_no_other():
    affinity = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1.example"]}],
    }
    unlabelled = pod(target=PodTarget("node-1", allocatable=GPUS))["affinity"]["nodeAffinity"]
    (term,) = unlabelled["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert "matchExpressions" not in term


def test_every_container_has_the_whole_accelerator():
    for item in containers(pod(EVERYTHING_ASKED)):
        resources = item["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "8"
        assert resources["limits"]["rdma/hca_shared_devices_a"] == resources["requests"]["rdma/hca_shared_devices_a"]
        assert resources["requests"]["cpu"] == "8"
        assert resources["limits"]["memory"] == "512Gi"


@pytest.mark.parametrize(
    ("sku", "asked", "allocatable", "resource"),
    [
        ("cpu", {}, GPUS, None),
        ("auto", {}, {}, None),
        ("auto", {"resource": ""}, GPUS, None),
        ("auto", {}, GPUS, ("nvidia.com/gpu", "8")),
        ("auto", {}, {"amd.com/gpu": 4, "nvidia.com/gpu": 0}, ("amd.com/gpu", "4")),
        ("gaudi", {}, {"habana.ai/gaudi": 8}, ("habana.ai/gaudi", "8")),
        ("nvidia", {}, {"nvidia.com/gpu": 0}, ("nvidia.com/gpu", "1")),
        ("nvidia", {}, {}, ("nvidia.com/gpu", "1")),
        ("auto", {"resource": "nvidia.com/mig-1g.5gb"}, {"nvidia.com/mig-1g.5gb": 7}, ("nvidia.com/mig-1g.5gb", "7")),
    ],
)
def test_the_resource_of_the_accelerators(sku, asked, allocatable, resource):
    spec = pod(asked, target=PodTarget("node-1", allocatable=allocatable), sku=sku)
    for item in containers(spec):
        limits = item["resources"].get("limits", {})
        assert (list(limits.items()) or [None])[0] == resource


def test_a_count_that_is_unknown_is_asked_for():
    with pytest.raises(PodSettingsError, match="gpuval_gpu_count"):
        pod(target=PodTarget("node-1"), sku="nvidia")


def test_what_a_stage_asks_of_its_container():
    asked = {"memory_bytes": 1 << 30, "cpus": 0.5, "capabilities": ["IPC_LOCK"], "volumes": ["/data:/in:ro"]}
    asked["shm_bytes"] = 1 << 33
    spec = pod(training={**DECLARATIONS["training"], "container": asked})
    facts, training = containers(spec)[:2]
    assert training["resources"]["limits"].items() >= {"memory": "1073741824", "cpu": "0.5"}.items()
    assert training["resources"]["requests"].items() >= {"memory": "1073741824", "cpu": "0.5"}.items()
    assert training["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert facts["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert training["volumeMounts"][-1] == {"name": "host-0", "mountPath": "/in", "readOnly": True}
    assert facts["volumeMounts"][-1]["mountPath"] == "/dev/shm"
    (shm,) = [volume for volume in spec["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": str(1 << 33)}


@pytest.mark.parametrize(("asked", "says"), [({"privileged": True}, None), ({"capabilities": ["SYS_ADMIN"]}, None)])
def test_no_escalation_is_not_reported_where_the_api_would_refuse_it(asked, says):
    assert containers(pod(asked))[0]["securityContext"].get("allowPrivilegeEscalation") is says


def test_the_machine_id_is_the_nodes_and_never_the_images():
    spec = pod()
    for item in containers(spec):
        (mount,) = [mount for mount in item["volumeMounts"] if mount["mountPath"] == "/etc/machine-id"]
        assert (mount["subPath"], mount["readOnly"]) == ("machine-id", True)
    for target, expected in (
        (None, b"0123456789abcdef0123456789abcdef\n"),
        (PodTarget("node-1", allocatable=GPUS), b""),
    ):
        (secret,) = of("Secret", made(placement(target=target)))
        assert base64.b64decode(secret["data"]["machine-id"]) == expected


def test_all_mounts_have_their_volumes():
    for cache in CACHES:
        spec = pod({"model_cache": cache})
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(set(volumes)) == len(volumes)
        assert {mount["name"] for item in containers(spec) for mount in item["volumeMounts"]} == set(volumes)


def test_a_digest_stays():
    assert [item["image"] for item in containers(pod())] == [IMAGE, "train:1", IMAGE, IMAGE]


def test_references_between_the_objects_hold():
    objects = made(placement(EVERYTHING_ASKED), placement(EVERYTHING_ASKED, node="node-2"))
    known = {(item["kind"], item["metadata"]["name"]) for item in objects}
    assert len(known) == len(objects)
    for item in of("Job", objects):
        volumes = {volume["name"]: volume for volume in item["spec"]["template"]["spec"]["volumes"]}
        code, planned, secret = volumes["given"]["projected"]["sources"]
        assert ("ConfigMap", code["configMap"]["name"]) in known
        assert ("ConfigMap", planned["configMap"]["name"]) in known
        assert ("Secret", secret["secret"]["name"]) in known
        assert ("PersistentVolumeClaim", volumes["models"]["persistentVolumeClaim"]["claimName"]) in known
    assert len(of("PersistentVolume", objects)) == 1, "nodes share it"


VOLUMES = [
    {"path": "/mnt", "nfs": {"server": "10.0.0.2", "path": "/export"}, "read_only": True},
    {"path": "/lustre", "claim": "lustre"},
    {"path": "/gcs", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "attributes": {"bucketName": "data"}}},
    {"path": "/ssd", "host_path": "/mnt/stateful_partition/kube-ephemeral-ssd"},
    {"path": "/nvme", "storage_class": "local-nvme", "size": "1Ti"},
]


def test_every_stage_has_the_storage_that_was_asked_for():
    asked = {"image": IMAGE, "volumes": VOLUMES, "service_account": "reader"}
    (whole,) = of("Job", made(placement(asked)))
    for version in VERSIONS:
        kubernetes_validate.validate(whole, version, strict=True)
    spec = whole["spec"]["template"]["spec"]
    sources = {volume["name"]: volume for volume in spec["volumes"]}
    for container in containers(spec):
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert [mounts[one["path"]]["readOnly"] for one in VOLUMES] == [True, *[False] * 4]
        found = [sources[mounts[one["path"]]["name"]] for one in VOLUMES]
    assert found[0]["nfs"] == {"server": "10.0.0.2", "path": "/export"}
    assert found[1]["persistentVolumeClaim"] == {"claimName": "lustre"}
    driver = "gcsfuse.csi.storage.gke.io"
    assert found[2]["csi"] == {"driver": driver, "readOnly": False, "volumeAttributes": {"bucketName": "data"}}
    assert found[3]["hostPath"]["type"] == "Directory", "a folder that is made would be on the system's disk"
    claim = found[4]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (claim["storageClassName"], claim["resources"]) == ("local-nvme", {"requests": {"storage": "1Ti"}})
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("reader", False)
    assert manifests.security_level(spec) == "privileged"


def test_stages_know_the_names_of_volumes_that_are_not_the_nodes_own():
    claimed = placement({"volumes": VOLUMES, "model_cache": {"claim": "models"}})
    for container in containers(of("Job", made(claimed))[0]["spec"]["template"]["spec"]):
        variables = {item["name"]: item.get("value") for item in container["env"]}
        assert json.loads(variables["GPUVAL_VOLUMES"]) == {
            "/mnt": "NFS 10.0.0.2:/export",
            "/lustre": "claim lustre",
            "/gcs": "CSI volume of gcsfuse.csi.storage.gke.io",
            "/var/lib/gpuval/models": "claim models",
        }
    assert "GPUVAL_VOLUMES" not in {item["name"] for item in containers(pod())[0]["env"]}


def test_a_volume_takes_the_place_of_a_folder_of_the_node_that_a_stage_measures():
    host = {"container": {"volumes": ["/nvme:/nvme", "/data:/data"]}}
    spec = of("Job", made(placement({"volumes": VOLUMES}, **host)))[0]["spec"]["template"]["spec"]
    (training,) = (one for one in containers(spec) if one["name"] == "training")
    sources = {volume["name"]: volume for volume in spec["volumes"]}
    by_path = {mount["mountPath"]: sources[mount["name"]] for mount in training["volumeMounts"]}
    assert len(by_path) == len(training["volumeMounts"])
    assert "ephemeral" in by_path["/nvme"] and by_path["/data"]["hostPath"]["path"] == "/data"


@pytest.mark.parametrize(
    ("volumes", "message"),
    [
        ([{"path": "/opt", "claim": "a"}], "/opt is a folder of gpuval"),
        ([{"path": "/dev/shm/x", "claim": "a"}], "/dev/shm/x is a folder of gpuval"),
        ([{"path": "/a", "claim": "a"}, {"path": "/a", "claim": "b"}], "two volumes have the path /a"),
        ([{"path": "/a", "claim": "a", "host_path": "/b"}], "volumes[0]"),
        ([{"path": "/a"}], "volumes[0]"),
        ([{"path": "a", "claim": "a"}], "volumes[0]"),
        ([{"path": "/a", "claim": "a", "size": "1Ti"}], "volumes[0]"),
    ],
)
def test_storage_that_cannot_be_mounted_is_named(volumes, message):
    with pytest.raises(PodSettingsError, match=re.escape(message)):
        job({"image": IMAGE, "volumes": volumes})


# Settings


def test_templates_leave_numbers_as_text():
    settings = parse({"shm_bytes": "1024", "deadline_slack_seconds": "1.5", "host_network": "True", "image": ""})
    assert (settings.shm_bytes, settings.deadline_slack_seconds, settings.host_network) == (1024, 1.5, True)
    assert settings.image == ""


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"imagee": "x"}, "imagee"),
        ({"shm_bytes": "64G"}, "gpuval_pods.shm_bytes: '64G' is not a number"),
        ({"model_cache": {"claim": "a", "host_path": "/b"}}, "model_cache"),
        ({"model_cache": {}}, "model_cache"),
        ({"model_cache": {"host_path": "/"}}, "host_path"),
        ({"resource": "gpu"}, "resource"),
        ({"resources": {"limits": {"memory": "lots"}}}, "memory"),
        ({"tolerations": [{"effect": "Never"}]}, "effect"),
        ({"image_pull_secrets": ["Bad Name"]}, "image_pull_secrets"),
    ],
)
def test_settings_that_make_no_pod_are_named(asked, message):
    with pytest.raises(PodSettingsError, match=re.escape(message)):
        parse(asked)


@pytest.mark.parametrize(
    ("taint", "covered"),
    [
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, True),
        ({"key": "gpuval.io/failed", "value": "run", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "other", "effect": "NoSchedule"}, False),
        ({"key": "dedicated", "value": "gpu", "effect": "NoExecute"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, False),
    ],
)
def test_taints_that_keep_a_pod_away(taint, covered):
    tolerated = pod_settings.tolerations(parse(EVERYTHING_ASKED), "nvidia.com/gpu")
    assert any(pod_settings.covers(item, taint) for item in tolerated) == covered
    assert pod_settings.covers({"operator": "Exists"}, taint)
    assert pod_settings.covers({"key": taint["key"], "value": taint.get("value", "")}, taint)


@pytest.mark.parametrize(("cache", "below"), [({"host_path": "/models"}, ""), ({"claim": "models"}, "node-1/")])
def test_a_stage_has_its_datasets_read_only_and_the_one_that_loads_them_writes(cache, below):
    declared = {"training": {**DECLARATIONS["training"], "datasets": ["texts"]}}
    loads = {"dataset_texts": {"command": ["{python}", "-m", "load", "--dataset", "texts"]}}
    item = placement({"model_cache": cache}, stages=["facts", "dataset_texts", "training"], **declared, **loads)
    spec = of("Job", made(item))[0]["spec"]["template"]["spec"]
    kubernetes_validate.validate(of("Job", made(item))[0], VERSIONS[-1], strict=True)
    mounts = {one["name"]: [m for m in one["volumeMounts"] if "subPath" in m and m["name"] == "models"]
              for one in containers(spec)}  # fmt: skip
    folder = f"{below}datasets--gpuval--texts"
    assert mounts.pop("training") == [
        {"name": "models", "mountPath": place, "subPath": folder, "readOnly": True}
        for place in ("/opt/gpuval/datasets/texts", f"/var/lib/gpuval/models/{folder}")
    ]
    assert not any(mounts.values())
    assert item.plan["stages"][-1]["needs"] == ["facts", "dataset_texts"]
    assert node_plan.parse(item.plan).stage("training").datasets == ("texts",)
