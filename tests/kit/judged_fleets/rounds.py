"""Runs in results folders: gangs from their forming to their end, evidence that changed after it was judged."""

import copy
import json
import shutil
import socket
from types import SimpleNamespace
from unittest import mock

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence as gang_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import orchestrate
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import judged as judged_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing, state
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.builders import LAUNCHED, NONCE, SHIPPED, TIME, check, healthy_records, make_record, make_run, metric
from tests.kit.gang_bed import CHECKS, Bed, Fault, build
from tests.kit.judged_fleets.fleet import Fleet, fleet
from tests.kit.judged_folder import inputs_now

LOST = {"class": "lost_contact", "message": "lost contact: no sign for 300 s", "remedy": "power it on"}
#: No process has this id.
GONE = 2**30
WAYS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")


def at_one_time(function):
    """The function, for which no time passes: documents of rounds tell when these began, and how long searches took."""

    def timeless(*arguments):
        clock = SimpleNamespace(monotonic=lambda: 0.0)
        with mock.patch.object(run_folder, "now", lambda: TIME), mock.patch.object(orchestrate, "time", clock):
            return function(*arguments)

    timeless.__name__, timeless.__doc__ = function.__name__, function.__doc__
    return timeless


def report_of(folder, checks, *, gangs=None, standings=(), **options):
    """The report on a run in its folder, as `judge_run` writes it."""
    made = judged_report.judge(inputs_now(folder, checks, gangs=gangs, standings=list(standings), **options))
    return {"report": made.report, "standings": made.standings}


def _gang(count, bad=None, links=None, silent=(), **options):
    gang = build(count, 1, **{"rack": 0, "noise": 0.0, **options})
    gang.bad.update(bad or {})
    gang.links.update({frozenset(link): fault for link, fault in (links or {}).items()})
    gang.silent.update(silent)
    return gang


def _ended(folder, case, gang, **options):
    bed = Bed(folder / case, gang, **options)
    bed.go()
    return bed


def _documents(bed):
    documents = report_of(bed.folder, CHECKS, gangs=bed.document)
    for found in bed.document["findings"].values():
        found["seconds"] = 0
    return {**documents, "rounds": bed.round_names, "between": bed.judge(None)}


@fleet
@at_one_time
def gangs(folder):
    """Gangs in which all is well, a node or a link is slow or wrong, or a node says nothing."""
    slow, wrong = Fault("slow", 0.5), Fault("wrong")
    cases = {
        "fine": _gang(4),
        "slow_node": _gang(6, {"node-003": slow}),
        "wrong_node": _gang(6, {"node-003": wrong}),
        "crashing_node": _gang(6, {"node-003": Fault("crash")}),
        "hanging_node": _gang(6, {"node-003": Fault("timeout")}),
        "slow_link": _gang(8, links={("node-002", "node-003"): Fault("slow", 0.4)}),
        "all_wrong": _gang(4, dict.fromkeys([f"node-{number:03}" for number in range(1, 5)], wrong)),
        "two_of_which_one_is_slow": _gang(2, {"node-001": slow}),
        "silent_node": _gang(6, silent=["node-004"]),
        "now_and_then": _gang(6, {"node-002": Fault("slow", 0.4, rate=0.5)}),
    }
    documents = {case: _documents(_ended(folder, case, gang)) for case, gang in cases.items()}
    documents["unfit"] = _documents(_ended(folder, "unfit", _gang(6, {"node-003": slow}), unfit=["node-005"]))
    two = Bed(folder / "two_stages", _gang(6, {"node-003": slow}), stages=("collective", "deepspeed"))
    two.go()
    documents["two_stages"] = _documents(two)
    return documents


def _copied(bed, path):
    shutil.copytree(bed.folder.path, path / "run-1")
    copied = copy.copy(bed)
    copied.folder = RunFolder(path / "run-1")
    return copied


def _changed(bed, place, node, stage="collective", **fields):
    path = bed.below(place).evidence_file(node, stage)
    run_folder.write_json(path, {**run_folder.read_json(path), **fields})


def _launch(bed, place, node, **launch):
    run_folder.write_json(bed.below(place).launch_file(node), {**LAUNCHED, **launch})


