"""Playbooks of gangs alone need two hosts and accept no node; a hostfile has the nodes accepted, and the conditions."""

import json

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder, opening
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import write_hostfile

from tests.kit.builders import facts_record, make_run, metric
from tests.kit.gang_actions import open_run, write_hostfile_of
from tests.kit.gang_bed import Bed, Fault, build


@pytest.mark.parametrize("alone", [True, False])
def test_two_hosts_are_needed_and_no_node_is_accepted(tmp_path, alone):
    done, _ = open_run(tmp_path / "results", "one", ["node-1"], alone=alone)
    assert done.failed == alone, done.text
    if alone:
        assert "fabric: 1 host, and a gang has two or more" in done.text
    done, run = open_run(tmp_path / "results", "two", ["node-1", "node-2"], alone=alone)
    assert not done.failed, done.text
    assert run["narrowed_by"] == (["stages"] if alone else [])
    assert verdict.run_verdict(["PASS", "PASS"], narrowed=bool(run["narrowed_by"])) == ("PARTIAL" if alone else "PASS")
    assert run["nodes"]["node-1"]["gang_stages"] == ["fabric"]
    assert run["workloads"]["fabric"] == "fabric"


def test_one_that_is_chosen_among_others_misses_its_gangs_and_the_run_says_so(tmp_path):
    done, run = open_run(tmp_path / "results", "one", ["node-1"], alone=False, limit="node-1")
    assert not done.failed, done.text
    assert "--limit leaves node-1 alone: fabric need two nodes and are left out" in done.text
    assert run["narrowed_by"] == ["limit", "stages"]
    assert open_run(tmp_path / "results", "two", ["node-1", "node-2"], alone=False, limit="node-1")[1][
        "narrowed_by"
    ] == ["limit"]


def test_a_tag_of_a_gang_on_one_host_says_what_it_needs(tmp_path):
    done, _ = open_run(tmp_path / "results", "one", ["node-1"], alone=False, run_tags=["facts", "fabric"])
    assert "--tags fabric: 1 host, and a gang has two or more" in done.text


def test_tags_that_leave_no_gang_are_refused(tmp_path):
    done, _ = open_run(tmp_path / "results", "one", ["node-1", "node-2"], alone=True, run_tags=["facts"])
    assert done.failed
    assert "the tags leave no stage of gangs to run: fabric" in done.text


@pytest.mark.parametrize("name", ["fabric", "deepspeed"])
def test_the_playbooks_say_so(name):
    (imported,) = yaml.safe_load((criteria.COLLECTION / f"playbooks/{name}.yml").read_text())
    assert imported["vars"]["run_gangs_alone"] is True


def test_pairs_are_part_of_standard_and_burnin():
    gang_stages = {name: profile.gang_stages for name, profile in stages.profiles().items()}
    whole = ["collective", "collective_nvlink", "deepspeed", "fabric", "fabric_nvlink"]
    long = ["collective", "collective_nvlink", "deepspeed", "rdma_rails", "fabric", "fabric_nvlink"]
    assert gang_stages == {"quick": [], "standard": whole, "burnin": long, "soak": long}


def test_who_joins_a_run_of_gangs_alone_narrows_it():
    wanted = make_run(("node-2",), narrowed_by=["stages", "limit"])
    assert opening.merge(make_run(), wanted)[0]["narrowed_by"] == ["stages"]


def test_a_node_at_the_end_of_a_bad_link_is_in_no_hostfile(tmp_path):
    gang = build(8, 1, rack=0, noise=0.0)
    gang.links[frozenset(("node-002", "node-003"))] = Fault("slow", 0.4)
    bed = Bed(tmp_path, gang, stages=["fabric"])
    run = bed.folder.read_run()
    for node, expected in run["nodes"].items():
        expected.update(sku="cpu", gpu_count=0)
        facts = facts_record(node, vendor="cpu", gpus=0, run_id="run-1")
        facts["metrics"].append(metric("gpu_without_driver_count", 0))
        folder.write_json(bed.folder.evidence_file(node, "facts"), facts)
    bed.folder.write_run({**run, "narrowed_by": ["stages"]})
    bed.go()
    done = write_hostfile_of(bed)
    assert not done.failed, done.text
    written = (bed.folder.path / "hostfile").read_text()
    assert written == "".join(f"10.0.0.{place} slots=1\n" for place in (1, 4, 5, 6, 7, 8))
    assert "node-002 is left out: its verdict is INCOMPLETE: fabric_bad_links" in done.text
    assert "run run-1 was narrowed (stages)" in done.text


def test_what_a_hostfile_is_warned_of():
    run = make_run(finished_at="2026-11-02T10:00:00Z")
    (remark,) = write_hostfile.unsettled(run, None, [])
    assert "it is unknown whether its nodes can work together" in remark
    assert "narrowed (limit)" in write_hostfile.unsettled({**run, "narrowed_by": ["limit"]}, None, [])[0]
    nodes = [{"name": "node-1", "verdict": "PASS", "unproven": ["training"]}]
    assert "less than an acceptance needs: node-1" in write_hostfile.unsettled(run, None, nodes)[0]
    assert "not finished" in write_hostfile.unsettled({**run, "finished_at": None}, None, [])[0]
    asked = json.loads(json.dumps(run))
    asked["nodes"]["node-1"]["gang_stages"] = ["fabric"]
    for document, words in ((None, 1), ({"ended_at": None}, 1), ({"ended_at": "x"}, 0)):
        assert len(write_hostfile.unsettled(asked, document, [])) == words
