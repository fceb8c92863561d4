"""Settings of gangs, and what the inventory and the report say of those who may be part of one."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import forming, keys, orchestrate, session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangNode, GangSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import clean_run

from tests.kit.builders import facts_record
from tests.kit.gang_bed import Bed, Died, Fault, build


def test_settings_of_shipped_defaults_are_valid():
    found = GangSettings()
    session.ensure_valid(found)
    assert (found.size, found.group_by, found.port, found.ssh_port) == (0, ("sku",), 29500, 3022)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 1}, "gpuval_gang_size 1"),
        ({"size": -2}, "gpuval_gang_size -2"),
        ({"port": 0}, "gpuval_gang_port 0"),
        ({"port": 65535}, "gpuval_gang_port 65535"),  # the one after it is the gang's line
        ({"ssh_port": 70000}, "gpuval_gang_ssh_port 70000"),
        ({"ssh_port": 29500}, "three different ports"),
        ({"ssh_port": 29501}, "three different ports"),
        ({"round_seconds": 0.0}, "round_seconds 0"),
        ({"search_seconds": 500.0, "search_round_seconds": 506.0}, "_search_seconds 500: a search needs 1518"),
        ({"search_seconds": -1.0, "search_round_seconds": float("nan")}, "search_seconds -1, search_round_seconds nan"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(changes, told):
    with pytest.raises(RunError, match=told):
        session.ensure_valid(GangSettings(**changes))


def test_where_the_others_reach_a_node():
    hostvars = {
        "a": {"ansible_host": "10.0.0.1"},
        "b": {"ansible_host": "10.0.0.2", "ssh_keys_addresses": ["192.168.0.2", "10.0.0.2"]},
        "c": {"ssh_keys_addresses": "c.example.com", "gpuval_gang_address": "ib-c", "gpuval_gang_slots": "4"},
    }
    hostvars["d"] = {}
    hostvars["k"] = {"kubernetes_node": {"addresses": {"InternalIP": "10.1.0.7", "Hostname": "k"}}}
    assert session.placed(dict.fromkeys("abcdek"), "abcdk", hostvars) == {
        "a": GangNode("10.0.0.1", 1), "b": GangNode("192.168.0.2", 1), "c": GangNode("ib-c", 4), "d": GangNode("d", 1),
        "k": GangNode("10.1.0.7", 1),
    }  # fmt: skip
    with pytest.raises(RunError, match="a: gpuval_gang_slots 'many' is not a whole number"):
        session.placed({"a": None}, "a", {"a": {"gpuval_gang_slots": "many"}})


def test_a_node_that_is_no_host_of_the_command_is_left_out_by_name(tmp_path):
    bed = Bed(tmp_path, build(4, 1, noise=0.0))
    run = bed.folder.read_run()
    run["nodes"]["node-004"]["joined_at"] = folder.now()
    bed.folder.write_run(run)
    bed.hosts = ["node-001", "node-002"]
    bed.go()
    assert bed.document["left_out"] == {"node-003": forming.NOT_HERE, "node-004": forming.JOINED}
    assert bed.verdicts() == {
        "node-001": "PASS", "node-002": "PASS", "node-003": "INCOMPLETE", "node-004": "INCOMPLETE",
    }  # fmt: skip
    assert bed.document["alone"] == []


def facts(bed, node, **fields):
    folder.write_json(bed.folder.evidence_file(node, "facts"), facts_record(node, run_id="run-1", **fields))


def candidates(bed):
    return [orchestrate.candidate(node, GangNode("10.0.0.1", 1), {}) for node in bed.judge(None)["nodes"]]


@pytest.mark.parametrize(
    "broken",
    [
        {"vendor": None, "gpus": 0},
        {"state": "crash"},
    ],
)
def test_the_other_one_of_a_pair_that_is_broken_is_not_accepted_without_a_gang(tmp_path, broken):
    bed = Bed(tmp_path, build(2, 1, noise=0.0))
    facts(bed, "node-002", **broken)
    bed.go()
    verdicts = bed.verdicts()
    assert bed.document["alone"] == []
    assert (verdicts["node-001"], verdicts["node-002"] == "PASS") == ("INCOMPLETE", False)


def test_a_candidate_is_what_its_own_stages_found(tmp_path):
    bed = Bed(tmp_path, build(2, 1, noise=0.0), labels={"node-002": {"rack": "r1"}})
    facts(bed, "node-001", vendor="cpu", gpus=0)
    one, two = candidates(bed)
    assert (one.verdict, one.labels["sku"], one.slots) == ("PASS", "cpu", 1)
    assert (two.verdict, two.labels["rack"], two.slots) == ("PASS", "r1", 8)
    assert forming.alone([one, two]) == ["node-001", "node-002"]


def searched(tmp_path):
    gang = build(4, 1, rack=0, noise=0.0)
    gang.bad["node-002"] = Fault("slow", 0.5)
    return Bed(tmp_path, gang)


def test_clean_finds_every_round_that_there_is(tmp_path):
    bed = searched(tmp_path)
    bed.dies_at = 12
    with pytest.raises(Died):
        bed.go()
    ids = {of_round["run_id"] for _folder, of_round in clean_run.rounds_of(bed.folder)}
    assert ids == {"run-1.all", "run-1.search-01"} == set(clean_run.round_ids_of(bed.folder))
    bed.folder.gangs_file.write_text("{")  # damaged: the rounds are there all the same
    bed.below("all").run_file.write_text("{")
    assert [of_round["run_id"] for _folder, of_round in clean_run.rounds_of(bed.folder)] == ["run-1.search-01"]
    assert clean_run.round_ids_of(bed.folder) == ["run-1.all", "run-1.search-01"]  # what they left on nodes goes, too
    bed.below("search-01").run_file.unlink()
    assert clean_run.round_ids_of(bed.folder) == ["run-1.all", "run-1.search-01"]
    keys.forget_all(bed.folder)
    assert not list(tmp_path.rglob("gang_keys.json"))
