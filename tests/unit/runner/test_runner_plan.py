import json

import pytest
from gpuval_runner.errors import NodePlanError
from gpuval_runner.plan import MAX_PLAN_BYTES, expand, load, parse

from tests.kit.runner import plan, stage


def test_a_plan_is_read(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan(stage("a"), stage("b", needs=["a"], patterns=[{"pattern": "(?P<value>.+)"}]))))
    loaded = load(path)
    assert [s.name for s in loaded.stages] == ["a", "b"]
    assert loaded.stages[1].patterns[0].pattern == "(?P<value>.+)"
    assert loaded.stages[0].grace_seconds == 1.0


def changed(**changes):
    return {**plan(stage("a")), **changes}


def reading(**changes):
    return changed(stages=[stage("a", output=[{"name": "n", **changes}])])


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "plan is not an object"),
        (changed(schema="gpuval.plan/2"), "different versions"),
        (changed(run_id="../etc"), "run_id"),
        (changed(node="a/b"), "node"),
        (changed(attempt=True), "attempt"),
        (changed(deadline_seconds=0), "deadline_seconds"),
        (changed(heartbeat_seconds=float("nan")), "heartbeat_seconds"),
        (changed(runtime="lxc"), "host, docker, podman, auto, pod"),
        (changed(more=1), "unknown fields: more"),
        (changed(stages=[]), "stages"),
        (changed(stages=[stage("a"), stage("a")]), "stands twice"),
        (changed(stages=[stage("a", needs=["b"]), stage("b")]), "does not come before"),
        (changed(stages=[stage("a", needs=["x"])]), "which the plan does not have"),
        (changed(stages=[stage("a", command=[])]), "command"),
        (changed(stages=[stage("a", command=["x\0y"])]), "command"),
        (changed(stages=[stage("a", environment={"A=B": "c"})]), "environment"),
        (changed(stages=[stage("a", timeout_seconds=-1)]), "timeout_seconds"),
        (changed(stages=[stage("a", patterns=[{"pattern": "("}])]), "not a regular expression"),
        (changed(stages=[stage("a", patterns=[{"pattern": "x"}])]), r"(?P<value>...)"),
        (reading(values=[{"labels": ["x"], "unit": "s"}]), "output[0].values[0].figures is missing"),
        (reading(values=[{"labels": ["x"], "unit": "s", "figures": {"a": "mean"}}]), "first, last, median"),
        (reading(values=[{"labels": "x", "unit": "s", "figures": {}}]), "labels is not a list"),
        (reading(values=[], step={"labels": ["x"], "regex": "y"}), "unknown fields: regex"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(document, said):
    with pytest.raises(NodePlanError) as caught:
        parse(document)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "x" * (MAX_PLAN_BYTES + 1)])
def test_a_file_that_is_no_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(NodePlanError):
        load(tmp_path / "plan.json")


def test_members_of_a_gang_may_lie_beside_the_plan(tmp_path):
    path, members = tmp_path / "plan.json", [{"node": "n1", "address": "a1", "slots": 1}]
    path.write_text(json.dumps(changed(gang={"name": "all", "index": 0})))
    with pytest.raises(NodePlanError, match=r"gang\.json does not exist"):
        load(path)
    for wrong in ("[]", "{", '{"port": 1}'):
        (tmp_path / "gang.json").write_text(wrong)
        with pytest.raises(NodePlanError, match="gang"):
            load(path)
    (tmp_path / "gang.json").write_text(json.dumps({"members": members, "port": 29500, "index": 7}))
    assert json.loads(load(path).gang) == {"members": members, "port": 29500, "index": 0, "name": "all"}
    path.write_text(json.dumps(changed(gang={"name": "own", "index": 0, "members": members})))
    assert json.loads(load(path).gang)["name"] == "own"


def test_placeholders_are_replaced_and_other_braces_kept():
    assert (
        expand("{python} {x} {node}{node} {{run_id}} {}", {"python": "py", "node": "n", "run_id": "r"})
        == "py {x} nn {r} {}"
    )
