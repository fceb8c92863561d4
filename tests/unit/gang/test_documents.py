"""Documents of a round of many nodes: members once in run.json, whole in each plan, as a file for the program."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import nonce_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from gpuval_runner import environment, scratch
from gpuval_runner import plan as node_plan

pytest.importorskip("torch")

from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.gang import members, membership

MANY = 1000
RUN = {"run_id": "20261122-000000-abcd", "folder": "20261122-000000-abcd", "bucket": "gpuval", "profile": "standard"}


def listed(count, prefix="node"):
    name, kind = "{}-{:04}.rack-{:02}.cluster-2.example.internal", {"slots": 8, "vendor": "nvidia"}
    return [
        {"node": name.format(prefix, i, i // 32), "address": f"10.{i // 250}.{i % 250}.7", **kind} for i in range(count)
    ]


def made(gangs):
    run = rounds.round_run(
        RUN,
        "all",
        gangs,
        ["collective"],
        port=29500,
        ssh_port=3022,
        seconds=60,
        created_at="2026-11-22T00:00:00Z",
    )
    schemas.validate("run", run, what="run.json")
    return run


def plan_of(run, node):
    settings = plans.PlanSettings(
        run_id=run["run_id"], node=node, created_at="2026-11-22T00:00:00Z", deadline_seconds=60, heartbeat_seconds=10,
        runtime="host", sku="nvidia", gpu_count=8, python="python3", models_dir=None, gang=plans.gang_of(run, node),
    )  # fmt: skip
    plan = plans.build(settings, ["collective"], {"collective": {"command": ["x"]}})
    schemas.validate("plan", plan, what="plan")
    return plan


def test_run_json_of_a_thousand_nodes_stays_small():
    run = made({"all": listed(MANY)})
    assert len(json.dumps(run)) < 400 * MANY


def test_each_node_s_plan_has_its_gang_whole():
    one, two = listed(3, "a"), listed(2, "b")
    run = made({"one": one, "two": two})
    gang = plan_of(run, two[1]["node"])["gang"]
    assert gang == {
        "name": "two",
        "index": 1,
        "members": [{key: member[key] for key in ("node", "address", "slots")} for member in two],
        "port": 29500,
        "ssh_port": 3022,
    }
    assert plans.gang_of({"nodes": {"x": {}}}, "x") is None


def test_a_plan_is_kept_without_the_members_and_is_whole_again():
    run = made({"all": listed(MANY)})
    node = list(run["nodes"])[7]
    plan = plan_of(run, node)
    kept = plans.without_members(plan)
    schemas.validate("plan", kept, what="plan")
    assert len(json.dumps(kept)) < 4096
    again = plans.with_members(plans.for_attempt(json.loads(json.dumps(kept)), ["collective"], 2), run)
    assert again == {**plan, "attempt": 2, "nonce": nonce_of(plan["nonce"], 2)}
    assert again["gang"]["members"] is run["gangs"]["all"]["members"]
    alone = {"nodes": {node: {"stages": []}}}
    without = {key: value for key, value in plan.items() if key != "gang"}
    assert plans.without_members(without) == plans.with_members(without, alone) == without


def test_the_program_of_a_gang_of_many_gets_it_as_a_file(tmp_path):
    """One variable holds 128 KiB at most, and so does one argument of an engine."""
    run = made({"all": listed(2 * MANY)})
    node = list(run["nodes"])[1200]
    plan = node_plan.parse(plan_of(run, node))
    places = environment.StagePaths(*[tmp_path] * 6)
    values = environment.build(plan, plan.stages[0], places, environment.PlannedAccelerator("nvidia", 8), {})
    assert max(map(len, values.values())) < 4096
    (tmp_path / "ca.pem").write_text("authority")
    (tmp_path / "store.json").write_text(json.dumps({"ca_file": "ca.pem", "members": {"collective/n2": "https://x"}}))
    scratch.write_gang(tmp_path, plan.gang, tmp_path)
    kept = json.loads((tmp_path / membership.RECORDS_FILE).read_text())
    assert kept == {"urls": {"collective/n2": "https://x"}, "ca": "authority"}
    gang = members.from_environment(values)
    assert (gang.index, gang.own.node, len(gang.members)) == (1200, node, 2 * MANY)


def test_by_hand_the_document_may_be_the_variable(tmp_path):
    document = json.dumps({"name": "all", "index": 0, **made({"all": listed(2)})["gangs"]["all"]})
    assert members.from_environment({"GPUVAL_GANG": document}).index == 0
    with pytest.raises(WorkloadFailure, match="neither GPUVAL_GANG_FILE nor GPUVAL_GANG is set"):
        members.from_environment({})
    with pytest.raises(WorkloadFailure, match="cannot be read: No such file"):
        members.from_environment({"GPUVAL_GANG_FILE": str(tmp_path / "none")})
    (tmp_path / "odd").write_bytes(b"\xff{")
    with pytest.raises(WorkloadFailure, match="does not describe a gang"):
        members.from_environment({"GPUVAL_GANG_FILE": str(tmp_path / "odd")})


def test_a_node_alone_has_no_such_file(tmp_path):
    scratch.prepare(environment.StagePaths(*[tmp_path / "work"] * 6), "", {})
    assert not list(tmp_path.rglob("gang*"))
