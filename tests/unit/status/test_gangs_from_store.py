"""Gangs judged on a machine that has the store alone: the same verdict as that of the run's own controller."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence, rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import collect_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import stored_runs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import imported_run

from tests.kit.builders import LAUNCHED, SHIPPED, facts_record, make_record, make_run, metric
from tests.kit.judged_folder import report_on

NODES = ["node-1", "node-2", "node-3"]
STAGES = ["collective"]
ROUNDS = (("all", "gangs", NODES), ("search-01", "search", NODES[:2]), ("all-again", "again", NODES[:2]))
CHECKS = [one for one in SHIPPED if one.metric.startswith(("gang_", "fabric_"))]
WAYS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
AT = "2026-11-02T10:30:00Z"
FOUND = {
    "name": "all", "why": "slow", "began_at": AT, "ended_at": AT, "bad_links": [], "suspect_links": [],
    "nodes": {"node-1": "healthy", "node-2": "healthy", "node-3": "bad"}, "bad_boundaries": [],
    "suspect_boundaries": [], "gang": [], "evidence": {"node-3": ["41 GB/s, others have 350"]}, "rounds": 3,
    "pairs": 6, "seconds": 60.0, "stopped": "",
}  # fmt: skip


def members(names):
    return [{"node": name, "address": "10.0.0.1", "slots": 8, "vendor": "nvidia"} for name in names]


def collective(run, node, **fields):
    figures = [metric("gang_nodes_count", 2), metric("gang_absent_nodes_count", 0), metric("gang_processes_count", 16),
               metric("gang_collective_error_count", 0), metric("gang_network_unexpected_count", 0),
               metric("gang_collectives_count", len(WAYS)), metric("gang_collectives_left_out_count", 0),
               metric("gang_bus_over_ports_ratio", 0.87, "ratio"), metric("gang_gpu_direct_off_count", 0),
               *(metric(f"gang_{way}_bus_bytes_per_second", 350e9, "bytes/s") for way in WAYS)]  # fmt: skip
    gang = {"name": "all", "nodes": 2, "node": node, "leader": "node-1", "launcher": "torchrun", "joined": True}
    asked = {f"gang_{way}_asked": "yes" for way in WAYS}
    return make_record(node, "collective", metrics=figures, run_id=run["run_id"], environment={"gang": gang},
                       fingerprints={"gang_network": "IB", **asked}, **fields)  # fmt: skip


def put(store, key, document):
    store.put(key, document if isinstance(document, bytes) else json.dumps(document).encode())


def tell(store, run, folder):
    """As the watch tells the store."""
    publishing.put(store, run, publishing.RUN_FILE, run)
    nodes = {name: publishing.NodeUpdate({"stages": []}, folder.read_launch(name)) for name in run["nodes"]}
    document = publishing.watch_document(
        run, nodes, [], run_seconds=1, begun_seconds=1, window=(0, 0), silence_seconds=9, ended=True
    )
    publishing.DocumentPublisher(folder).publish(store, run, document, 0)


@pytest.fixture
def own(store, tmp_path):
    """The run's own controller, and what it has put into the store: node-3 was bad, the others ran again."""
    run = make_run(NODES, stages=["facts"], finished_at="2026-11-02T11:00:00Z")
    for node in run["nodes"].values():
        node["gang_stages"] = STAGES
    folder = run_folder.RunFolder(tmp_path / "own" / run["run_id"])
    folder.write_run(run)
    for node in NODES:
        run_folder.write_json(folder.launch_file(node), {"node": node, **LAUNCHED, "at": AT})
        put(store, f"folder/records/facts/{node}.json", facts_record(node))
    tell(store, run, folder)
    document = {
        "schema": gang_document.SCHEMA, "formed_at": AT, "ended_at": AT, "gangs": {"all": members(NODES)},
        "left_out": {}, "alone": [], "searches": {}, "findings": {"all": FOUND}, "rounds": [],
    }  # fmt: skip
    for name, kind, names in ROUNDS:
        document["rounds"].append({"name": name, "kind": kind, "gangs": {"all": names}, "ended_at": AT})
        below = gang_document.round_folder(folder, name)
        stages = ["fabric"] if kind == "search" else STAGES
        ports = {"port": 29500, "ssh_port": 3022}
        its = rounds.round_run(run, name, {"all": members(names)}, stages, **ports, seconds=60, created_at=AT)
        below.write_run(its)
        for node in names:
            state = "unreachable" if (name, node) == ("all", "node-3") else "started"
            run_folder.write_json(
                below.launch_file(node), {"node": node, **LAUNCHED, "state": state, "message": "no way", "at": AT}
            )
            if state == "started" and kind != "search":
                ended = "crash" if kind == "gangs" else "success"
                put(store, f"{its['folder']}/records/collective/{node}.json", collective(its, node, state=ended))
                put(store, f"{its['folder']}/logs/collective/{node}.log", f"{name} of {node}".encode())
        tell(store, its, below)
    gang_document.write(folder, document)
    put(store, gang_document.key_of(run), document)
    collect(folder, store)
    return folder


