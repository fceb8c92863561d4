"""An acceptance of many nodes, with what a letter shows: accepted, repaired, replaced and failed nodes."""

import copy
import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.fleet import ROOT

EXAMPLE = ROOT / "tests/data/acceptance/example.json"
FIRST, SECOND = "acceptance-1", "acceptance-2"
BUNDLE = {"root_digest": "d" * 64, "signatures": [{"keyid": "5f" * 32, "state": "verified"}]}


def accepted_fleet(report, count):
    """acceptance.json of `count` nodes and the reports of its two runs, from the nodes of a report that has eight or
    more. In the first run, node 3 and each twelfth from 15 on fail and are repaired, 5 is replaced, 7 lost a GPU and is
    not accepted."""
    example = json.loads(EXAMPLE.read_text())
    passed = [node for node in report["nodes"] if node["verdict"] == "PASS"]
    tested = []
    for number in range(count):
        node = copy.copy(passed[number % len(passed)])
        rack, place = divmod(number, 8)
        node |= {"name": f"gpu-r{rack + 1:03d}-n{place + 1}", "labels": {"rack": f"r{rack + 1:03d}"}}
        node["identity"] = {**node["identity"], "serial": f"S4X{number:06d}"}
        tested.append(node)
    nodes = [_node_of(node, example["nodes"][0], index) for index, node in enumerate(tested)]
    repaired = [node for index, node in enumerate(tested) if is_repaired(index)]
    good = count - len(repaired)
    reports = {FIRST: {**report, "nodes": tested}, SECOND: {**report, "nodes": repaired}}
    document = {**example, "first_run": FIRST, "verdict": "FAIL", "nodes": nodes}
    document["counts"] = {"expected": count, "PASS": count - 1, "FAIL": 1, "INCOMPLETE": 0, "repaired": len(repaired)}
    document["runs"] = copy.deepcopy(example["runs"])
    document["runs"][0] |= {"accepts": good - 1, "bundle": BUNDLE}
    document["runs"][0]["counts"] |= {"expected": count, "PASS": good, "FAIL": count - good, "INCOMPLETE": 0}
    document["runs"][1]["accepts"] = len(repaired)
    document["repairs"] = [{**example["repairs"][0], "node": nodes[2]["name"], "part": "gpu:3", "action": "replaced"}]
    schemas.validate("acceptance", document, what="the made acceptance")
    return document, reports


def is_repaired(index):
    return index == 4 or index % 12 == 2


def _node_of(tested, example, index):
    """A node of acceptance.json: most are accepted by the first run."""
    node = {**example, "name": tested["name"], "labels": tested["labels"], "identity": tested["identity"]}
    node |= {"sku": tested["catalogue_sku"], "run_id": FIRST, "runs": [_run_of(node, FIRST, "PASS", "accepts")]}
    if is_repaired(index):
        history = [_run_of(node, FIRST, "FAIL", "settled"), _run_of(node, SECOND, "PASS", "accepts")]
        neighbours = {"run_id": SECOND, "neighbours": ["gpu-r001-n1", "gpu-r001-n2"]}
        node |= {"repaired": True, "run_id": SECOND, "runs": history, "multi_node": {"collective": neighbours}}
    if index == 4:
        node["replaced"] = {"machine": "S4X999999", "by": node["identity"]["serial"], "run_id": FIRST}
    if index == 6:
        change = {"part": "gpu serial 1654981702272", "change": "went", "node": None, "run_id": SECOND}
        node |= {"verdict": "FAIL", "rule": "parts_changed", "reason": "a GPU changed after run acceptance-1"}
        node |= {"next": '`make validate ARGS="--limit gpu-r001-n7"`', "changes": [change]}
        node["runs"] = [_run_of(node, FIRST, "PASS", "counts")]
    return node


def _run_of(node, run_id, verdict, effect):
    failure = None if verdict == "PASS" else "gpu_faulty"
    times = {FIRST: "2026-11-02T12:00:00Z", SECOND: "2026-11-05T15:00:00Z"}
    shown = {"run_id": run_id, "name": node["name"], "at": times[run_id], "verdict": verdict}
    return {**shown, "class": failure, "whole": True, "effect": effect}
