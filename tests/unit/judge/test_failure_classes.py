"""The table of the classes of failures: it has every class that code can produce, and only faults of the node count."""

import ast
import functools
import importlib
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils import judge as judging
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import yaml_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import own_entry
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import class_named, subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import health
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import earlier_faults, failed_checks, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import drains

from tests.kit.broken_criteria import BAD, report_with_one_broken
from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run, metric
from tests.kit.class_names import PATTERNED, STATES, class_names

ROOT = Path(__file__).resolve().parents[3]
ROWS = failure_classes.all_classes()
SUBJECTS = ("node", "store", "network", "site", "program", "scheduler", "gpuval")
#: What no class of another subject than the node may lead to.
ABOUT_THE_NODE = {"reboot", "replace_gpu", "replace_cable", "replace_node", "contact_vendor"}


def documents():
    return {path: yaml_file.load(path.read_text()) for path in failure_classes.files()}


def test_names_are_unique_and_every_file_is_read():
    assert {*documents()} | {actions.FILE} == {
        *COLLECTION.glob("failures/*.yml"),
        *COLLECTION.glob("[pr]*/**/failures.yml"),
    }
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.subject for row in ROWS} == set(SUBJECTS)


def test_every_class_has_a_row():
    assert [name for name in class_names() if class_named(name) is None] == []


def test_every_row_is_that_of_some_class():
    """A pattern that an earlier row hides, or that no class fits, is mistyped."""
    reached = {class_named(name).name for name in class_names()}
    assert [row.name for row in ROWS if row.name not in reached] == []


def test_every_ladder_is_that_of_some_row():
    assert {row.ladder for row in ROWS} | {actions.OWN_CHECK} == set(actions.shipped()["ladders"])


def test_only_the_node_is_rebooted_replaced_or_a_case_of_its_vendor():
    ladders = {name: ladder["steps"] for name, ladder in actions.shipped()["ladders"].items()}
    assert [row.name for row in ROWS if row.subject != "node" and ABOUT_THE_NODE & set(ladders[row.ladder])] == []
    assert [row.name for row in ROWS if row.subject != "node" and len(ladders[row.ladder]) > 1] == []
    assert [row.name for row in ROWS if row.also_incomplete and row.subject != "node"] == []


def test_steps_begin_with_a_verb():
    """A command goes in quotes after it: run `kubectl ...`."""
    assert [row.name for row in ROWS if row.steps and not re.match("(?!kubectl)[a-z]+ ", row.steps)] == []


