"""Verdicts as drains of Slurm: FAIL drains, what passes is resumed, and what others drained is left alone."""

import json
import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import all_classes, subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import failed_checks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import commands, drains
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.drains import SlurmNode

from tests.kit.actions import run_action
from tests.kit.builders import write_report
from tests.kit.reports import FAILS, LACKS, PASSES, job_failed, report_of
from tests.kit.run_commands import placed

REASON = "gpuval:run-10:speed"


def node(state="IDLE", reason=""):
    return SlurmNode(frozenset(state.split("+")), reason)


def decide(seen, verdicts, known=None, *, incomplete=False, word=None, **fields):
    report = report_of(verdicts, 10, **fields)
    if word:
        report["nodes"][0]["class"] = word
    known = None if known is None else frozenset(known)
    found = drains.decide(seen, report["nodes"][0], report["run"], known, incomplete=incomplete)
    return found.state, found.reason, sorted(found.open)


DRAINED = node("IDLE+DRAIN", "gpuval:run-9:speed")
OPEN = ["training/speed"]


def test_fail_drains_with_run_and_class():
    assert decide(node(), FAILS) == ("DRAIN", REASON, OPEN)
    assert decide(node("MIXED"), FAILS)[0] == "DRAIN"
    assert decide(node(), PASSES) == ("", "", [])


def test_a_node_that_is_drained_already_has_the_reason_of_the_last_run_and_all_that_is_open():
    known = ["fabric/fabric_bad"]
    assert decide(DRAINED, FAILS, known, narrowed_by=["tags"]) == ("DRAIN", REASON, [*known, *OPEN])
    assert decide(node("IDLE+DRAIN", REASON), FAILS, OPEN) == ("KEEP", REASON, OPEN)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE+DRAIN", "disk is full"),
        ("IDLE+DRAIN", ""),
        ("IDLE+DRAIN", "see gpuval:run-9:speed"),
        ("IDLE+DRAIN", "gpuval:../x:speed"),
        ("DOWN", "Not responding"),
        ("MIXED+DRAIN", "gpuval:run-9:speed and NHC"),
        ("IDLE+DRAIN", "gpuval:run-9:speed;RMA-123"),
        ("IDLE+DRAIN", "gpuval:run-9:"),
    ],
)
def test_what_others_took_out_of_service_is_left_alone(state, reason):
    assert decide(node(state, reason), FAILS)[0] == "FOREIGN"
    assert decide(node(state, reason), PASSES)[0] == ""
    assert decide(node(state, reason), LACKS, incomplete=True, word="hung")[0] == "FOREIGN"


@pytest.mark.parametrize("fields", [{"narrowed_by": ["stages"], "profile": "custom"}, {}])
def test_a_job_of_a_users_own_drains_nothing(fields):
    report = job_failed(**fields)
    assert drains.decide(node(), report["nodes"][0], report["run"], None, incomplete=True).state == ""


def test_a_reason_that_is_left_on_a_node_in_service_counts_for_nothing():
    assert decide(node("IDLE", "disk is full"), FAILS)[0] == "DRAIN"
    assert decide(node("IDLE", REASON), PASSES)[0] == ""


def test_incomplete_drains_only_when_asked():
    assert decide(node(), LACKS, word="hung")[0] == ""
    assert decide(node(), LACKS, incomplete=True, word="hung") == ("DRAIN", "gpuval:run-10:hung", ["training/"])
    assert decide(DRAINED, LACKS, OPEN, incomplete=True, word="hung") == ("KEEP", DRAINED.reason, OPEN)


@pytest.mark.parametrize(
    "word", ["not_started", "other_run", "quota", "slurm_pending", "slurm_preempted", "training_missing", "store_away"]
)
def test_incomplete_drains_only_where_the_node_is_implicated(word):
    assert decide(node(), LACKS, incomplete=True, word=word)[0] == ""
    assert decide(DRAINED, LACKS, OPEN, incomplete=True, word=word) == ("KEEP", DRAINED.reason, OPEN)


def test_classes_that_implicate_a_node_are_known():
    implicating = {row.name for row in all_classes() if row.also_incomplete}
    assert {subject_of(word) for word in implicating} == {"node"}
    assert {"hung", "node_lost", "slurm_node_failed", "accelerator", "unsteady"} < implicating
    assert not implicating & {"store_away", "not_started", "training_crash", "facts_gpu_count"}
    node = {"verdict": "INCOMPLETE", "checks": []}
    assert failed_checks.is_about({**node, "class": "hung"})
    assert not failed_checks.is_about({**node, "class": "store_away"})


