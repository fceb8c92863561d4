"""Settings and firmware of the host by the shipped criteria: what slows work down, and what differs in the fleet."""

import copy

import pytest

from tests.kit.builders import SHIPPED, facts_record, healthy, judge, make_run, metric

NODES = ("node-1", "node-2", "node-3")
#: Of every node, before one of them is changed.
HOST = {
    "firmware": {"product_name": "DGX", "bios_version": "1.1", "bmc_version": "2.2"},
    "cpu": {"model": "Xeon"},
    "tuning": {"clock_source": "tsc", "transparent_hugepage": "madvise", "hugepages_count": 0},
    "topology": [{"index": 0, "links": 18, "nic": "mlx5_0"}],
    "nics": [
        {"driver": "mlx5_core", "interface_firmware": "28.1", "board_id": "MT_1", "firmware_version": "28.1"},
    ],
    "os": {"kernel": "6.8"},
}  # fmt: skip


def judged(change):
    """The checks of each node by name; ``change`` gets the facts of the first."""
    run = make_run(NODES, stages=["facts"])
    evidence = healthy(run)
    for name in NODES:
        facts = facts_record(name)
        facts["environment"] |= copy.deepcopy(HOST)
        evidence.records[name] = {"facts": facts}
    change(evidence.records["node-1"]["facts"])
    report = judge(run, evidence, SHIPPED)
    return [{check["name"]: check for check in node["checks"]} for node in report["nodes"]]


@pytest.mark.parametrize(
    ("name", "good", "bad", "unit", "check"),
    [
        ("cpu_slow_governor_count", 0, 1, "count", "facts_cpu_governor"),
        ("cpu_idle_latency_max_seconds", 1e-6, 1e-3, "seconds", "facts_cpu_idle_latency"),
        ("clock_source_fast", 1, 0, "ratio", "facts_clock_source"),
        ("gpu_iommu_translated_count", 0, 8, "count", "facts_iommu"),
        ("acs_redirecting_count", 0, 2, "count", "facts_acs"),
        ("gpu_nic_far_count", 0, 1, "count", "facts_gpu_nic_far"),
        ("services_failed_count", 0, 1, "count", "facts_services_failed"),
        ("root_filesystem_used_ratio", 0.5, 0.95, "ratio", "facts_root_filesystem"),
    ],
)
def test_a_setting_that_slows_work_down_is_a_warning(name, good, bad, unit, check):
    for value, verdict in ((good, "pass"), (bad, "warn")):
        found = judged(lambda facts, value=value: facts["metrics"].append(metric(name, value, unit)))[0][check]
        assert (found["verdict"], found["value"]) == (verdict, value)


@pytest.mark.parametrize(
    ("path", "value", "check"),
    [
        (("firmware", "bios_version"), "1.0", "facts_bios_agrees"),
        (("firmware", "bmc_version"), "2.1", "facts_bmc_agrees"),
        (("tuning", "transparent_hugepage"), "always", "facts_tuning_agrees"),
        (("tuning", "hugepages_count"), 512, "facts_tuning_agrees"),
        (("topology", 0, "nic"), "mlx5_7", "facts_topology_agrees"),
        (("nics", 0, "firmware_version"), "26.9", "facts_nic_firmware_agrees"),
        (("nics", 0, "interface_firmware"), "26.9", "facts_interface_firmware_agrees"),
        (("os", "kernel"), "5.15", "facts_kernel_agrees"),
    ],
)
def test_the_node_that_differs_from_its_fleet_is_named(path, value, check):
    def change(facts):
        place = facts["environment"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    assert [node[check]["verdict"] for node in judged(lambda _facts: None)] == ["pass"] * 3
    first, *others = judged(change)
    assert first[check]["verdict"] == "warn" and "on 2 of 3 nodes of its kind" in first[check]["reason"]
    assert [node[check]["verdict"] for node in others] == ["pass", "pass"]
