"""Metrics of records in their compact form: the same for every reader, and small."""

import gc
import json
import pickle
import tracemalloc

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import metrics as compact_metrics
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import digest_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.metrics import CompactMetrics

from tests.kit.builders import accepted, make_record, metric

PARTS = [metric("training_tflops", 700.5 + gpu, "TFLOP/s", f"gpu:{gpu}") for gpu in range(8)]
PLAIN = [
    metric("gpu_count", 8),
    metric("gpu_count", 8.0, "count", "rank:0"),
    metric("count", 0),
    *PARTS,
    {**metric("loss", None, "loss"), "revision": 2},
]


@pytest.mark.parametrize("more", [[], [metric("large", (1 << 53) + 1)]], ids=["", "beyond floats"])
def test_they_are_those_that_were_reported(more):
    plain = [*more, *PLAIN]
    compact = CompactMetrics.of(plain)
    assert compact == plain and list(compact) == plain and compact != plain[1:]
    assert plain.__eq__(compact) is NotImplemented, "so that the other way round is the same"
    assert (len(compact), compact[0], compact[-1], compact[1:3]) == (len(plain), plain[0], plain[-1], plain[1:3])
    assert list(reversed(compact)) == plain[::-1]
    assert CompactMetrics.of(compact) is compact
    assert compact.named("training_tflops", "gpu") == PARTS and compact.named("training_tflops", "node") == []
    assert json.dumps(list(compact)) == json.dumps(plain), "8 stays 8, and no revision is added"


def test_what_nodes_have_in_common_is_there_once_also_from_another_process():
    first, second = CompactMetrics.of(PLAIN), CompactMetrics.of([{**one, "value": 1.5} for one in PLAIN])
    received = pickle.loads(pickle.dumps(first))
    assert first.form is second.form is received.form and received == PLAIN


def test_forms_that_nothing_uses_are_forgotten():
    before = len(compact_metrics._forms)
    used = CompactMetrics.of([metric("made_up_here", 1.0)])
    assert len(compact_metrics._forms) == before + 1
    del used
    gc.collect()
    assert len(compact_metrics._forms) == before


@pytest.mark.parametrize("revision", [2, 2.0])
def test_a_record_has_the_same_digest_whether_its_metrics_are_compact(revision):
    written = make_record(metrics=[*PLAIN, {**metric("rate", 1.0), "revision": revision}])
    of_node = accepted(written)
    compact = {**of_node, "metrics": CompactMetrics.of(of_node["metrics"])}
    assert digest_of(compact) == digest_of(of_node)
    assert type(of_node["metrics"][-1]["revision"]) is int


def test_a_thousand_nodes_need_a_fraction_of_the_memory():
    def reported(node):
        return [metric(f"figure_{number}", node + number / 7, "bytes/s", f"gpu:{number % 8}") for number in range(200)]

    sizes = []
    for form in (list, CompactMetrics.of):
        tracemalloc.start()
        kept = [form(reported(node)) for node in range(1000)]
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(kept) == 1000
    assert sizes[1] < sizes[0] / 4
