"""What the letter of an acceptance says, from acceptance.json and the reports of its runs."""

import html
import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.acceptance.letter import letter_html

from tests.kit.accepted_fleet import FIRST, SECOND, accepted_fleet
from tests.kit.builders import healthy, judge, make_run

DIGEST = "e" * 64


@pytest.fixture(scope="module")
def report():
    run = make_run([f"node-{number}" for number in range(8)], gpu_count=8)
    return judge(run, healthy(run))


def words_of(acceptance, reports):
    """The text of the page, without its head."""
    body = letter_html(acceptance, DIGEST, reports).partition("<body")[2].partition(">")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_every_node_stands_in_its_rack_with_its_serial(report):
    acceptance, reports = accepted_fleet(report, 16)
    text = words_of(acceptance, reports)
    for node in acceptance["nodes"]:
        assert f"{node['name']} " in text
        assert node["identity"]["serial"] in text
    assert "r001 FAIL 7 of 8 gpu-r001-n1" in text
    assert "r002 PASS 8 of 8 gpu-r002-n1" in text
    acceptance["nodes"][9]["verdict"] = "INCOMPLETE"
    assert "r002 INCOMPLETE 7 of 8 gpu-r002-n1" in words_of(acceptance, reports)


def test_what_was_ordered_counts_the_gpus_that_were_declared(report):
    acceptance, reports = accepted_fleet(report, 16)
    for node in acceptance["nodes"]:
        node["sku"] = "h200"
    reports[FIRST]["nodes"][3]["gpus"] = 4
    assert re.search(r"h200 [^[]*? 8 15 120 14 h200 [^[]*? 4 1 4 1 Racks", words_of(acceptance, reports))


def test_a_node_that_the_first_run_lacks_has_the_gpus_of_the_run_that_accepts_it(report):
    acceptance, reports = accepted_fleet(report, 16)
    for node in acceptance["nodes"]:
        node["sku"] = "h200"
    reports[FIRST]["nodes"] = [node for node in reports[FIRST]["nodes"] if node["name"] != "gpu-r001-n3"]
    assert re.search(r"h200 [^[]*? 8 16 128 15 Racks", words_of(acceptance, reports))


def test_a_node_that_was_removed_is_named(report):
    acceptance, reports = accepted_fleet(report, 8)
    assert "Not expected" not in words_of(acceptance, reports)
    removed = {**acceptance["repairs"][0], "node": "gpu-r001-n9", "part": "node", "action": "removed"}
    acceptance["repairs"].append(removed)
    text = words_of(acceptance, reports)
    assert "Not expected any more: gpu-r001-n9 (removed 2026-11-04T09:00:00Z, by K. Weber)." in text


def test_exceptions_stand_in_full(report):
    text = words_of(*accepted_fleet(report, 8))
    assert "Exceptions 3 of 8 nodes" in text
    assert "Declared: gpu:3: replaced, 2026-11-04T09:00:00Z, by K. Weber. Accepted by run acceptance-2." in text
    assert "Replaced: S4X999999 by S4X000004, last seen in run acceptance-1." in text
    assert "a GPU changed after run acceptance-1. Next: `make validate" in text
    assert "gpu serial 1654981702272 went, seen in run acceptance-2." in text


def test_every_run_of_each_node_is_named(report):
    acceptance, reports = accepted_fleet(report, 8)
    text = words_of(acceptance, reports)
    assert "acceptance-1 FAIL gpu_faulty (settled), acceptance-2 PASS (accepts): gpu-r001-n3, gpu-r001-n5" in text
    assert "acceptance-1 PASS (counts): gpu-r001-n7" in text
    assert all(run["report_sha256"] in text for run in acceptance["runs"])
    assert f"{'d' * 64} key {'5f' * 32}: verified" in text
    acceptance["runs"][0]["bundle"]["signatures"] = []
    assert f"{'d' * 64} not signed" in words_of(acceptance, reports)


def test_evidence_that_only_the_store_confirms_is_marked(report):
    acceptance, reports = accepted_fleet(report, 8)
    for node in reports[FIRST]["nodes"]:
        node["stages"] = [{**stage, "confirmed_by": "node"} for stage in node["stages"]]
    reports[SECOND]["nodes"][0]["stages"][0]["confirmed_by"] = "store only"
    first = reports[SECOND]["nodes"][0]
    text = words_of(acceptance, reports)
    name = f"{first['name']} {first['stages'][0]['name']}"
    assert f"1 stages store only (no other channel confirms their digests): {name}" in text
    assert "stages confirmed by node" in text


def test_limits_have_numbered_sources(report):
    acceptance, reports = accepted_fleet(report, 8)
    loss = {"stage": "training", "metric": "training_tokens_per_second", "title": "training", "nodes": 8, "kind": ""}
    reports[FIRST]["fleet"] = {**report["fleet"], "power": [{**loss, "node": 0.042, "burst_seconds": None}]}
    limit = {"severity": "required", "metric": loss["metric"], "expected": "at least 7 tokens/s", "source": "a sheet"}
    for node in reports[FIRST]["nodes"]:
        node["checks"] = [{**node["checks"][0], **limit, "name": "training_speed"}]
    text = words_of(acceptance, reports)
    assert "training 4.2 % (8 nodes) at least 7 tokens/s [1]" in text
    assert "[1] a sheet" in text
    assert f"acceptance.json {DIGEST}" in text