@pytest.mark.parametrize("state", ["DOWN+DRAIN+NOT_RESPONDING", "FAIL+DRAIN"])
def test_a_node_that_is_down_is_not_resumed(state):
    down = node(state, DRAINED.reason)
    assert decide(down, PASSES, OPEN)[0] == "FOREIGN"
    assert decide(down, FAILS, OPEN)[0] == "DRAIN"


@pytest.mark.parametrize(
    ("known", "fields", "state"),
    [
        (OPEN, {}, "RESUME"),
        (OPEN, {"narrowed_by": ["limit", "busy"]}, "RESUME"),
        (["fabric/fabric_bad"], {"narrowed_by": ["tags"]}, "KEEP"),
        (["training/"], {"narrowed_by": ["limit"]}, "RESUME"),
        (None, {"narrowed_by": ["limit"]}, "KEEP"),  # what had failed is not known
        (None, {}, "RESUME"),
    ],
)
def test_a_run_resumes_what_passes_what_had_failed(known, fields, state):
    assert decide(DRAINED, PASSES, known, **fields)[0] == state


def test_a_class_is_one_word():
    report = report_of(FAILS)
    report["nodes"][0]["class"] = "a b\n;c" + "x" * 200
    found = drains.decide(node(), report["nodes"][0], report["run"], None)
    assert found.reason == "gpuval:run-10:a_b__c" + "x" * 58


LINES = """\
NodeName=a Arch=x86_64 NodeAddr=a Version=22.05.8 State=IDLE+DRAIN Reason=gpuval:r:c [root@2026-11-23T10:00:00]
NodeName=b State=DOWN*+DRAIN+NOT_RESPONDING Reason=a [b] c [slurm@2026-11-23T10:00:00] Reason=gpuval:r:c [x@y]
NodeName=c State=MIXED ThreadsPerCore=1
junk
"""


def test_what_scontrol_prints():
    found = drains.read(commands.Slurm(lambda *_: (0, LINES, "")))
    assert found["a"] == SlurmNode(frozenset({"IDLE", "DRAIN"}), "gpuval:r:c")
    assert found["b"].states == {"DOWN", "DRAIN", "NOT_RESPONDING"} and found["b"].is_away and not found["b"].run_id
    assert (found["b"].reason, found["a"].run_id, found["c"].run_id) == ("a [b] c", "r", "")
    assert sorted(found) == ["a", "b", "c"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A controller whose scontrol prints a file, and notes its updates."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(
        f"#!/bin/sh\ncd {tmp_path}\n"
        'if [ "$1" = update ]; then echo "$@" >>updates; exec cat refused; fi\nexec cat nodes\n'
    )
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (tmp_path / "refused").write_text("")
    return tmp_path


def mark(slurm, report, nodes, *, check_mode=False, **options):
    """The updates of a run with that report, with Slurm's nodes so."""
    (slurm / "nodes").write_text("".join(f"NodeName={name} {rest}\n" for name, rest in nodes.items()))
    (slurm / "updates").write_text("")
    folder = placed(slurm / "results", report["run"]["run_id"]).path
    (folder / ".state").mkdir(parents=True, exist_ok=True)
    write_report(report, folder)
    (folder / "run.json").write_text(json.dumps({"run_id": folder.name, "nodes": {}}))
    options = {"run_id": folder.name, "results_dir": str(slurm / "results"), "scheduler": "slurm", **options}
    done = run_action("mark_nodes", options, check_mode=check_mode)
    return done, (slurm / "updates").read_text().splitlines()


def drained(run_id):
    return {"bad": f"State=IDLE+DRAIN Reason=gpuval:{run_id}:speed [root@2026-11-23T10:00:00]"}


def test_from_drain_to_resume(slurm):
    idle = {"bad": "State=IDLE", "other": "State=IDLE"}
    trial, updates = mark(slurm, report_of(FAILS), idle, check_mode=True)
    assert (trial.result["changed"], updates) == (True, [])
    done, updates = mark(slurm, report_of(FAILS), idle)
    assert updates == [f"update NodeName=bad State=DRAIN Reason={REASON}"]
    assert (done.result["nodes"], done.result["diff"][0]["after"]) == (["bad"], f"DRAIN {REASON}\n")
    done, updates = mark(slurm, report_of(FAILS), drained("run-10"))
    assert (updates, done.result["changed"]) == ([], False)
    # one stage alone, then another fault, then what had failed
    done, updates = mark(
        slurm, report_of(PASSES, 11, narrowed_by=["tags"], stages=["facts", "loading"]), drained("run-10")
    )
    assert (updates, done.result["open"]) == ([], {"bad": OPEN})
    assert "still drained: bad (training/speed)" in done.text
    # tested until it passes, and then repaired
    done, updates = mark(slurm, report_of(PASSES, 12, narrowed_by=["limit"]), drained("run-10"))
    assert (updates, done.result["open"]) == ([], {"bad": ["repair/"]})
    assert "declare a repair that changed no serial and no firmware in gpuval_repairs" in done.text
    repair = {"node": "bad", "part": "node", "action": "dimm", "at": "2026-11-11T10:00:00Z", "by": "K. Weber"}
    done, updates = mark(slurm, report_of(PASSES, 12, narrowed_by=["limit"]), drained("run-10"), repairs=[repair])
    assert updates == ["update NodeName=bad State=RESUME"]


