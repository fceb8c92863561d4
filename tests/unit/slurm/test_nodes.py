"""What Slurm says of nodes, in the text of 22.05 and the JSON of 23.02, becomes hosts with Slurm's own reasons."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.node_list import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm, SlurmError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.inventory import fleet


def line(name, state="IDLE", gres="gpu:h200:8", reason="", features="ib,rack1"):
    end = f" Reason={reason}" if reason else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 CPUTot=192 AvailableFeatures={features} "
        f"ActiveFeatures={features} Gres={gres} NodeAddr=10.0.0.7 NodeHostName={name} Version=22.05.8 "
        f"OS=Linux 6.1.0-13 #1 SMP Debian 6.1.55-1 (2023-09-29) RealMemory=2000000 State={state} ThreadsPerCore=2 "
        f"Owner=N/A MCS_label=N/A Partitions=gpu,all  BootTime=2026-11-23T07:24:55 CfgTRES=cpu=192,mem=2000000M "
        f"AllocTRES= CapWatts=n/a{end}"
    )


def item(name, *state, **others):
    known = {"gres": "gpu:h200:8(S:0-1)", "partitions": ["gpu", "all"], "active_features": ["ib", "rack1"]}
    known |= {"address": "10.0.0.7", "version": "23.02.7", "reason": "", "reason_set_by_user": "root"}
    known |= {"reason_changed_at": {"set": True, "infinite": False, "number": 0}}
    return {"name": name, "state": list(state) or ["IDLE"], **known, **others}


def from_json(*items):
    return nodes.from_json(json.dumps({"nodes": items, "errors": []}))


def test_both_forms_say_the_same():
    (text,) = nodes.from_text(line("gpu-1", "IDLE+DRAIN", reason="bad fan [ops@2026-11-23T22:05:56]") + "\n")
    at = {"set": True, "infinite": False, "number": 1795471556}
    (other,) = from_json(
        item("gpu-1", "IDLE", "DRAIN", reason="bad fan", reason_set_by_user="ops", reason_changed_at=at)
    )
    assert (text["reason"], text["reason_by"], text["reason_at"]) == ("bad fan", "ops", "2026-11-23T22:05:56")
    assert other["reason_at"] == "2026-11-23T22:05:56Z"
    for key in ("name", "address", "state", "partitions", "features", "reason", "reason_by"):
        assert text[key] == other[key], key
    assert nodes.gpus(text) == nodes.gpus(other) == ("h200", 8)


def test_the_json_of_sinfo_before_23_02_is_understood_too():
    (one,) = from_json(
        item("a", state="idle", state_flags=["DRAIN"], features="ib,rack1", active_features="ib", reason_changed_at=0)
    )
    assert (one["state"], one["features"]) == (["IDLE", "DRAIN"], ["ib"])


def test_an_answer_without_nodes_is_an_error_and_comments_are_no_fields():
    with pytest.raises(ValueError, match="no list of nodes"):
        nodes.from_json('{"nodes": [], "errors": [{"error": "away"}]}')
    (one,) = nodes.from_text(line("a", "IDLE+DRAIN", reason="x [ops@2026-11-23T22:05:56]") + " Comment=State=IDLE now")
    assert one["state"] == ["IDLE", "DRAIN"]


@pytest.mark.parametrize("at", [None, {"set": False, "infinite": True, "number": 2**64 - 2}, {"set": False}, 0])
def test_a_reason_without_a_time(at):
    (one,) = from_json(item("a", "DOWN", "DRAIN", reason="bad fan", reason_changed_at=at))
    assert (one["reason"], one["reason_at"]) == ("bad fan", "")


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", ("", 0)),
        ("gpu:8", ("", 8)),
        ("gpu:h200:8(S:0-1),nvme:2", ("h200", 8)),
        ("gpu:a100:2,gpu:h100:6(S:0)", ("h100", 6)),
        ("gpu_shared:h200:8", ("", 0)),
        ("gpu:4090:8", ("4090", 8)),
        ("gpu:2080ti:4(S:0,2),nvme:1", ("2080ti", 4)),
        ("gpu:h100:4,gpu:1g.10gb:28", ("1g.10gb", 28)),
    ],
)
def test_gpus_of_a_gres(gres, expected):
    (one,) = nodes.from_text(line("a", gres=gres))
    assert nodes.gpus(one) == expected


@pytest.mark.parametrize(
    ("state", "reason", "expected", "words"),
    [
        ("IDLE", "", "reachable", ""),
        ("MIXED+PLANNED", "", "reachable", ""),
        ("IDLE~", "", "reachable", ""),
        ("DOWN*", "Not responding [slurm@2026-11-23T22:00:00]", "slurm_node_down", "Not responding"),
        ("IDLE*", "", "slurm_node_down", "Slurm gives no reason"),
        (
            "UNKNOWN+DRAIN+INVALID_REG",
            "gres/gpu count reported lower than configured (0 < 8)",
            "slurm_node_down",
            "0 < 8",
        ),
        (
            "ALLOCATED+DRAIN",
            "fan=broken at PSU=2 [ops@2026-11-23T22:00:00]",
            "slurm_drained",
            "by ops since 2026-11-23",
        ),
        ("IDLE+EXTERNAL", "", "slurm_node_missing", "Slurm runs no slurmd on it"),
        ("IDLE+MAINTENANCE", "", "slurm_reserved", "MAINTENANCE"),
        ("IDLE+RESERVED", "", "slurm_reserved", "RESERVED"),
    ],
)
def test_who_cannot_work_has_its_class_and_slurms_reason(state, reason, expected, words):
    (one,) = nodes.from_text(line("gpu-1", state, reason=reason))
    found = nodes.finding("gpu-1", one)
    assert found.state == expected
    assert words in found.message
    assert bool(found.remedy) == (expected != "reachable")
    assert "{node}" not in found.remedy


def test_a_reservation_of_ones_own_is_no_obstacle():
    (one,) = nodes.from_text(line("a", "IDLE+MAINTENANCE"))
    assert nodes.finding("a", one, reservation="gpuval").state == "reachable"
    assert nodes.finding("b", None).state == "slurm_node_missing"


def test_hosts_have_groups_sku_and_what_is_expected_of_their_like():
    found = nodes.from_text("\n".join([line("gpu-10"), line("gpu-2", gres="gpu:h200:7"), line("cpu-1", gres="(null)")]))
    made = fleet(found)
    assert [host.name for host in made.hosts] == ["cpu-1", "gpu-2", "gpu-10"]
    assert made.hosts[0].groups == ("partition_gpu", "partition_all", "feature_ib", "feature_rack1")
    assert made.hosts[1].groups[-2:] == ("sku_h200", "gres_h200")
    assert made.hosts[1].variables["gpuval_placement"] == "slurm"
    assert made.hosts[1].variables["slurm_node"]["exists"]
    assert made.group_variables == {"sku_h200": {"gpuval_sku": "h200"}, "gres_h200": {"gpuval_gpu_count": 8}}


def test_expected_nodes_stay_also_those_that_slurm_lacks():
    made = fleet(nodes.from_text("\n".join([line("a"), line("z")])), parse("a\nb", "list"))
    assert ([host.name for host in made.hosts], made.missing, made.beyond) == (["a", "b"], ("b",), ("z",))
    assert made.hosts[1].variables["slurm_node"] == {"exists": False, "reason": "Slurm has no node b"}


def test_rules_of_skus():
    rules = {"h200-ib": {"type": "*H200*", "feature": "ib"}, "big": {"partition": "gpu"}}
    found = nodes.from_text("\n".join([line("a"), line("b", features="eth"), line("c", gres="gpu:nvidia_h100_80gb:8")]))
    skus = [made.groups for made in fleet(found, skus=rules).hosts]
    assert "sku_h200_ib" in skus[0]
    assert "sku_big" in skus[1]
    assert fleet(found).group_variables["sku_h100_80gb"] == {"gpuval_sku": "h100-80gb"}


def test_commands_use_json_where_there_is_any_and_try_again_where_slurmctld_is_away(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    asked = []

    def call(command, _data, _seconds):
        asked.append(command)
        if "--json" in command:
            return 1, "", "scontrol: unrecognized option '--json'"
        return (
            (1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)")
            if len(asked) < 4
            else (0, line("a"), "")
        )

    assert [one["name"] for one in Slurm(call).nodes()] == ["a"]
    assert len(asked) == 4
    with pytest.raises(SlurmError, match="Invalid account") as raised:
        Slurm(lambda *_: (1, "", "sbatch: error: Batch job submission failed: Invalid account")).submit([], b"")
    assert not raised.value.away