@fleet
@at_one_time
def rounds_with_gaps(folder):
    """A gang that ran twice, of which something is gone, is another's, or came too late."""
    ended = _ended(folder, "ended", _gang(7, {"node-003": Fault("slow", 0.5)}), unfit=["node-005"])
    started = {"state": "started", "message": ""}
    first, last = "all", "all-again"

    def no_record_of_the_last(bed):
        bed.below(last).evidence_file("node-001", "collective").unlink()
        _launch(bed, last, "node-001", state="unreachable", message="no route to host")
        bed.below(last).evidence_file("node-002", "collective").unlink()
        _launch(bed, last, "node-002", state="failed")
        bed.below(last).evidence_file("node-004", "collective").unlink()
        _launch(bed, last, "node-004", **started, contact=LOST)

    def lost_in_the_first(bed):
        for node in ("node-001", "node-002", "node-004", "node-006"):
            bed.below(first).evidence_file(node, "collective").unlink()
        _launch(bed, first, "node-001", **started, contact=LOST)
        _launch(bed, first, "node-002", state="unreachable", message="no route to host")
        _launch(bed, first, "node-004", **started)
        bed.below(first).launch_file("node-006").unlink()

    def lost_in_both(bed):
        lost_in_the_first(bed)
        for node in ("node-001", "node-006"):
            bed.below(last).evidence_file(node, "collective").unlink()

    def not_in_its_round(bed):
        run = bed.below(last).read_run()
        del run["nodes"]["node-001"]
        bed.below(last).write_run(run)

    def crashed_in_the_first(bed):
        _changed(bed, first, "node-001", state="crash", metrics=[], message="exit code 1")
        attempt = make_record("node-002", "collective", run_id="run-1.all", state="crash")
        _changed(bed, first, "node-002", attempt=2, attempts=[attempt], nonce=evidence.nonce_of(NONCE, 2))
        _launch(bed, first, "node-002", **LAUNCHED, attempt=2)

    def without_repeats(bed):
        document = bed.document
        for item in document["rounds"]:
            item.pop("repeats", None)
        gang_document.write(bed.folder, document)
        crashed_in_the_first(bed)

    def other_members(bed):
        document = bed.document
        for item in document["rounds"]:
            if item["name"] == first:
                item["gangs"] = {name: [node for node in nodes if node != "node-003"]
                                 for name, nodes in item["gangs"].items()}  # fmt: skip
        gang_document.write(bed.folder, document)
        crashed_in_the_first(bed)

    def joined_late(bed):
        run = bed.folder.read_run()
        run["nodes"]["node-099"] = copy.deepcopy(run["nodes"]["node-001"])
        bed.folder.write_run(run)

    def alone(bed):
        document = bed.document
        document["alone"] = ["node-007"]
        for item in document["rounds"]:
            item["gangs"] = {name: [node for node in nodes if node != "node-007"]
                             for name, nodes in item["gangs"].items()}  # fmt: skip
        gang_document.write(bed.folder, document)

    def no_gang(bed):
        document = bed.document
        document.update(gangs={}, rounds=[], findings={}, searches={}, left_out={}, alone=sorted(bed.gang.nodes))
        gang_document.write(bed.folder, document)

    def left_a_stranger(bed):
        document = bed.document
        document["findings"]["all"]["nodes"]["node-099"] = "healthy"
        run_folder.write_json(bed.folder.gangs_file, document)
        return document

    changes = {
        "nothing": lambda bed: None,
        "document": lambda bed: bed.folder.gangs_file.unlink(),
        "run_of_the_last": lambda bed: bed.below(last).run_file.unlink(),
        "run_of_the_first": lambda bed: bed.below(first).run_file.unlink(),
        "first": lambda bed: shutil.rmtree(bed.below(first).path),
        "no_record_of_the_last": no_record_of_the_last,
        "lost_in_the_first": lost_in_the_first,
        "lost_in_both": lost_in_both,
        "not_in_its_round": not_in_its_round,
        "crashed_in_the_first": crashed_in_the_first,
        "without_repeats": without_repeats,
        "other_members": other_members,
        "joined_late": joined_late,
        "alone": alone,
        "no_gang": no_gang,
        "foreign_record": lambda bed: _changed(bed, last, "node-001", run_id="run-1.all"),
        "problems": lambda bed: run_folder.write_json(
            bed.below(last).problems_file, [{"node": "node-001", "stage": "collective", "reason": "record refused: x"}]
        ),
        "problems_of_the_run": lambda bed: (
            bed.folder.gangs_file.unlink(),
            bed.folder.add_problems([{"node": "node-001", "stage": "collective", "reason": "the gangs were aborted"}]),
        ),
    }
    documents = {}
    for case, change in changes.items():
        bed = _copied(ended, folder / case)
        for place in (first, last):
            for node in bed.below(place).read_run()["nodes"]:
                _launch(bed, place, node, **started)
        change(bed)
        documents[case] = report_of(bed.folder, CHECKS, gangs=bed.document)
        gang_evidence.lay_out(bed.folder, bed.folder.read_run(), bed.document)
        documents[case]["laid_out"] = sorted(
            str(path.relative_to(bed.folder.path)) for path in bed.folder.path.glob("nodes/*/*.json")
        )
        gang_evidence.lay_out(bed.folder, gang_evidence.expected(bed.folder.read_run(), bed.document), None)
    document = left_a_stranger(_copied(ended, folder / "stranger"))
    bed = _copied(ended, folder / "strangers")
    documents["stranger"] = report_of(bed.folder, CHECKS, gangs=document)
    gang_evidence.lay_out(bed.folder, bed.folder.read_run(), document)
    documents["searches"] = gang_evidence.of_searches(bed.folder, bed.document)
    return documents


