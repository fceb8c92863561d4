"""The evidence of gangs as the verdict takes it: that of the last round alone, and nothing in its place."""

import copy
import shutil
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence as gang_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import forming, rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.builders import LAUNCHED, TIME, make_record, make_run
from tests.kit.gang_bed import Bed, Fault, build


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Six nodes of which the third is slow and the fifth was unfit; never written to."""
    gang = build(7, 1, rack=0, noise=0.0)
    gang.bad["node-003"] = Fault("slow", 0.5)
    bed = Bed(tmp_path_factory.mktemp("ended"), gang, unfit=["node-005"])
    bed.go()
    assert bed.verdicts() == dict.fromkeys(gang.nodes, "PASS") | {"node-003": "FAIL", "node-005": "FAIL"}
    return bed


@pytest.fixture
def bed(ended, tmp_path):
    return copied(ended, tmp_path / "copy")


def copied(ended, path):
    bed = copy.copy(ended)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(ended.folder.path, path / "run-1")
    bed.folder = run_folder.RunFolder(path / "run-1")
    return bed


def evidence_files(bed):
    return sorted(
        path.relative_to(bed.folder.path) for path in bed.folder.path.rglob("nodes/*/*.json") if path.is_file()
    )


def better(before, after):
    """Nodes that came nearer to PASS."""
    return [name for name, verdict in after.items() if verdict == "PASS" != before[name]]


KEEP = settings(
    max_examples=40, suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)


@KEEP
@given(data=st.data())
def test_records_that_are_gone_accept_no_node(ended, tmp_path, data):
    bed = copied(ended, tmp_path / "less")
    before = bed.verdicts()
    files = evidence_files(bed)
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=4, unique=True)):
        (bed.folder.path / path).unlink()
    assert not better(before, bed.verdicts())


@KEEP
@given(data=st.data())
def test_a_round_or_the_whole_document_that_is_gone_accepts_no_node(ended, tmp_path, data):
    bed = copied(ended, tmp_path / "less")
    before = bed.verdicts()
    what = data.draw(st.sampled_from(["document", "run.json", "round", "entry", "findings"]))
    document = bed.document
    name = data.draw(st.sampled_from([item["name"] for item in document["rounds"]]))
    if what == "document":
        bed.folder.gangs_file.unlink()
    elif what == "run.json":
        bed.below(name).run_file.unlink()
    elif what == "round":
        shutil.rmtree(bed.below(name).path)
    elif what == "findings":
        document["findings"].clear()
        gang_document.write(bed.folder, document)
    else:
        document["rounds"] = [item for item in document["rounds"] if item["name"] != name]
        gang_document.write(bed.folder, document)
    after = bed.verdicts()
    assert not better(before, after)
    if what == "document":
        assert "PASS" not in after.values()


@KEEP
@given(data=st.data())
def test_members_left_out_are_never_accepted(ended, tmp_path, data):
    bed = copied(ended, tmp_path / "left")
    document = bed.document
    names = data.draw(st.lists(st.sampled_from(bed.gang.nodes), min_size=1, max_size=6, unique=True))
    for name in names:
        document["left_out"][name] = "its driver is another one"
        for listed in (*document["gangs"].values(), *(item["gangs"] for item in document["rounds"])):
            for members in [listed] if isinstance(listed, list) else listed.values():
                members[:] = [one for one in members if (one if isinstance(one, str) else one["node"]) != name]
    document["gangs"] = {name: members for name, members in document["gangs"].items() if len(members) > 1}
    for item in document["rounds"]:
        item["gangs"] = {name: members for name, members in item["gangs"].items() if len(members) > 1}
    document |= {"searches": {}, "findings": {}}
    gang_document.write(bed.folder, document)
    verdicts = bed.verdicts()
    assert all(verdicts[name] != "PASS" for name in names)


def put(bed, changes):
    path = bed.below("all-again").evidence_file("node-001", "collective")
    record = {**run_folder.read_json(path), **changes}
    run_folder.write_json(path, record)


@pytest.mark.parametrize(
    "forged",
    [
        {"run_id": "run-1"},
        {"run_id": "run-1.all"},
        {"run_id": "run-2.all-again"},
        {"node": "node-002"},
        {"stage": "deepspeed"},
        {"schema": "gpuval.record/2"},
        {"attempts": [make_record("node-001", "collective", run_id="run-1.all")]},
    ],
)
def test_a_record_of_something_else_is_refused(bed, forged):
    put(bed, forged)
    assert bed.verdicts()["node-001"] == "INCOMPLETE"
    report = bed.judge(bed.document)
    assert any("refused" in one["reason"] and one["node"] == "node-001" for one in report["fleet"]["problems"])


@pytest.mark.parametrize("source", ["all", "search-01"])
def test_a_record_of_another_round_is_none_of_the_last(bed, source):
    stage = "collective" if source == "all" else "fabric"
    below = bed.below("all-again")
    shutil.copy(bed.below(source).evidence_file("node-001", stage), below.evidence_file("node-001", "collective"))
    assert bed.verdicts()["node-001"] == "INCOMPLETE"


def test_a_record_of_a_gangs_stage_in_the_runs_own_place_counts_for_nothing(bed):
    record = run_folder.read_json(bed.below("all-again").evidence_file("node-001", "collective"))
    bed.below("all-again").evidence_file("node-001", "collective").unlink()
    for stage in ("collective", "fabric"):
        path = bed.folder.evidence_file("node-001", stage)
        run_folder.write_json(path, {**record, "run_id": "run-1", "stage": stage})
    assert bed.verdicts()["node-001"] == "INCOMPLETE"


def test_what_a_node_writes_as_its_finding_does_not_change_it(bed):
    record = make_record("node-003", "fabric", run_id="run-1", message="healthy")
    run_folder.write_json(bed.folder.evidence_file("node-003", "fabric"), record)
    assert bed.verdicts()["node-003"] == "FAIL"


def test_the_first_round_does_not_stand_in_for_one_that_did_not_end(bed):
    for path in bed.below("all-again").path.glob("nodes/*/collective.json"):
        path.unlink()
    assert "PASS" not in bed.verdicts().values()


@pytest.mark.parametrize("lost", ["run.json", "all", "launches"])
def test_an_earlier_round_that_is_gone_accepts_no_node_and_is_named(bed, lost):
    """It may have had a fault of the node, which no later round takes back."""
    first = bed.below("all")
    for place in ("all", "all-again"):
        for node in bed.below(place).read_run()["nodes"]:
            run_folder.write_json(bed.below(place).launch_file(node), LAUNCHED)
    assert bed.verdicts()["node-001"] == "PASS"
    if lost == "run.json":
        first.run_file.unlink()
    elif lost == "all":
        shutil.rmtree(first.path)
    else:
        shutil.rmtree(first.state / "launches")
        first.evidence_file("node-001", "collective").unlink()
    node = next(node for node in bed.judge(bed.document)["nodes"] if node["name"] == "node-001")
    assert node["verdict"] == "INCOMPLETE"
    assert "round all" in str(node["problems"])
    again = next(node for node in bed.judge(bed.document)["nodes"] if node["name"] == "node-003")
    assert again["verdict"] == "FAIL"  # what the search found of it stays


def test_who_was_never_started_in_an_earlier_round_is_judged_by_the_last(bed):
    first = bed.below("all")
    first.evidence_file("node-001", "collective").unlink()
    run_folder.write_json(first.launch_file("node-001"), {"state": "unreachable", "message": "no route to host"})
    assert bed.verdicts()["node-001"] == "PASS"


def test_why_there_is_no_record_is_reported(bed):
    below = bed.below("all-again")
    below.evidence_file("node-001", "collective").unlink()
    run_folder.write_json(below.launch_file("node-001"), {"state": "unreachable", "message": "no route to host"})
    below.evidence_file("node-002", "collective").unlink()
    run_folder.write_json(below.launch_file("node-002"), {"state": "failed"})
    found = {node["name"]: node for node in bed.judge(bed.document)["nodes"]}
    reasons = {name: str(found[name]["problems"]) for name in ("node-001", "node-002", "node-005")}
    assert "not started in its gang (unreachable): no route to host" in reasons["node-001"]
    assert "not started in its gang (failed)" in reasons["node-002"]
    assert "left out of the gangs: its own stages ended FAIL" in reasons["node-005"]


@pytest.mark.parametrize("name", ["suspended", "slurm_pending", "unreachable"])
def test_the_class_and_remedy_of_a_launch_in_a_gang_reach_the_verdict(bed, name):
    below, row = bed.below("all-again"), failure_classes.row_of(name)
    below.evidence_file("node-001", "collective").unlink()
    launch = {"state": "failed", "class": name, "message": "waits for queue gangs", "remedy": row.remedy}
    run_folder.write_json(below.launch_file("node-001"), launch)
    node = next(node for node in bed.judge(bed.document)["nodes"] if node["name"] == "node-001")
    (state,) = [check for check in node["checks"] if check["name"] == "collective_state"]
    assert (node["verdict"], node["class"], state["class"]) == ("INCOMPLETE", name, name)
    assert state["reason"] == "not started in its gang (failed): waits for queue gangs"
    steps, others = row.steps.replace("{node}", "node-001"), "then validate again with others of its kind"
    assert state["remedy"].startswith(f"{steps}, {others}" if row.repeats else steps)
    assert "{" not in state["remedy"] and ".log" not in state["remedy"]


def test_a_node_that_joined_later_learns_that_it_is_in_no_gang(bed):
    run = bed.folder.read_run()
    run["nodes"]["node-099"] = copy.deepcopy(run["nodes"]["node-001"])
    bed.folder.write_run(run)
    node = next(node for node in bed.judge(bed.document)["nodes"] if node["name"] == "node-099")
    assert node["verdict"] == "INCOMPLETE"
    assert gang_evidence.JOINED_LATE in str(node["problems"])


def test_without_gangs_nodes_are_judged_by_themselves(bed):
    report = bed.judge(None)
    assert {node["name"]: node["verdict"] for node in report["nodes"]} == (
        dict.fromkeys(bed.gang.nodes, "PASS") | {"node-005": "FAIL"}
    )


def test_evidence_is_laid_out_where_people_look_and_that_of_earlier_rounds_is_not(bed):
    document, run = bed.document, bed.folder.read_run()
    gang_evidence.lay_out(bed.folder, run, document)
    read = {
        node: run_folder.read_json(bed.folder.evidence_file(node, "collective")) for node in ("node-001", "node-003")
    }
    assert {node: record["run_id"] for node, record in read.items()} == {
        "node-001": "run-1.all-again", "node-003": "run-1.all",
    }  # fmt: skip
    bed.below("all-again").evidence_file("node-001", "collective").unlink()
    gang_evidence.lay_out(bed.folder, run, document)
    assert not bed.folder.evidence_file("node-001", "collective").exists()
    assert "node-003 " not in run_folder.read_json(bed.folder.evidence_file("node-001", "fabric"))["message"]


def test_stages_of_a_gang_are_expected_of_all_but_those_that_are_alone():
    run = make_run(("node-1", "node-2", "node-3"), stages=["facts"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    document = {"gangs": {"all": []}, "alone": ["node-3"], "findings": {"all": {"nodes": {"node-1": "healthy"}}}}
    expected = gang_evidence.expected(run, document)
    assert {name: node["stages"] for name, node in expected["nodes"].items()} == {
        "node-1": ["facts", "collective", "fabric"], "node-2": ["facts", "collective"], "node-3": ["facts"],
    }  # fmt: skip
    assert run["nodes"]["node-1"]["stages"] == ["facts"]
    assert gang_evidence.expected(run, None)["nodes"]["node-3"]["stages"] == ["facts", "collective"]


COUNT = 1000


def test_a_thousand_nodes_take_seconds(tmp_path):
    """One gang, every record of it refused before, every node of it suspect: the most that there is to say."""
    nodes = [f"node-{number:04}.example.com" for number in range(COUNT)]
    folder = run_folder.RunFolder(tmp_path / "run-1")
    run = make_run(nodes, stages=["facts"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    began = time.process_time()
    candidates = [
        forming.Candidate(node, "PASS", "10.0.0.1", 8, labels={"sku": "h200"}, software={"driver": "580"})
        for node in nodes
    ]
    formation = forming.form(candidates)
    forming.alone(candidates)
    assert len(next(iter(formation.gangs.values()))) == COUNT
    members = [{"node": one.node, "address": one.address, "slots": 8, "vendor": "nvidia"} for one in candidates]
    ports = {"port": 29500, "ssh_port": 3022}
    below = gang_document.round_folder(folder, "all")
    of_round = rounds.round_run(run, "all", {"all": members}, ["collective"], **ports, seconds=9, created_at=TIME)
    below.write_run(of_round)
    formed = time.process_time() - began
    for node in nodes:
        run_folder.write_json(below.launch_file(node), LAUNCHED)
        run_folder.write_json(
            below.evidence_file(node, "collective"), make_record(node, "collective", run_id="run-1.all")
        )
    problems = [
        {"node": node, "stage": "collective", "reason": f"record refused: {node} " + "x" * 100} for node in nodes
    ]
    run_folder.write_json(below.problems_file, problems)
    found = {
        "name": "all", "why": "", "began_at": TIME, "ended_at": TIME, "rounds": 9, "pairs": 9, "seconds": 9.0,
        "nodes": dict.fromkeys(nodes, "suspect"), "suspect_links": [], "bad_boundaries": [], "suspect_boundaries": [],
        "bad_links": [list(pair) for pair in zip(nodes[::2], nodes[1::2], strict=True)], "stopped": "", "gang": [],
    }  # fmt: skip
    found["evidence"] = {node: ["slow with all"] for node in nodes}
    found["evidence"] |= {" - ".join(link): ["slow; both are right with others"] for link in found["bad_links"]}
    document = {
        "schema": gang_document.SCHEMA, "formed_at": TIME, "ended_at": TIME, "gangs": {"all": members}, "left_out": {},
        "alone": [], "rounds": [{"name": "all", "kind": "gangs", "gangs": {"all": nodes}, "ended_at": TIME}],
        "searches": {}, "findings": {"all": found},
    }  # fmt: skip
    schemas.validate("gangs", document, what="gangs")
    began, evidence = time.process_time(), RunEvidence()
    gang_evidence.take(evidence, folder, gang_evidence.expected(run, document), document)
    took = time.process_time() - began
    assert len(evidence.records) == COUNT
    assert len(evidence.problems) == COUNT
    assert evidence.records[nodes[0]]["fabric"]["message"].count("slow") == 2
    assert formed < 10
    assert took < 10
    print(f"formed in {formed:.2f} s, taken in {took:.2f} s")


LOST = {"class": "lost_contact", "message": "lost contact: no sign for 300 s; ssh: no route to host", "remedy": "power"}


def lost_in(bed, place, name, *, record):
    """A member that its round has lost, with or without a record that it was at work."""
    below = bed.below(place)
    run_folder.write_json(below.launch_file(name), {**LAUNCHED, "contact": LOST})
    path = below.evidence_file(name, "collective")
    if record:
        run_folder.write_json(path, {**run_folder.read_json(path), "state": "running", "finished_at": None})
    else:
        path.unlink()


def node_of(bed, name):
    (node,) = [one for one in bed.judge(bed.document)["nodes"] if one["name"] == name]
    return node


@pytest.mark.parametrize("record", [True, False])
def test_why_a_member_was_lost_is_in_its_verdict(bed, record):
    lost_in(bed, "all-again", "node-002", record=record)
    node = node_of(bed, "node-002")
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "lost_contact")
    (entry,) = [one for one in node["checks"] if one["name"] == "collective_state"]
    assert "no sign for 300 s; ssh: no route to host" in entry["reason"]
    assert entry["remedy"] == "power"
    assert node_of(bed, "node-001")["verdict"] == "PASS"


def test_so_it_is_where_it_was_lost_in_a_round_before(bed):
    lost_in(bed, "all", "node-002", record=False)
    assert "no route to host" in next(one["reason"] for one in node_of(bed, "node-002")["problems"])


def test_contact_that_the_run_itself_lost_explains_no_round(bed):
    run_folder.write_json(bed.folder.launch_file("node-002"), {**LAUNCHED, "contact": LOST})
    lost_in(bed, "all-again", "node-002", record=True)
    run_folder.write_json(bed.below("all-again").launch_file("node-002"), LAUNCHED)
    assert node_of(bed, "node-002")["class"] == "collective_running"
