"""Which nodes join a run that is open, and as what."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import new_nodes, nodes, placement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.dra import ClusterDevices
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView

from tests.kit.dra_objects import device_class, gpus, slice_of
from tests.kit.node_objects import node

RUN = {
    "gpu-1": {"stages": ["facts"], "sku": "ordered-h200", "gpu_count": 8, "id": "rack-1"},
    "cpu-1": {"stages": ["facts"], "sku": "auto", "gpu_count": None},
}


def h200(name, resources=8, **changes):
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200", **changes.pop("labels", {})}
    return node(name, labels=labels, resources={"nvidia.com/gpu": str(resources)} if resources else {}, **changes)


THERE = [nodes.describe(h200("gpu-1")), nodes.describe(node("cpu-1"))]


class Selector:
    """What the API server would choose, and how often it was asked."""

    def __init__(self, *chosen):
        self.chosen, self.asked = set(chosen), []

    def __call__(self, name):
        self.asked.append(name)
        return name in self.chosen


@pytest.fixture
def said():
    return []


def newcomers(selector, said, **ids):
    made = new_nodes.Newcomers(selector, {}, ids, said.append)
    made.know(["gpu-1", "cpu-1", "left-out"])
    return made


def ready(waiting):
    return waiting.ready(RUN, lambda: THERE, lambda _name: PodSettings())


def test_a_node_joins_as_what_the_run_expects_of_its_kind_with_its_own_id(said):
    waiting = newcomers(Selector("gpu-2", "cpu-2"), said, **{"gpu-2": "rack-2"})
    waiting.see("gpu-2", h200("gpu-2"))
    waiting.see("cpu-2", node("cpu-2"))
    assert ready(waiting) == {
        "cpu-2": ("cpu-1", {"stages": ["facts"], "sku": "auto", "gpu_count": None}),
        "gpu-2": ("gpu-1", {"stages": ["facts"], "sku": "ordered-h200", "gpu_count": 8, "id": "rack-2"}),
    }
    waiting.see("gpu-2", h200("gpu-2"))
    assert ready(waiting) == {}


def test_a_node_joins_with_the_labels_of_its_own(said):
    groups = {"topology.kubernetes.io/zone": "zone"}
    waiting = new_nodes.Newcomers(Selector("gpu-2"), {}, {}, said.append, groups)
    waiting.know(["gpu-1"])
    newcomer = h200("gpu-2")
    newcomer["metadata"]["labels"]["topology.kubernetes.io/zone"] = "eu-1b"
    waiting.see("gpu-2", newcomer)
    run = {"gpu-1": {**RUN["gpu-1"], "labels": {"zone": "eu-1a"}}}
    ((_, expected),) = waiting.ready(run, lambda: THERE, lambda _name: PodSettings()).values()
    assert expected["labels"] == {"zone": "eu-1b"}


def test_a_newcomer_is_asked_for_the_gangs_of_the_run_too(said):
    waiting = newcomers(Selector("gpu-2"), said)
    waiting.see("gpu-2", h200("gpu-2"))
    run = {"gpu-1": {**RUN["gpu-1"], "gang_stages": ["collective"]}}
    ((_, expected),) = waiting.ready(run, lambda: THERE, lambda _name: PodSettings()).values()
    assert expected["gang_stages"] == ["collective"], "else it would be accepted without them"


def test_what_was_there_before_and_left_out_does_not_join(said):
    selector = Selector("left-out", "gpu-1")
    waiting = newcomers(selector, said)
    waiting.see("left-out", h200("left-out"))
    waiting.see("gpu-1", h200("gpu-1"))
    assert ready(waiting) == {}
    assert selector.asked == []


def test_what_the_first_list_has_does_not_join(monkeypatch, tmp_path, said):
    """Nodes of the run, and those that --limit or the inventory leaves out: only what comes up later joins."""
    changes = [("Node", "ADDED", h200(name)) for name in ("gpu-1", "left-out")]
    changes += [(kind, "SYNC", {}) for kind in ("Job", "Pod", "Node", "Event")]
    streams = nullcontext(SimpleNamespace(take=lambda _seconds: changes, trouble=dict))
    monkeypatch.setattr(placement, "Streams", lambda *_arguments: streams)
    cluster = SimpleNamespace(namespace="gpuval", create=lambda _manifest: None)
    selector = Selector("gpu-1", "gpu-2", "left-out")
    run = {"run_id": "r", "nodes": {"gpu-1": RUN["gpu-1"]}}
    order = placement.PodOrder({"node": "gpu-1", "stages": []}, PodSettings(), "ordered-h200")
    folder = RunFolder(tmp_path / "r")
    run_folder.write_json(folder.plan_file("gpu-1"), order.plan)
    common = (run, folder, None, lambda *_arguments: order, ["gpu-1"], ["gpu-1"], said.append)
    placed = placement.ClusterPlacement(cluster, *common, newcomers=new_nodes.Newcomers(selector, {}, {}, said.append))
    placed.begin({"gpu-1": NodeView("gpu-1", order.plan, {})})
    assert placed.new_nodes() == {}
    changes[:] = [("Node", "ADDED", h200("gpu-2"))]
    placed.wait(0)
    assert list(placed.new_nodes()) == ["gpu-2"]
    assert selector.asked == ["gpu-2"]


def test_the_selector_is_asked_once_as_long_as_labels_stay(said):
    selector = Selector()
    waiting = newcomers(selector, said)
    for _ in range(3):
        waiting.see("gpu-2", h200("gpu-2"))
        assert ready(waiting) == {}
    selector.chosen.add("gpu-2")
    waiting.see("gpu-2", h200("gpu-2", labels={"pool": "gpu"}))
    assert list(ready(waiting)) == ["gpu-2"]
    assert selector.asked == ["gpu-2", "gpu-2"]
    assert said == []


@pytest.mark.parametrize(
    ("early", "reason"),
    [
        (h200("gpu-2", conditions={"Ready": {"status": "False", "reason": "KubeletNotReady"}}), "Ready is False"),
        (h200("gpu-2", unschedulable=True), "cordoned"),
        (node("gpu-2", labels={"nvidia.com/gpu.product": "NVIDIA-B300"}), "no node of the run is of its kind"),
        (h200("gpu-2", resources=8, allocatable={"nvidia.com/gpu": "0"}), "none of its 8"),
    ],
)
def test_one_that_is_not_ready_waits_and_says_why_once(said, early, reason):
    waiting = newcomers(Selector("gpu-2"), said)
    for _ in range(2):
        waiting.see("gpu-2", early)
        assert ready(waiting) == {}
    assert len(said) == 1
    assert reason in said[0]
    waiting.see("gpu-2", h200("gpu-2"))
    assert list(ready(waiting)) == ["gpu-2"]


def test_one_that_is_gone_again_does_not_join(said):
    waiting = newcomers(Selector("gpu-2"), said)
    waiting.see("gpu-2", h200("gpu-2"))
    waiting.see("gpu-2", None)
    assert ready(waiting) == {}


def test_an_api_server_that_does_not_answer_is_asked_again(said):
    answers = iter([RuntimeError("away"), True])

    def matches(_name):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    waiting = newcomers(matches, said)
    waiting.see("gpu-2", h200("gpu-2"))
    with pytest.raises(RuntimeError):
        ready(waiting)
    assert list(ready(waiting)) == ["gpu-2"]


def test_the_same_instance_type_comes_first():
    small = {"node.kubernetes.io/instance-type": "small"}
    others = [nodes.describe(one) for one in (node("a"), node("b", labels=small), h200("g", labels=small))]
    assert new_nodes.most_like(nodes.describe(node("new", labels=small)), others, {}) == "b"
    assert new_nodes.most_like(nodes.describe(node("new", labels={**small, "x": "y"})), others[:1], {}) == "a"


def test_a_node_that_publishes_its_gpus_by_dra_joins_once_it_does(said):
    slices, read = [], []

    def devices_for(_node):
        read.append(len(slices))
        return ClusterDevices(slices, [device_class()])

    def joined():
        return waiting.ready(RUN, lambda: THERE, lambda _name: PodSettings(), devices_for)

    waiting = newcomers(Selector("gpu-2"), said)
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    waiting.see("gpu-2", node("gpu-2", labels=labels))
    assert joined() == {} and read == [0]
    assert "no device plugin has registered" in said[-1]
    slices.append(slice_of("gpu-2", gpus(8)))
    waiting.see("gpu-2", node("gpu-2", labels=labels))
    assert joined() == {"gpu-2": ("gpu-1", {"stages": ["facts"], "sku": "ordered-h200", "gpu_count": 8})}
