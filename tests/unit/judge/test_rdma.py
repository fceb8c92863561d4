"""The shipped criteria of the stage rdma, and the RDMA ports that were ordered, held against the facts."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import declared
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit import builders
from tests.kit.builders import check as make_check
from tests.kit.builders import facts_record, judge, make_record, make_run, metric

SHIPPED = [check for check in builders.SHIPPED if check.stage == "rdma"]
THERE = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)
PORTS = [f"mlx5_{index}:1" for index in range(8)]


def figures(ports=PORTS, **changed):
    """What a stage reports whose ports are healthy; ``changed`` by metric, of the node or of the last port."""
    links = {
        "rdma_write_ratio": 0.98, "rdma_send_ratio": 0.97, "rdma_gpu_write_ratio": 0.96, "rdma_pair_ratio": 0.96,
        "rdma_read_latency_p50_seconds": 1.8e-6, "rdma_read_latency_p99_seconds": 1.9e-6,
        "rdma_write_latency_p99_seconds": 1.9e-6,
    }  # fmt: skip
    counts = dict.fromkeys(
        (
            "failed",
            "gpu_untested",
            "link_error",
            "retransmission",
            "full_counters",
            "ports_down",
            "ports_other",
            "nics_slow",
        ),
        0,
    )
    counts |= {"measured": 8 * len(ports), "ports": len(ports), "pkey_tables": min(1, len(ports))}
    node = {f"rdma_{name}_count": value for name, value in counts.items()}
    node |= {name: value for name, value in changed.items() if name in node}
    found = [metric(name, value) for name, value in node.items() if value is not None]
    for name, usual in links.items():
        unit = "seconds" if name.endswith("seconds") else "ratio"
        values = [usual * (1 + 0.001 * index) for index in range(len(ports))]
        if name in changed and ports:
            values[-1] = changed[name]
        found += [metric(name, value, unit, f"link:{port}") for port, value in zip(ports, values, strict=True)]
    return found


def judged(metrics, *, pkeys=("0xffff",), message="mlx5_7:1: cause", **environment):
    """The node's verdict, and its checks that do not pass: each other P_Key is that of a further node."""
    names = [f"node-{index}" for index in range(len(pkeys))]
    run, records = make_run(names, stages=["facts", "rdma"]), {}
    for name, keys in zip(names, pkeys, strict=True):
        present = any(one["scope"].startswith("link:") for one in metrics)
        same = {"rdma_ports": "8 x InfiniBand ACTIVE 400 Gb/s", "rdma_pkeys": keys}
        record = make_record(
            name, "rdma", metrics=metrics, message=message,
            environment={"infiniband": "none" if keys == "none" else "present", **environment},
            fingerprints={**same, "rdma": "present" if present else "none"},
        )  # fmt: skip
        records[name] = {"facts": facts_record(name), "rdma": record}
    node = judge(run, RunEvidence(records=records), [THERE, *SHIPPED])["nodes"][-1]
    entries = [
        one for one in node["checks"] if one["stage"] == "rdma" and one["verdict"] in ("fail", "warn", "missing")
    ]
    return node["verdict"], {one["name"]: one for one in entries}


def test_a_healthy_node_passes():
    assert judged(figures()) == ("PASS", {})


def test_a_node_with_nothing_to_test_passes():
    verdict, entries = judged(figures(ports=[]), pkeys=("none",))
    assert (verdict, entries) == ("PASS", {})


@pytest.mark.parametrize(
    ("changed", "verdict", "name"),
    [
        ({"rdma_write_ratio": 0.49}, "FAIL", "rdma_write_floor"),
        ({"rdma_write_ratio": 351 / 400}, "FAIL", "rdma_write_floor"),  # a degraded port at Azure
        ({"rdma_write_ratio": 0.92}, "PASS", "rdma_write_outlier"),
        ({"rdma_send_ratio": 0.5}, "FAIL", "rdma_send_floor"),
        ({"rdma_gpu_write_ratio": 0.4}, "FAIL", "rdma_gpu_write_floor"),
        ({"rdma_pair_ratio": 0.5}, "FAIL", "rdma_pair_floor"),
        (
            {"rdma_read_latency_p50_seconds": 3e-6, "rdma_read_latency_p99_seconds": 3.2e-6},
            "PASS",
            "rdma_read_latency_outlier",
        ),
        ({"rdma_read_latency_p99_seconds": 9e-6}, "PASS", "rdma_read_latency_tail"),
        ({"rdma_failed_count": 1}, "FAIL", "rdma_failed"),
        ({"rdma_measured_count": None}, "INCOMPLETE", "rdma_measured"),
        ({"rdma_link_error_count": 2}, "FAIL", "rdma_link_errors"),
        ({"rdma_link_error_count": None}, "INCOMPLETE", "rdma_link_errors"),
        ({"rdma_retransmission_count": 1}, "PASS", "rdma_retransmissions"),
        ({"rdma_ports_down_count": 1}, "PASS", "rdma_ports_up"),
        ({"rdma_ports_other_count": 32}, "PASS", "rdma_ports_for_perftest"),
        ({"rdma_gpu_untested_count": 1}, "PASS", "rdma_gpu_tested"),
        ({"rdma_pkey_tables_count": 2}, "PASS", "rdma_pkeys_within"),
    ],
)
def test_what_is_wrong_is_named(changed, verdict, name):
    found, entries = judged(figures(**changed))
    assert found == verdict and name in entries
    assert entries[name]["remedy"]
    entry = entries[name]
    assert "mlx5_7:1" in entry["part"] + entry["reason"]


