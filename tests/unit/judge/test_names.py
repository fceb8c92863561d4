"""What is judged of a machine does not depend on the names of nodes: on their order, or on numbers in them."""

import random

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import correlation
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis.distribution import (
    FigureSample,
    Key,
    Samples,
    samples,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.stage_end import FailedStage, find_shared

from tests.kit.judged_fleets.fleet import Fleet


def _verdicts_of_clones(order):
    """By machine the verdict on it; all have the id of one disk, and the first one hides its serial."""
    names = [f"n{number:02}" for number in range(70)]
    cloned = Fleet(names, stages=["facts"], checks=[])
    for machine, name in zip(order, names, strict=True):
        serial = f"S-{machine:02}" if machine else None
        cloned.facts(name)["identity"] = {"machine_id": "cloned", "serial": serial, "gpu_uuids": []}
    nodes = cloned.judged(alone=False)["report"]["nodes"]
    return {machine: (node["verdict"], node["class"]) for machine, node in zip(order, nodes, strict=True)}


def test_clones_are_told_apart_alike_in_each_order_of_names():
    order = list(range(70))
    expected = _verdicts_of_clones(order)
    for seed in range(2):
        random.Random(seed).shuffle(order)
        assert _verdicts_of_clones(order) == expected


@pytest.mark.parametrize("names", [("n1", "n2", "n3"), ("n1.dc1", "n2.dc1", "n3.dc1"), ("alpha", "beta", "gamma")])
@pytest.mark.parametrize("text", ["{} refused", "{}.dc1.example.com refused", "container run-1-{} refused", "at {}:22"])
def test_nodes_that_fail_alike_share_it_whatever_their_names(names, text):
    ends = [FailedStage(name, "training", "crash", text.format(name)) for name in names]
    assert len(find_shared(ends, {"training": 3})) == 3


def _figure(order, revision_of=lambda machine: 1):
    nodes = [
        {
            "name": f"n{place}", "catalogue_sku": "h200", "accelerator": "nvidia", "identity": {},
            "stages": [{"name": "training", "state": "success"}],
            "metrics": {"training": [
                {"name": "speed", "value": 1.0 + machine, "unit": "", "scope": f"gpu:{part}",
                 "revision": revision_of(machine)}
                for part in range(1 + machine % 2)
            ]},
        }
        for place, machine in enumerate(order)
    ]  # fmt: skip
    reported = samples(nodes)
    (key,) = reported.figures
    sample = reported.figures[key]
    return sorted(value for value, _ in sample.values), sample.missing(reported.asked[key.stage, key.kind])


def test_a_tie_between_numbers_of_parts_or_revisions_is_decided_alike():
    orders = [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert [_figure(order)[1] for order in orders] == [2, 2]
    newer = [_figure(order, lambda machine: 1 + machine // 2) for order in orders]
    assert newer[0] == newer[1]
    assert newer[0][0] == [3.0, 4.0, 4.0]


def test_a_correlation_over_more_places_than_are_compared_is_the_same_in_each_order():
    draw = random.Random(7)
    machines = [(draw.random(), draw.random()) for _ in range(2 * correlation.MAX_PLACES)]
    keys = [Key("training", name, "node", "", "h200") for name in ("speed", "heat")]
    found = []
    for seed in range(2):
        random.Random(seed).shuffle(machines)
        figures = {
            key: FigureSample(
                [speed + share * noise for speed, noise in machines],
                [(place, "node") for place in range(len(machines))],
            )
            for key, share in zip(keys, (0, 0.3), strict=True)
        }
        found.append([pair.rho for pair in correlation.correlate(Samples(figures, {}))[0]])
    assert found[0] == found[1] != []