class Collect(collect_run.RunCollection):
    """What it does with the store, without a play around it."""

    def __init__(self, store):
        super().__init__(None, collect_run.CollectRunOptions(store={}))
        self.store = store


def collect(folder, store):
    gangs = gang_document.read(folder)
    for one in (folder, *gang_document.round_folders(folder, gangs)):
        Collect(store)._collect_run(one)
    evidence.lay_out(folder, folder.read_run(), gangs)


def judged(folder):
    report = report_on(folder, CHECKS, gangs=gang_document.read(folder))
    report["run"].pop("judged_at")
    return report


def report(store, results):
    """As `make report` does it on another machine."""
    run, _ = stored_runs.find(store, folder="folder")
    copy = imported_run.import_run(store, run, results, ())
    collect(copy, store)
    return copy, judged(copy)


def verdicts(of):
    return {node["name"]: node["verdict"] for node in of["nodes"]}


def reasons(of):
    return {check["reason"] for node in of["nodes"] for check in node["checks"] if check["name"] == "collective_state"}


def test_the_verdict_from_the_store_alone_is_that_of_the_run(store, own, tmp_path):
    first = judged(own)
    assert verdicts(first) == {"node-1": "PASS", "node-2": "PASS", "node-3": "FAIL"}, first["summary"]
    copy, second = report(store, tmp_path / "other")
    assert second == first
    assert report(store, tmp_path / "other")[1] == first, "brought once more"
    below = gang_document.round_folders(copy, gang_document.read(copy))
    assert [one.path.name for one in below] == ["all", "search-01", "all-again"]
    assert all(one.is_imported for one in below)
    assert copy.evidence_file("node-1", "collective", "logs").read_text().startswith("all-again of node-1")


def test_what_the_store_has_no_more_is_not_in_a_round_that_is_imported_later(store, own, tmp_path):
    whole_report = report_on(own, CHECKS, gangs=gang_document.read(own))
    publishing.keep_verdict(own, whole_report)
    store.put("folder/report/verdict.json", own.verdict_file.read_bytes())
    copy, first = report(store, tmp_path / "other")
    assert copy.evidence_file("node-2", "collective").exists()
    store.delete_prefix("folder/gangs/all-again/records/collective/node-2.json")
    assert report(store, tmp_path / "other")[1] == first, "it was imported before"
    copy, after = report(store, tmp_path / "third")
    assert not gang_document.round_folder(copy, "all-again").evidence_file("node-2", "collective").exists()
    assert not copy.evidence_file("node-2", "collective").exists(), "that of the round before is not the last one's"
    assert verdicts(after)["node-2"] == "INCOMPLETE"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda store: put(store, "folder/gangs/gangs.json", b"{"), "is damaged"),
        (lambda store: put(store, "folder/gangs/gangs.json", b" " * (33 << 20)), "exceeds"),
        (lambda store: put(store, "folder/gangs/all/run.json", b"{}"), "is damaged"),
        (lambda store: store.delete_prefix("folder/gangs/gangs.json"), "the store has no folder/gangs/gangs.json"),
    ],
    ids=["damaged", "too large", "damaged round", "none"],
)
def test_gangs_that_cannot_be_read_are_reported_and_not_called_unformed(store, own, tmp_path, damage, reason):
    first = judged(own)
    damage(store)
    copy, after = report(store, tmp_path / "other")
    assert verdicts(after) == dict.fromkeys(NODES, "INCOMPLETE")
    (told,) = reasons(after)
    assert told.startswith(imported_run.UNREAD), told
    assert reason in told
    assert not any(evidence.NOT_FORMED in problem["reason"] for problem in after["fleet"]["problems"])
    assert not copy.evidence_file("node-1", "collective").exists()
    put(store, gang_document.key_of(own.read_run()), gang_document.read(own))
    put(store, "folder/gangs/all/run.json", gang_document.round_folder(own, "all").read_run())
    assert report(store, tmp_path / "other")[1] == first, "what was not to be read is forgotten"


