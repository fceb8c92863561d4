"""What of a cluster's objects goes into the logs bundle of a node."""

from ansible_collections.gpuval.fleet.plugins.module_utils.host_evidence import Part
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names, node_evidence

from tests.kit.node_objects import node

RUN = "run-1"


def job(name, attempt=1, **environment):
    container = {"name": "facts", "env": [{"name": key, "value": value} for key, value in environment.items()]}
    return {
        "metadata": {
            "name": names.object_name(RUN, name, attempt),
            "creationTimestamp": f"2026-01-01T00:00:0{attempt}Z",
            "labels": names.node_metadata(RUN, "", name, attempt)["labels"],
            "annotations": names.node_metadata(RUN, "", name, 1)["annotations"],
        },
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def pod(name, attempt=1, **states):
    made = job(name, attempt)
    made["metadata"]["name"] += "-abcde"
    status = [{"name": stage.replace("_", "-"), "state": {state: {}}} for stage, state in states.items()]
    return {**made, "spec": {}, "status": {"initContainerStatuses": status}}


def event(about, reason, at, message="", **more):
    involved = {"kind": "Pod", "name": about}
    return {
        "metadata": {},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        **more,
    }


def of(name, **things):
    known = {"nodes": {}, "jobs": [], "pods": [], "events": [], **things}
    return node_evidence.by_node(RUN, [name, "other"], **known)[name]


def test_each_node_gets_what_is_its_own_in_order():
    events = [
        event(names.object_name(RUN, "n-1", 1) + "-abcde", "Killing", "2026-01-01T00:00:09Z", "two\nlines", count=3),
        event(names.object_name(RUN, "n-1", 1), "SuccessfulCreate", "2026-01-01T00:00:01Z"),
        event(names.object_name(RUN, "other", 1), "BackOff", "2026-01-01T00:00:02Z"),
        event(names.object_name("run-2", "n-1", 1), "BackOff", "2026-01-01T00:00:02Z"),
    ]
    nodes = {name: node(name) for name in ("n-1", "n-10")}
    found = of("n-1", nodes=nodes, jobs=[job("n-1", 2), job("n-1"), job("other")], events=events)
    assert found.node["metadata"]["name"] == "n-1"
    files = {part.name: part.data.decode() for part in node_evidence.parts(found, None)}
    assert list(files) == ["run/events.txt", "run/job-1.yaml", "run/job-2.yaml", "cluster/node.yaml"]
    first, second = files["run/events.txt"].splitlines()
    assert "SuccessfulCreate" in first
    assert second.endswith("Killing (x3): two lines")
    assert "images:" not in files["cluster/node.yaml"]


def test_the_output_of_what_has_run_is_asked_for():
    asked = []

    def output(*container):
        asked.append(container)
        return Part("", b"said")

    states = {"facts": "terminated", "health_check": "running", "training": "waiting"}
    found = of("n-1", pods=[pod("n-1", **states)])
    files = [part.name for part in node_evidence.parts(found, output)]
    name = names.object_name(RUN, "n-1", 1) + "-abcde"
    assert asked == [(name, "facts"), (name, "health-check")]
    assert files[1:] == ["run/output/facts-1-abcde.log", "run/output/health_check-1-abcde.log"]


def test_what_sounds_secret_in_the_environment_is_hidden():
    things = [job("n-1", HF_TOKEN="abc123456789", NCCL_DEBUG="INFO", S3_SECRET_KEY="xyz")]
    assert node_evidence.secrets_in(things) == {"abc123456789", "xyz"}