def test_an_earlier_run_that_is_judged_again_changes_nothing(slurm):
    mark(slurm, report_of(FAILS, 12), {"bad": "State=IDLE"})
    for verdicts in (PASSES, FAILS):
        assert mark(slurm, report_of(verdicts, 11), drained("run-12"))[1] == []


def test_others_and_unknown_nodes_are_named(slurm):
    report = report_of({"bad": "FAIL", "gone": "FAIL", "node.example.org": "FAIL"})
    state = "State=DOWN+DRAIN Reason=bad \x1b[31mdisk [root@2026-11-23T10:00:00]"
    done, updates = mark(slurm, report, {"bad": state, "node": "State=IDLE"})
    assert updates == [f"update NodeName=node State=DRAIN Reason={REASON}"]
    assert (done.result["missing"], done.result["foreign"][0][:8]) == (["gone"], "bad (bad")
    assert "\x1b" not in done.text


def test_two_domains_of_one_short_name_drain_none(slurm):
    done, updates = mark(slurm, report_of({"node.a": "FAIL", "node.b": "PASS"}), {"node": "State=IDLE"})
    assert (updates, done.result["missing"]) == ([], ["node.a", "node.b"])


def test_without_the_right_to_drain_no_node_is_changed(slurm):
    (slurm / "refused").unlink()
    done, _ = mark(slurm, report_of({"bad": "FAIL", "other": "PASS"}), {"bad": "State=IDLE", "other": "State=IDLE"})
    assert done.failed and done.text.startswith("0 node(s) changed; bad: scontrol: ")
    assert (done.result["changed"], done.result["nodes"]) == (False, [])


def test_a_clean_resumes_what_its_runs_drained(slurm):
    reason = "Reason=gpuval:{}:speed [root@2026-11-23T10:00:00]"
    nodes = {
        "bad": f"State=IDLE+DRAIN {reason.format('run-10')}",
        "down": f"State=DOWN+DRAIN {reason.format('run-10')}",
        "later": f"State=IDLE+DRAIN {reason.format('run-11')}",
        "others": "State=IDLE+DRAIN Reason=bad fan [root@2026-11-23T10:00:00]",
        "idle": "State=IDLE",
    }
    options = {"state": "absent", "run_ids": ["run-10"]}
    done, updates = mark(slurm, report_of(FAILS), nodes, check_mode=True, **options)
    assert (done.result["nodes"], updates) == (["bad"], [])
    done, updates = mark(slurm, report_of(FAILS), nodes, **options)
    assert (done.result["nodes"], updates) == (["bad"], ["update NodeName=bad State=RESUME"])
    assert "drained or down for others, left as they are: down (DOWN+DRAIN)" in done.text
    done, updates = mark(slurm, report_of(FAILS), nodes, **options | {"run_ids": ["run-9"]})
    assert (done.result["nodes"], updates) == ([], [])
    done = run_action("mark_nodes", {"state": "absent", "scheduler": "slurm"})
    assert done.result["nodes"] == ["bad", "later"]
    options = {"state": "absent", "scheduler": "slurm", "nodes": ["later.example.org", "idle"]}
    assert run_action("mark_nodes", options).result["nodes"] == ["later"]


def test_a_slurm_that_refuses_or_is_not_there_says_so(slurm, monkeypatch):
    (slurm / "refused").unlink()
    done, _ = mark(slurm, report_of(FAILS), {"bad": "State=IDLE"})
    assert done.failed and "scontrol: " in done.text
    monkeypatch.setattr(commands, "COMMAND_SECONDS", 0.05)
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0)
    (slurm / "bin/scontrol").write_text("#!/bin/sh\nexec sleep 5\n")
    done, _ = mark(slurm, report_of(FAILS), {})
    assert done.failed and "no answer within" in done.text
    (slurm / "bin/scontrol").unlink()
    done, _ = mark(slurm, report_of(FAILS), {})
    assert done.failed and "scontrol is not installed here" in done.text