def test_names_that_are_no_nodes_do_not_become_paths(store, own, tmp_path):
    stranger = "../../../escaped"
    for place in ("left_out", "the search of all"):
        document = gang_document.read(own)
        named = document["left_out"] if place == "left_out" else document["findings"]["all"]["nodes"]
        named[stranger] = "bad"
        put(store, gang_document.key_of(own.read_run()), document)
        _, after = report(store, tmp_path / "other")
        (reason,) = reasons(after)
        assert f"{place}: {stranger} does not belong to it" in reason
        evidence.lay_out(own, own.read_run(), document)
    assert not list(tmp_path.rglob("escaped*"))


def test_a_search_that_left_out_nodes_is_not_believed_and_stops_no_report(store, own, tmp_path):
    document = gang_document.read(own)
    document["findings"]["all"]["nodes"] = {}
    put(store, gang_document.key_of(own.read_run()), document)
    _, after = report(store, tmp_path / "other")
    assert after["verdict"] != "PASS"
    assert all("the search of all lacks nodes of its gang" in reason for reason in reasons(after))


def test_a_round_that_another_round_wrote_is_not_accepted(store, own, tmp_path):
    its = gang_document.round_folder(own, "search-01").read_run()
    put(store, "folder/gangs/all/run.json", {**its, "folder": "folder/gangs/all"})
    assert all("is that of another round" in reason for reason in reasons(report(store, tmp_path / "other")[1]))


def test_a_round_that_was_never_begun_leaves_its_members_without_evidence(store, own, tmp_path):
    store.delete_prefix("folder/gangs/all-again/")
    _, after = report(store, tmp_path / "other")
    assert verdicts(after) == {"node-1": "INCOMPLETE", "node-2": "INCOMPLETE", "node-3": "FAIL"}
    assert "its round all-again never began, or its run.json is damaged" in reasons(after)


def test_what_the_store_missed_of_the_gangs_comes_with_the_collection(store, own):
    store.delete_prefix("folder/gangs/gangs.json")
    Collect(store)._publish_gangs(own, gang_document.read(own))
    assert json.loads(store.get("folder/gangs/gangs.json", max_bytes=1 << 20)) == gang_document.read(own)


def test_evidence_of_an_earlier_round_does_not_stay_beside_that_of_the_nodes(own):
    document, run = gang_document.read(own), own.read_run()
    assert own.evidence_file("node-3", "fabric").exists()
    gang_document.round_folder(own, "all-again").evidence_file("node-1", "collective").unlink()
    document["findings"] = {}
    evidence.lay_out(own, run, document)
    assert not own.evidence_file("node-1", "collective").exists()
    assert not own.evidence_file("node-3", "fabric").exists()
    assert own.evidence_file("node-2", "collective").exists()
    evidence.lay_out(own, run, None)
    assert not own.evidence_file("node-2", "collective").exists()
    assert own.evidence_file("node-2", "facts").exists()
