"""Taking evidence away never accepts a node or a run that was not accepted; the order of nodes does not matter.

PASS is the best verdict of a node, and PASS or PARTIAL of a run. Without a piece of its evidence a node that was not
PASS does not become PASS, and neither does the run. (FAIL may become INCOMPLETE, when the proof of a failure is taken
away; and of two nodes that are one machine, the other is cleared, while the one without evidence, and so the run, is
not.)
It holds for records that give each metric of a part once: where they contradict themselves every value is judged.
"""

import copy
import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import speaks_of_node
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import healthy, judge, make_run, metric, standard_checks

NODES = ["node-1", "node-2"]
ACCEPTED = ("PASS", "PARTIAL")
STATES = ["success", "success", "success", "failure", "crash", "timeout", "skipped", "cancelled", "running", "pending"]
VALUES = st.one_of(
    st.none(), st.sampled_from([0, 1, 8, 599.9, 600, 1e9]), st.floats(allow_nan=False, allow_infinity=False)
)


@st.composite
def situations(draw, faults=("state", "metric", "attempt", "launch", "identity", "twin")):
    """A run and evidence of it, mostly sound, with a few things wrong."""
    gpus = draw(st.sampled_from([0, 1, 3]))
    run = make_run(
        NODES,
        sku=draw(st.sampled_from(["auto", "auto", "cpu", "h200"])),
        gpu_count=draw(st.sampled_from([None, gpus, gpus + 1])),
        narrowed_by=draw(st.sampled_from([[], ["limit"]])),
    )
    evidence = healthy(run, gpus=gpus, vendor="nvidia" if gpus else "cpu")
    for _ in range(draw(st.integers(0, 3))):
        node = draw(st.sampled_from(NODES))
        records = evidence.records[node]
        record = records[draw(st.sampled_from(sorted(records)))]
        fault = draw(st.sampled_from(faults))
        if fault == "state":
            record["state"] = draw(st.sampled_from(STATES))
            record["environment"]["fault"] = draw(st.sampled_from(["delivery", "other"]))
        elif fault == "metric" and record["metrics"]:
            index = draw(st.integers(0, len(record["metrics"]) - 1))
            record["metrics"][index] = {**record["metrics"][index], "value": draw(VALUES)}
        elif fault == "twice" and record["metrics"]:
            index = draw(st.integers(0, len(record["metrics"]) - 1))
            record["metrics"].append({**record["metrics"][index], "value": draw(VALUES)})
        elif fault == "attempt":
            earlier = copy.deepcopy(record)
            earlier.update(attempts=[], state=draw(st.sampled_from(STATES)))
            earlier["metrics"].append(metric("inference_requests_failed_count", draw(st.sampled_from([0, 1]))))
            record["attempts"] = [earlier]
            record["attempt"] = 2
        elif fault == "launch":
            state = draw(st.sampled_from(["unreachable", "refused", "failed", "unknown"]))
            evidence.launches[node] = {"state": state, "message": ""}
        elif fault == "twin":
            evidence.launches[node] = {"state": "refused", "message": "", "twin": draw(st.sampled_from([*NODES, "x"]))}
            for stage in draw(st.sampled_from([[], list(records)])):
                records[stage].update(state="pending", started_at=None, finished_at=None, metrics=[], attempts=[])
        elif fault == "identity":
            records["facts"]["environment"]["identity"] = evidence.records[NODES[0]]["facts"]["environment"]["identity"]
    return run, evidence


@st.composite
def removals(draw):
    """A situation, and the same without a piece of one node's evidence."""
    run, evidence = draw(situations())
    less = copy.deepcopy(evidence)
    node = draw(st.sampled_from(NODES))
    what = draw(st.sampled_from(["launch", "record", "metric", "name", "part", "all"]))
    if what in ("launch", "all"):
        less.launches.pop(node, None)
    if what == "all":
        less.records.pop(node)
        return run, evidence, less, node
    stage = draw(st.sampled_from(sorted(less.records[node])))
    record = less.records[node][stage]
    if what == "record":
        del less.records[node][stage]
    elif what != "launch" and record["metrics"]:
        chosen = draw(st.sampled_from(record["metrics"]))
        record["metrics"] = [
            one
            for one in record["metrics"]
            if not (
                (what == "metric" and one is chosen)
                or (what == "name" and one["name"] == chosen["name"])
                or (what == "part" and one["scope"] == chosen["scope"] != "node")
            )
        ]
    return run, evidence, less, node


@st.composite
def twins(draw):
    """A situation in which one node's machine refused to be it, since it was in the run as the other."""
    run, evidence = draw(situations(faults=("state", "metric", "attempt")))
    refused = draw(st.sampled_from(NODES))
    evidence.records.pop(refused)
    (other,) = set(NODES) - {refused}
    evidence.launches[refused] = {"state": "refused", "message": "", "twin": other}
    return run, evidence


@settings(max_examples=60)
@given(twins())
def test_a_claim_to_be_another_leaves_its_maker_incomplete_and_changes_nothing_of_the_other(case):
    run, evidence = case
    report = judge(run, evidence)
    (refused,) = [name for name, launch in evidence.launches.items() if "twin" in launch]
    (other,) = set(NODES) - {refused}
    assert _verdicts(report)[refused] == "INCOMPLETE"
    assert report["verdict"] in ("FAIL", "INCOMPLETE")
    del evidence.launches[refused]["twin"]
    assert _verdicts(report)[other] == _verdicts(judge(run, evidence))[other]


def _verdicts(report):
    return {node["name"]: node["verdict"] for node in report["nodes"]}


@settings(max_examples=200)
@given(removals())
def test_less_evidence_never_accepts(case):
    run, evidence, less, node = case
    before, after = judge(run, evidence), judge(run, less)
    checks = [
        entry for each in before["nodes"] for entry in each["checks"] if entry["kind"] in ("plausible", "coherent")
    ]
    if any(entry["verdict"] not in ("pass", "skipped") for entry in checks):
        # a figure that is not even required is impossible, or contradicts another; it may be the evidence that is gone
        return
    if _verdicts(before)[node] != "PASS":
        assert _verdicts(after)[node] != "PASS"
    if before["verdict"] not in ACCEPTED:
        assert after["verdict"] not in ACCEPTED


@settings(max_examples=50)
@given(situations(faults=("metric", "twice", "identity")), st.randoms(use_true_random=False))
def test_order_of_nodes_and_metrics_is_irrelevant(case, random):
    run, evidence = case
    shuffled_run, shuffled = copy.deepcopy(run), copy.deepcopy(evidence)
    names = list(run["nodes"])
    random.shuffle(names)
    shuffled_run["nodes"] = {name: run["nodes"][name] for name in names}
    shuffled.records = {name: evidence.records[name] for name in reversed(list(evidence.records))}
    assert judge(run, evidence) == judge(shuffled_run, shuffled)


@settings(max_examples=50)
@given(situations())
def test_report_follows_its_schema_and_survives_json(case):
    report = judge(*case)
    schemas.validate("report", report, what="report")
    assert json.loads(json.dumps(report, allow_nan=False)) == report


@settings(max_examples=60)
@given(situations())
def test_verdicts_agree_with_the_checks(case):
    report = judge(*case, standard_checks())
    for node in report["nodes"]:
        required = [entry for entry in node["checks"] if entry["severity"] == "required"]
        against = [entry for entry in required if entry["verdict"] in ("fail", "missing")]
        faults = [entry for entry in against if entry["verdict"] == "fail" and speaks_of_node(entry)]
        wanted = "FAIL" if faults else "INCOMPLETE" if against else "PASS"
        assert node["verdict"] == wanted