def test_counters_that_the_driver_does_not_have_are_advice():
    left_out = {"counters": "the driver of mlx5_7:1 has no error counters"}
    verdict, entries = judged(
        figures(rdma_link_error_count=None, rdma_retransmission_count=None, rdma_full_counters_count=None),
        left_out=left_out,
    )
    assert verdict == "PASS" and entries["rdma_link_errors"]["severity"] == "advisory"
    verdict, entries = judged(figures(rdma_link_error_count=2), left_out=left_out)  # of the other ports
    assert verdict == "FAIL" and entries["rdma_link_errors"]["severity"] == "required"


def test_another_partition_than_the_fleets_is_for_the_subnet_manager_to_correct():
    verdict, entries = judged(figures(), pkeys=("0xffff", "0xffff", "0x7fff, 0xffff"))
    assert verdict == "INCOMPLETE" and entries["rdma_pkeys_agree"]["verdict"] == "fail"
    assert "0x7fff, 0xffff" in entries["rdma_pkeys_agree"]["reason"]


def test_a_node_without_infiniband_beside_others_lacks_evidence_and_is_in_no_other_partition():
    verdict, entries = judged(figures(ports=[]), pkeys=("0xffff", "0xffff", "none"))
    assert (verdict, entries["rdma_pkeys_agree"]["verdict"]) == ("INCOMPLETE", "missing")
    assert "2 others of its kind report something else" in entries["rdma_pkeys_agree"]["reason"]
    assert "rdma_pkeys_agree" not in judged(figures(), pkeys=("none", "none", "none"))[1]  # RoCE


def port(name="mlx5_0", state="ACTIVE", rate=400e9):
    ports = [{"port": 1, "state": state, "physical_state": "LinkUp", "rate_bits_per_second": rate}]
    return {"kind": "rdma", "name": name, "ports": ports}


def ordered(nics, count=2, rate="400 Gb/s"):
    run = make_run(stages=["facts"])
    run["nodes"]["node-1"]["nics"] = declared.parse_nics(count, rate)
    schemas.validate("run", run, what="run.json")
    facts = facts_record()
    facts["environment"]["nics"] = nics
    node = judge(run, RunEvidence(records={"node-1": {"facts": facts}}), [THERE])["nodes"][0]
    return next(one for one in node["checks"] if one["name"] == "nic_count"), node["verdict"]


ETHERNET = {"kind": "interface", "name": "eth0"}


@pytest.mark.parametrize(
    ("nics", "verdict", "words"),
    [
        ([ETHERNET, port(), port("mlx5_1"), port("mlx5_2", "DOWN")], "PASS", "2 RDMA ports have a link at 400 Gb/s"),
        ([port(), port("mlx5_1", "DOWN")], "FAIL", "1 RDMA ports have a link at 400 Gb/s, not mlx5_1:1 (DOWN); 2 were"),
        ([port(), port("mlx5_1", rate=200e9)], "FAIL", "not mlx5_1:1 (200 Gb/s)"),
        ([port(), port("mlx5_1", "")], "FAIL", "not mlx5_1:1 ()"),
        ([port(), port()], "FAIL", "1 RDMA ports"),  # one port told twice
        ([ETHERNET], "FAIL", "0 RDMA ports"),
        ([port(), {"kind": "rdma", "ports": "odd"}, "odd", {"kind": "rdma", "ports": ["odd", {}]}], "FAIL", "1 RDMA"),
        (None, "INCOMPLETE", "no facts say which NICs"),
    ],
)
def test_ports_are_counted_against_the_order(nics, verdict, words):
    entry, found = ordered(nics)
    assert found == verdict and words in entry["reason"]
    assert entry["remedy"].startswith("look at cable")


def test_what_is_not_ordered_is_not_checked():
    assert declared.nic_checks(declared.parse_nics(None, ""), None) == []
    assert declared.parse_nics("0", None) == {"count": 0}
    assert declared.parse_nics(8, "0.2 Tb/s") == {"count": 8, "rate_bits_per_second": pytest.approx(2e11)}


@pytest.mark.parametrize(
    ("count", "rate"), [("eight", ""), (True, ""), (-1, ""), (None, "400 Gb/s"), (8, "fast"), (8, "400 ms")]
)
def test_an_order_that_makes_no_sense_is_refused(count, rate):
    with pytest.raises(SettingError):
        declared.parse_nics(count, rate)
