"""The example of acceptance.json, from which the letter is shown in tests and docs."""

import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.fleet import ROOT

EXAMPLE = ROOT / "tests/data/acceptance/example.json"


def test_the_example_follows_the_schema_and_its_counts_are_those_of_its_nodes():
    document = json.loads(EXAMPLE.read_text())
    schemas.validate("acceptance", document, what="the example")
    verdicts = [node["verdict"] for node in document["nodes"]]
    counts = {word: verdicts.count(word) for word in ("PASS", "FAIL", "INCOMPLETE")}
    assert document["counts"] == {"expected": len(verdicts), **counts, "repaired": 2}
    accepted = [node["run_id"] for node in document["nodes"] if node["verdict"] == "PASS"]
    assert [run["accepts"] for run in document["runs"]] == [accepted.count(run["run_id"]) for run in document["runs"]]
