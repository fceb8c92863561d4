"""What Slurm says of nodes, in the text of all versions, becomes hosts with Slurm's own reasons."""

from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory.node_list import parse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import jobs, nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm, SlurmError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.nodes import SlurmHosts


def line(name, state="IDLE", gres="gpu:h200:8", reason="", features="ib,rack1"):
    end = f" Reason={reason}" if reason else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 CPUTot=192 AvailableFeatures={features} "
        f"ActiveFeatures={features} Gres={gres} NodeAddr=10.0.0.7 NodeHostName={name} Version=22.05.8 "
        f"OS=Linux 6.1.0-13 #1 SMP Debian 6.1.55-1 (2023-09-29) RealMemory=2000000 State={state} ThreadsPerCore=2 "
        f"Owner=N/A MCS_label=N/A Partitions=gpu,all  BootTime=2026-11-23T07:24:55 CfgTRES=cpu=192,mem=2000000M "
        f"AllocTRES= CapWatts=n/a{end}"
    )


@pytest.fixture(params=["22.05", "26.05"])
def answer(request):
    """What a command of Slurm printed in that version: gpu-1 is drained, gpu-3 in a maintenance with a job."""
    folder = Path(__file__).with_name("answers") / request.param
    return lambda name: (folder / f"{name}.txt").read_text()


def test_each_version_says_the_same_of_its_nodes(answer):
    drained, idle, reserved = nodes.from_text(answer("nodes"))
    assert (drained["reason"], drained["reason_by"], drained["reason_at"][:10]) == ("bad fan", "root", "2026-11-28")
    assert (drained["state"], idle["state"]) == (["IDLE", "DRAIN"], ["IDLE"])
    assert reserved["state"] == ["ALLOCATED", "MAINTENANCE", "RESERVED"]
    for one in (drained, idle, reserved):
        assert (one["address"], one["partitions"], one["features"]) == (one["name"], ["gpu"], ["ib", "rack1"])
        assert nodes.gpus(one) == ("h200", 8)
        assert one["version"][:5] in ("22.05", "26.05")


def test_each_version_says_the_same_of_its_jobs_and_limits(answer):
    found = jobs.parse(answer("squeue"))
    assert [(one.state, one.reason) for one in found.values()] == [
        ("FAILED", "NonZeroExitCode"), ("PENDING", "JobHeldUser"), ("RUNNING", "None"),
    ]  # fmt: skip
    assert Slurm(lambda *_: (0, answer("job"), "")).exit_code(1) == jobs.REFUSED
    partition, reservation = nodes.fields(answer("partitions")), nodes.fields(answer("reservation"))
    assert [partition[key] for key in ("PartitionName", "Default", "QoS", "MaxTime")] == [
        "gpu",
        "YES",
        "N/A",
        "UNLIMITED",
    ]
    assert reservation["EndTime"][:10] == "2026-11-28"
    assert (reservation["Flags"], reservation["Nodes"]) == ("MAINT,IGNORE_JOBS,SPEC_NODES", "gpu-3")


def test_comments_are_no_fields():
    (one,) = nodes.from_text(line("a", "IDLE+DRAIN", reason="x [ops@2026-11-23T22:05:56]") + " Comment=State=IDLE now")
    assert one["state"] == ["IDLE", "DRAIN"]


def test_a_reason_without_a_time():
    (one,) = nodes.from_text(line("a", "DOWN+DRAIN", reason="bad fan"))
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
    made = SlurmHosts().fleet(found)
    assert [host.name for host in made.hosts] == ["cpu-1", "gpu-2", "gpu-10"]
    assert made.hosts[0].groups == ("partition_gpu", "partition_all", "feature_ib", "feature_rack1")
    assert (made.hosts[1].groups[0], made.hosts[1].groups[-1]) == ("sku_h200", "gres_h200")
    assert made.hosts[1].variables["gpuval_placement"] == "slurm"
    assert made.hosts[1].variables["slurm_node"]["exists"]
    assert made.group_variables == {"sku_h200": {"gpuval_sku": "h200"}, "gres_h200": {"gpuval_gpu_count": 8}}


def test_expected_nodes_stay_also_those_that_slurm_lacks():
    made = SlurmHosts().fleet(nodes.from_text("\n".join([line("a"), line("z")])), parse("a\nb", "list"))
    assert ([host.name for host in made.hosts], made.missing, made.beyond) == (["a", "b"], ("b",), ("z",))
    assert made.hosts[1].variables["slurm_node"] == {"exists": False, "reason": "Slurm has no node b"}


def test_rules_of_skus():
    rules = {"h200-ib": {"type": "*H200*", "feature": "ib"}, "big": {"partition": "gpu"}}
    found = nodes.from_text("\n".join([line("a"), line("b", features="eth"), line("c", gres="gpu:nvidia_h100_80gb:8")]))
    skus = [made.groups for made in SlurmHosts(rules).fleet(found).hosts]
    assert "sku_h200_ib" in skus[0]
    assert "sku_big" in skus[1]
    assert SlurmHosts().fleet(found).group_variables["sku_h100_80gb"] == {"gpuval_sku": "h100-80gb"}


def test_commands_try_again_where_slurmctld_is_away(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    asked = []

    def call(command, _data, _seconds):
        asked.append(command)
        away = (1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)")
        return away if len(asked) < 3 else (0, line("a"), "")

    assert [one["name"] for one in Slurm(call).nodes()] == ["a"]
    assert len(asked) == 3
    with pytest.raises(SlurmError, match="Invalid account") as raised:
        Slurm(lambda *_: (1, "", "sbatch: error: Batch job submission failed: Invalid account")).submit([], b"")
    assert not raised.value.away