@fleet
@at_one_time
def searches(folder):
    """What searches tell beside speeds: faults in their rounds, other networks, rounds that never began."""
    ended = _ended(folder, "ended", _gang(6, {"node-003": Fault("slow", 0.5)}))
    one, other = [name for name in ended.round_names if name.startswith("search-")][:2]
    members = list(ended.below(one).read_run()["nodes"])[:2]
    path = ended.below(one).evidence_file(members[0], "fabric")
    record = run_folder.read_json(path)
    record["metrics"] += [
        metric("gang_network_unexpected_count", 1),
        metric("gpu_xid_critical_count", 1, scope="gpu:3"),
    ]
    run_folder.write_json(path, {**record, "message": "it went over Socket"})
    ended.below(other).run_file.unlink()
    faults, networks = gang_evidence.of_searches(ended.folder, ended.document)
    documents = {"faults": faults, "networks": networks, **report_of(ended.folder, CHECKS, gangs=ended.document)}
    document = ended.document
    found = document["findings"]["all"]
    nodes = list(found["nodes"])
    found["faults"] = {
        node: {"figures": [["gpu_xid_critical_count", "gpu:3", 1]], "absent": {}, "rounds": [f"search-0{number}"],
               "host_checks": ["clock is 3 s off"]}
        for number, node in enumerate(nodes)
    }  # fmt: skip
    found.update(
        stopped="the time limit", gang=["all links are slow"] * 9, suspect_links=[[nodes[0], nodes[1]]],
        bad_boundaries=[{"kind": "rack", "names": ["r1", "r2"], "scope": "between"}], suspect_boundaries=["r3"],
    )  # fmt: skip
    found["nodes"][nodes[1]], found["nodes"][nodes[3]] = "suspect", "untested"
    found["evidence"]["rack r1 - r2 (between)"] = ["slow in 3 rounds"]
    documents["incomplete"] = report_of(ended.folder, CHECKS, gangs=document)
    found.update(nodes=dict.fromkeys(nodes, "healthy"), expected_bytes_per_second=4e10, stopped="", gang=[])
    documents["expected_speed"] = report_of(ended.folder, CHECKS, gangs=document)
    return documents


def _collective(node, **fields):
    figures = [metric("gang_nodes_count", 2), metric("gang_absent_nodes_count", 0), metric("gang_processes_count", 16),
               metric("gang_collective_error_count", 0), metric("gang_network_unexpected_count", 0),
               metric("gang_rdma_ports_count", 8), metric("gang_collectives_count", 6),
               metric("gang_bus_over_ports_ratio", 0.87, "ratio"), metric("gang_gpu_direct_off_count", 0),
               metric("gang_collectives_left_out_count", 0)]  # fmt: skip
    figures += [metric(f"gang_{way}_bus_bytes_per_second", 350e9, "bytes/s") for way in WAYS]
    prints = {"gang_network": "IB", **{f"gang_{way}_asked": "yes" for way in WAYS}}
    environment = {"gang": {"name": "all", "nodes": 2}}
    return make_record(node, "collective", metrics=figures, fingerprints=prints, environment=environment, **fields)