@functools.cache
def test_functions(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


test_functions.__test__ = False


def test_the_test_of_every_class_exists():
    named = [row["test"] for document in documents().values() for rows in document["groups"].values() for row in rows]
    assert len(named) == len(ROWS)
    wrong = [test for test in named if not (ROOT / test.partition("::")[0]).is_file()]
    assert wrong == []
    assert [test for test in named if test.partition("::")[2] not in test_functions(test.partition("::")[0])] == []


def name_of_entry(call, module):
    """The name that a call gives an entry without a criterion, with `x` for what is filled in; None for other calls."""
    arguments = [argument for argument in call.args if getattr(argument, "id", "") != "own_entry"]
    if getattr(call.func, "id", "") != "own_entry" and len(arguments) == len(call.args):
        return None
    if isinstance(arguments[0], ast.Attribute):  # of the table of racks' checks, which class_names has
        return None
    if isinstance(arguments[0], ast.JoinedStr):
        return "".join(str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "x"
                       for part in arguments[0].values)  # fmt: skip
    return getattr(arguments[0], "value", None) or getattr(module, arguments[0].id, None)


def test_the_names_of_the_judges_own_checks_have_rows():
    names = set()
    for path in (COLLECTION / "plugins/plugin_utils/judge").glob("*.py"):
        module = importlib.import_module(f"{judging.__name__}.{path.stem}")
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        names |= {name_of_entry(call, module) for call in calls}
    assert {"gpu_order", "sku", "versions_x", "x_plausible", "accelerator", "x_state"} < names
    # the class of a launch is its value, that of an end its state or its cause
    families = {"x_declared": ("services_declared", "mounts_declared")}
    concrete = {one for name in names - {None, "launch", "x_state"} for one in families.get(name, (name,))}
    assert [name for name in concrete if class_named(name) is None] == []


def test_classes_that_code_looks_up_by_name_have_rows():
    found = set()
    for path in (COLLECTION / "plugins/plugin_utils").rglob("*.py"):
        by_name = r"NAMED\[|(?:row_of|PodTrouble|JobEnd\.of)\(\s*|class_finding\([\w.]+, "
        found |= set(re.findall(rf"\b(?:{by_name})[\"'](\w+)[\"']", path.read_text()))
    assert len(found) > 30
    assert sorted(name for name in found if class_named(name) is None) == []


@pytest.mark.parametrize("name", [row.name for row in ROWS if "*" in row.name])
def test_a_row_is_found_by_its_own_name(name):
    concrete = next(one for one in class_names() if fnmatchcase(one, name) and class_named(one).name == name)
    assert subject_of(concrete) == class_named(concrete).subject


BROKEN = [check for check in SHIPPED if check.required and check.kind != "baseline"]


def test_broken_criteria_reach_every_row_of_criteria():
    rows = {row.name for path in failure_classes.files() for row in failure_classes.read(path).get("criteria", ())}
    assert rows <= {class_named(check.name).name for check in BROKEN}


@pytest.mark.parametrize("check", BROKEN, ids=lambda check: check.name)
def test_a_broken_criterion_has_its_class(check):
    report = report_with_one_broken(check)
    node = next(node for node in report["nodes"] if node["name"] == BAD)
    (entry,) = [one for one in node["checks"] if one["name"] == check.name and one["verdict"] in ("fail", "missing")]
    faults = {fault["class"]: fault.get("subject", subject_of(fault["class"])) for fault in node["action"]["faults"]}
    if entry["verdict"] == "fail":
        assert faults[check.name] == class_named(check.name).subject
    else:
        is_amount = check.samples_from == check.metric  # too little work is no evidence
        assert check.of_gang or is_amount or subject_of(check.name) != "node"
        assert faults.get(check.name) != "node"


@pytest.mark.parametrize("stage", ["training", "image"])
@pytest.mark.parametrize("state", [state for state in STATES if state != "missing"])
def test_the_end_of_a_stage_has_its_class(stage, state):
    run = make_run(stages=["facts", stage], gpu_count=8)
    evidence = healthy(run)
    evidence.records["node-1"][stage] = make_record("node-1", stage, state=state, message="it says so")
    (node,) = judge(run, evidence, [])["nodes"]
    (fault,) = node["action"]["faults"]
    assert class_named(fault["class"]).name in {f"*_{state}", f"image_{state}"}
    assert node["verdict"] == ("FAIL" if subject_of(fault["class"]) == "node" else "INCOMPLETE")


def test_a_check_of_the_judge_has_its_class():
    run = make_run(["empty", "gone", "killed", "other", "odd"], gpu_count=8, finished_at="2026-11-02T12:00:00Z")
    evidence = healthy(run)
    run["nodes"]["empty"]["stages"] = []
    for name, ended in (("gone", "runner ended: exit code 1"), ("killed", "runner ended: out of memory: killed")):
        del evidence.records[name]["training"]
        evidence.launches[name] = {"state": "started", "message": "", "ended": ended}
    run["nodes"]["other"] |= {"sku": "h100"}
    evidence.records["odd"]["training"]["metrics"].append(metric("training_tokens_per_second", -1.0))
    report = judge(run, evidence, [])
    classes = {node["name"]: {fault["class"] for fault in node["action"]["faults"]} for node in report["nodes"]}
    assert classes["gone"] == {"runner_ended"}
    assert classes["killed"] == {"runner_out_of_memory"}
    assert "stages" in classes["empty"]
    assert "sku" in classes["other"]
    assert "training_plausible" in classes["odd"]


# -- over four runs ----------------------------------------------------------------------------------------------------


def report_of_class(name, verdict, day):
    """The report on a run in which nothing but that class decided against `bad`."""
    time = f"2026-11-{day:02}T10:00:00Z"
    run = make_run(["bad", "good"], run_id=f"run-{day}", created_at=time, finished_at=time, gpu_count=8)
    evidence = healthy(run)
    for records in evidence.records.values():
        for record in records.values():
            record["run_id"] = run["run_id"]
    report = judge(run, evidence, [])
    node = next(node for node in report["nodes"] if node["name"] == "bad")
    entry = {"verdict": "fail" if verdict == "FAIL" else "missing", "reason": "so it is", "remedy": "do it"}
    groups = {row: group for path in failure_classes.files()
              for group, rows in failure_classes.read(path).items() for row in rows}  # fmt: skip
    if groups[class_named(name)] == "causes":
        check = own_entry("training_state", "training", "state", value="crash", **entry, **{"class": name})
    elif groups[class_named(name)] not in PATTERNED:
        check = own_entry("launch", "", "launch", value=name, **entry)
    else:
        check = own_entry(name, "training", "max", **entry)
    node |= {"verdict": verdict, "class": name, "checks": [check, *node["checks"]]}
    return run, report


def four_runs(tmp_path, name, verdict):
    """The actions, drains and entries of the health file after each of four runs that ended so."""
    taken, known, states = [], {}, []
    for day in range(10, 14):
        run, report = report_of_class(name, verdict, day)
        folder = RunFolder(tmp_path / run["run_id"])
        folder.path.mkdir(parents=True)
        folder.run_file.write_text(json.dumps(run))
        earlier, remarks = earlier_faults.read(folder, run, actions.shipped()["window_days"])
        assert remarks == []
        actions.assign(report, earlier)
        publishing.keep_verdict(folder, report)
        node = next(node for node in report["nodes"] if node["name"] == "bad")
        taken.append(node["action"]["name"])
        idle = drains.SlurmNode(frozenset({"IDLE"}))
        states.append(drains.decide(idle, node, report["run"], None, incomplete=True).state)
        known = health.merged(known, report)
    return taken, states, known["bad"]


def one_of_each_row():
    names = class_names()
    return [next(name for name in names if class_named(name).name == row.name) for row in ROWS]


@pytest.mark.parametrize("name", one_of_each_row())
def test_a_class_of_another_subject_than_the_node_never_escalates_nor_drains(tmp_path, name):
    row = class_named(name)
    taken, states, entry = four_runs(tmp_path, name, "INCOMPLETE")
    if row.also_incomplete:
        assert taken == escalated(row)
        assert states == ["DRAIN"] * 4 and failed_checks.is_about({"verdict": "INCOMPLETE", "class": name})
        return
    assert len(set(taken)) == 1 and not ABOUT_THE_NODE & set(taken)
    assert states == [""] * 4
    assert entry["verdict"] == "INCOMPLETE"
    before = {"verdict": "PASS", "class": None}
    assert failed_checks.verdict_after({"verdict": "INCOMPLETE", "class": name}, {"narrowed_by": []}, "PASS",
                                       failed=False) is None, before  # fmt: skip


@pytest.mark.parametrize("name", [name for name in one_of_each_row() if subject_of(name) == "node"])
def test_a_fault_of_the_node_drains_and_escalates(tmp_path, name):
    taken, states, entry = four_runs(tmp_path, name, "FAIL")
    assert taken == escalated(class_named(name))
    assert states == ["DRAIN"] * 4
    assert (entry["verdict"], entry["class"], entry["action"]) == ("FAIL", name, taken[-1])


def escalated(row):
    """What four runs in a row do about a fault of the whole node."""
    steps = [step for step in actions.shipped()["ladders"][row.ladder]["steps"] if step != "replace_gpu"]
    return [steps[min(number, len(steps) - 1)] for number in range(4)]


def test_runs_that_lacked_evidence_count_for_no_later_fault(tmp_path):
    name = "facts_gpu_count"
    four_runs(tmp_path, name, "INCOMPLETE")
    run, report = report_of_class(name, "FAIL", 15)
    folder = RunFolder(tmp_path / run["run_id"])
    earlier, _ = earlier_faults.read(folder, run, actions.shipped()["window_days"])
    actions.assign(report, earlier)
    node = next(node for node in report["nodes"] if node["name"] == "bad")
    assert (node["action"]["name"], node["action"]["earlier_runs"]) == ("reboot", [])


def crashed(stage, state="crash", **environment):
    def change(evidence, name):
        record = make_record(name, stage, state=state, message="exit code 1", exit_code=1, environment=environment)
        evidence.records[name][stage] = {**record, "run_id": evidence.records[name]["facts"]["run_id"]}

    return change


def away(**launch):
    def change(evidence, name):
        del evidence.records[name]
        evidence.launches[name] = launch

    return change


def lost(**contact):
    def change(evidence, name):
        del evidence.records[name]["training"]
        evidence.launches[name] |= {"contact": {"message": "m", "remedy": "r", **contact}}

    return change


#: What a node names of other work; who ends it needs no other action the second time.
PYTHON = "python (pid 4711, user ann) on gpu:0"


def refused(evidence, name):
    """The record of the stage's end contradicts itself, so that the last one accepted is of its work."""
    evidence.records[name]["training"] |= {"state": "running", "exit_code": None, "finished_at": None}
    evidence.add_problem("series refused: too many points", node=name, stage="training")
    evidence.add_problem("record refused: it reports success with exit code 1", node=name, stage="training")


def xid(evidence, name):
    metrics = evidence.records[name]["training"]["metrics"]
    next(one for one in metrics if (one["name"], one["scope"]) == ("gpu_xid_critical_count", "gpu:3"))["value"] = 1


def cause(name):
    return {"cause": {"class": name, "text": "so it says", "rank": 0}}


#: By subject what nodes of a run met, and the class that they have then; `shared` where several fail alike.
MET = [
    ("store", crashed("loading", fault="store_away"), "store_away"),
    ("store", crashed("loading", "failure", fault="store_incomplete"), "store_incomplete"),
    ("store", away(state="failed", message="the store cannot be used: it does not answer"), "store_away"),
    ("network", away(state="unreachable", message="Connection closed by UNKNOWN port 65535"), "jump_host"),
    ("site", crashed("inference", "failure", **cause("environment")), "environment"),
    ("site", crashed("training", **cause("disk_full")), "disk_full"),
    ("site", away(state="unreachable", message="Permission denied (publickey)"), "login_denied"),
    ("program", crashed("mine"), "own_program"),
    ("program", crashed("mine", "failure", **cause("own_program")), "own_program"),
    ("program", crashed("mine", "timeout"), "own_program"),
    ("scheduler", lost(**{"class": "slurm_preempted"}), "slurm_preempted"),
    ("scheduler", lost(**{"class": "evicted", "pod": True}), "evicted"),
    ("scheduler", away(state="refused", message="run other is at work on this node"), "other_run"),
    (
        "scheduler",
        away(state="refused", message=f"others use this node's accelerators or run here: {PYTHON}"),
        "foreign_work",
    ),
    ("gpuval", lambda evidence, name: evidence.records[name].pop("training"), "training_missing"),
    ("gpuval", refused, "training_refused"),
    ("node", xid, "training_xid_per_gpu"),
    ("node", crashed("mine", **cause("hardware")), "hardware"),
    ("node", lost(**{"class": "slurm_node_failed"}), "slurm_node_failed"),
    ("node", away(state="unreachable", message="No route to host"), "no_route"),
]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("subject", "change", "name"), MET, ids=[f"{one[2]}-{number}" for number, one in enumerate(MET)]
)
def test_what_nodes_met_in_four_runs_is_held_against_them_only_if_it_speaks_of_them(
    tmp_path, subject, change, name, many
):
    names = [f"node-{number}" for number in range(4)]
    bad = names if many else names[:1]
    taken, states, verdicts, classes, known = [], set(), set(), set(), {}
    for day in range(10, 14):
        time = f"2026-11-{day:02}T10:00:00Z"
        stages = ["facts", "training", "loading", "inference", "mine"]
        run = make_run(names, stages=stages, run_id=f"run-{day}", created_at=time, finished_at=time, gpu_count=8)
        evidence = healthy(run)
        for node in names:
            evidence.records[node]["mine"] = make_record(node, "mine")
            evidence.records[node]["training"]["metrics"] += [
                metric("gpu_xid_critical_count", 0, "count", f"gpu:{index}") for index in range(8)
            ]
            for record in evidence.records[node].values():
                record["run_id"] = run["run_id"]
        for node in bad:
            change(evidence, node)
        folder = RunFolder(tmp_path / run["run_id"])
        folder.path.mkdir(parents=True)
        folder.run_file.write_text(json.dumps(run))
        report = judge(run, evidence, [check for check in SHIPPED if check.name == "training_xid_per_gpu"])
        actions.assign(report, earlier_faults.read(folder, run, actions.shipped()["window_days"])[0])
        publishing.keep_verdict(folder, report)
        for node in (one for one in report["nodes"] if one["name"] in bad):
            taken.append(node["action"]["name"])
            classes.add(node["class"])
            verdicts.add(node["verdict"])
            idle = drains.SlurmNode(frozenset({"IDLE"}))
            states.add(drains.decide(idle, node, report["run"], None, incomplete=True).state)
        assert not any(node["flaky"] or node.get("action") for node in report["nodes"] if node["name"] not in bad)
        known = health.merged(known, report)
    assert classes == {name}
    if subject == "node":
        assert states == {"DRAIN"} and taken[-1] in ABOUT_THE_NODE and taken[-1] != taken[0]
    else:
        assert verdicts == {"INCOMPLETE"} and states == {""}
        assert not ABOUT_THE_NODE & set(taken) and len(set(taken)) == 1
        assert {known[node]["verdict"] for node in bad} == {"INCOMPLETE"}