@fleet
def stages_of_gangs(_folder):
    """What a gang did, under the shipped criteria: figures of the gang, of hosts, of the search."""
    nodes = ("fine", "errors", "no-number", "crash", "timeout", "socket", "no-gang", "odd-gang", "many-nodes",
             "left-out", "bad", "suspect", "untested", "bad-link", "unclean", "no-fabric", "message", "message-failed",
             "retried", "of-round", "fabric-and-state")  # fmt: skip
    shipped = [one for one in SHIPPED if one.metric.startswith(("gang_", "fabric_"))]
    told = check("told", stage="collective", metric="gang_least_ratio", kind="min", value=0.5, of_gang=True,
                 tells_message=True)  # fmt: skip
    at_least = check("least", stage="collective", metric="gang_processes_count", kind="max", value=4, of_gang=True,
                     severity="advisory")  # fmt: skip
    made = Fleet(nodes, stages=["facts", "collective", "fabric"], checks=[*shipped, told, at_least])
    counts = {name: f"fabric_{name.replace('-', '_')}_count" for name in
              ("bad", "suspect", "untested", "bad-link", "unclean")}  # fmt: skip
    for name in nodes:
        made.node(name)["gang_stages"] = ["collective", "fabric"]
        made.evidence.records[name]["collective"] = _collective(name)
        made.set(name, "collective", "gang_least_ratio", 0.9)
        figures = [metric(figure, int(counts.get(name) == figure)) for figure in counts.values()]
        made.replace(name, "fabric", metrics=figures, message=f"{name}: as the search found")
    made.set("errors", "collective", "gang_collective_error_count", 3)
    made.set("no-number", "collective", "gang_bus_over_ports_ratio", None)
    for name in ("crash", "timeout"):
        made.record(name, "collective", state=name, message="NCCL WARN")
    made.record("socket", "collective")["fingerprints"]["gang_network"] = "Socket"
    made.record("no-gang", "collective", environment={}, metrics=[])
    made.record("odd-gang", "collective", environment={"gang": {"name": 7, "nodes": 1}}, state="crash")
    made.record("many-nodes", "collective", environment={"gang": {"name": "a" * 90, "nodes": 1e9}}, state="failure")
    made.record("left-out", "collective", environment={"gang": "all"}, state="failure")
    made.drop("no-fabric", "fabric")
    made.forget("message", "collective", "gang_least_ratio")
    made.record("message", "collective", message="left out: no second gang")
    made.set("message-failed", "collective", "gang_least_ratio", 0.1)
    made.record("message-failed", "collective", message="as fast as it gets")
    wrong = [metric("gang_collective_error_count", 5), metric("gang_least_ratio", 0.1)]
    made.attempt("retried", "collective", state="failure", metrics=wrong)
    made.attempt("of-round", "collective", state="failure", metrics=wrong, of_round="all")
    made.record("fabric-and-state", "collective", state="crash")
    made.set("fabric-and-state", "fabric", "fabric_suspect_count", 1)
    return made.judged()


NODES = ("fine", "bad", "silent", "late", "relaunched", "busy")


def _own_run(folder, **fields):
    """A run in a folder, some of whose nodes failed or say nothing."""
    run = make_run(NODES, gpu_count=8, **fields)
    own = RunFolder(folder / run["run_id"])
    own.write_run(run)
    for node in NODES:
        run_folder.write_json(own.launch_file(node), {"node": node, **LAUNCHED, "at": TIME})
        records = healthy_records(node)
        if node == "bad":
            records["training"] = make_record(node, state="crash", message="killed by SIGKILL")
        if node in ("silent", "late"):
            del records["inference"]
        if node == "busy":
            text = "gave way: others use this node's accelerators or run here: python (pid 7)"
            records["training"] = make_record(node, state="cancelled", message=text, metrics=[])
        for stage, record in records.items():
            run_folder.write_json(own.evidence_file(node, stage), record)
    return own


@fleet
@at_one_time
def judged_evidence(folder):
    """Runs that are judged again after their verdict: nothing came, records came late, changed, or went away."""
    documents = {}
    for case, fields in {"all": {}, "idle": {"only_idle": True}}.items():
        own = _own_run(folder / case, **fields)
        first = report_of(own, [])
        publishing.keep_verdict(own, first["report"])
        before = publishing.judged(own)
        documents[f"first_{case}"] = first
        documents[f"again_{case}"] = report_of(own, [], verdict_before=before, is_frozen=True)
        run_folder.write_json(own.evidence_file("late", "inference"), healthy_records("late")["inference"])
        run_folder.write_json(own.evidence_file("bad", "training"), healthy_records("bad")["training"])
        run_folder.write_json(own.evidence_file("busy", "loading"), make_record("busy", "loading", message="changed"))
        own.evidence_file("fine", "loading").unlink()
        running = make_record("silent", "inference", state="running", finished_at=None)
        run_folder.write_json(own.evidence_file("silent", "inference"), running)
        run_folder.write_json(own.evidence_file("relaunched", "training"), make_record("relaunched", state="failure"))
        launch = {"node": "relaunched", **LAUNCHED, "at": "2027-01-01T00:00:00Z"}
        run_folder.write_json(own.launch_file("relaunched"), launch)
        for frozen in (True, False):
            documents[f"changed_{case}_{'frozen' if frozen else 'open'}"] = report_of(
                own, [], verdict_before=before, is_frozen=frozen
            )
        before["nodes"].pop("fine")
        before["evidence"].pop("late", None)
        documents[f"unknown_before_{case}"] = report_of(own, [], verdict_before=before, is_frozen=True)
    return documents


@fleet
@at_one_time
def files_of_runs(folder):
    """Records as files: refused ones, ones of other runs and nodes, of runs that were cleaned or never formed gangs."""
    own = _own_run(folder / "own")
    own.evidence_file("fine", "training").write_text("{")
    own.evidence_file("bad", "facts").write_text(json.dumps(healthy_records("fine")["facts"]))
    own.evidence_file("silent", "facts").write_text(json.dumps({**healthy_records("silent")["facts"], "run_id": "x"}))
    other = {**healthy_records("late")["training"], "workload": "another"}
    own.evidence_file("late", "training").write_text(json.dumps(other))
    success = {**healthy_records("busy")["loading"], "exit_code": 1}
    own.evidence_file("busy", "loading").write_text(json.dumps(success))
    own.add_problems([{"node": "relaunched", "stage": None, "reason": "it rebooted"}])
    documents = {"refused": report_of(own, [])}
    documents["without_gangs"] = report_of(own, [], with_gangs=False)
    kept = {"name": state.WORKING, "since": TIME, "opened_at": TIME, "started_at": TIME, "workers": []}
    gone = {"host": socket.gethostname(), "pid": GONE, "began": 0, "since": TIME}
    run = {**own.read_run(), "deadline_seconds": 1e9}
    own.write_run({**run, "state": {**kept, "workers": [gone]}})
    own.evidence_file("fine", "inference").unlink()
    documents["open"] = report_of(own, [])
    own.write_run({**run, "finished_at": TIME, "state": {**kept, "name": state.FAILED, "reason": state.CLEANED}})
    documents["cleaned"] = report_of(own, [])
    gang_stages = _own_run(folder / "gangs")
    run = gang_stages.read_run()
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective", "fabric"]
    gang_stages.write_run(run)
    documents["never_formed"] = report_of(gang_stages, [])
    return documents


@fleet
def gangs_that_are_expected(_folder):
    """The stages that a run expects of its nodes with, and without, a document of gangs."""
    run = make_run(("node-1", "node-2", "node-3"), stages=["facts"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective", "fabric"]
    run["nodes"]["node-2"].pop("gang_stages")
    found = {"all": {"nodes": {"node-1": "healthy"}}}
    documents = {
        "none": None,
        "alone": {"gangs": {"all": []}, "alone": ["node-3"], "findings": found, "left_out": {}, "rounds": []},
        "all_alone": {"gangs": {}, "alone": ["node-1", "node-3"], "findings": {}, "left_out": {}, "rounds": []},
    }
    return {
        name: {"expected": gang_evidence.expected(run, document), "evidence": _problems(run, document)}
        for name, document in documents.items()
    }


def _problems(run, document):
    evidence = RunEvidence()
    evidence.add_problem("better known", node="node-1", stage="collective")
    if document is None:
        gang_evidence.take(evidence, RunFolder("nowhere"), gang_evidence.expected(run, None), None)
    return evidence.problems
