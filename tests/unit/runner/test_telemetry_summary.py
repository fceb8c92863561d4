"""What becomes of samples, counters and kernel events: figures, curves, reasons."""

import pytest
from gpuval_runner.telemetry.gpu_figures import MAX_POINTS, TelemetryComparison, ThinnedCurve, percentile
from gpuval_runner.telemetry.summary import MAX_KERNEL_EVENTS, TelemetrySummary

GPU = {"uuid": "GPU-0", "pci_address": "0000:10:00.0", "pcie_width": 16, "links_up": [0, 1, 2]}


def told(*messages, period=1.0):
    summary = TelemetrySummary(100.0, period)
    for message in messages:
        summary.take(message)
    return summary


def figures(summary, scope="gpu:0"):
    return {metric["name"]: metric["value"] for metric in summary.metrics() if metric["scope"] == scope}


def sampled(*samples):
    source = {"kind": "source", "name": "nvml"}
    return [source, *({"kind": "gpus", "at": 100.0 + x, "gpus": {"0": sample}} for x, sample in enumerate(samples))]


END = {"kind": "end", "kernel_log": "/dev/kmsg", "kernel_problem": "", "oom_kills": 0, "host_absent": {}}


def test_busy_figures_are_of_busy_samples_alone():
    idle = {"power_watts": 100, "utilisation_ratio": 0.1, "sm_clock_hertz": 1e9, "pcie_generation": 1, "pcie_width": 16}
    busy = {"power_watts": 690, "utilisation_ratio": 0.9, "sm_clock_hertz": 2e9, "pcie_generation": 5, "pcie_width": 16}
    found = figures(told(*sampled(idle, {**busy, "power_limit_watts": 700}, {**busy, "power_watts": 680})))
    assert found["gpu_power_busy_mean_watts"] == 685
    assert found["gpu_power_busy_ratio"] == pytest.approx(685 / 700, abs=1e-6)
    assert found["gpu_power_mean_watts"] == 490 and found["gpu_power_max_watts"] == 690
    assert found["gpu_sm_clock_busy_mean_hertz"] == 2e9
    assert (found["gpu_pcie_generation_min_count"], found["gpu_pcie_width_min_count"]) == (5, 16)


def test_without_a_busy_sample_the_reason_is_reported():
    summary = told(*sampled({"power_watts": 100, "utilisation_ratio": 0.1, "pcie_generation": 1}), END)
    assert "gpu_power_busy_mean_watts" not in figures(summary)
    absent = summary.environment()["telemetry"]["absent"]
    assert "utilisation of 90%" in absent["gpu_power_busy_mean_watts"]
    assert absent["gpu_temperature_max_celsius"] == "its source gave no value"
    assert "both before and after" in absent["gpu_lost_count"]


def test_shares_of_throttling():
    off = {"throttle_thermal": 0, "throttle_power": 1, "throttle_hardware": 0}
    on = {"throttle_thermal": 1, "throttle_power": 1, "throttle_hardware": 1}
    found = figures(told(*sampled(off, off, off, on, {})))  # the last sample did not tell
    assert found["gpu_throttle_thermal_ratio"] == 0.25
    assert found["gpu_throttle_power_ratio"] == 1
    assert found["gpu_throttle_hardware_ratio"] == 0.25


ON = {"throttle_thermal": 1, "throttle_power": 1, "throttle_hardware": 1}


def counted(kind, at, **counters):
    return {"kind": kind, "at": at, "gpus": {"0": {**GPU, **counters}}}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # microseconds of 20 s
        (
            {"thermal": 5_000_000, "power": 0},
            {"thermal": 6_000_000, "power": 19_000_000},
            {"thermal": 0.05, "power": 0.95},
        ),
        (
            {"thermal": 0, "power": 0},
            {"thermal": 0, "power": 30_000_000},
            {"thermal": 0, "power": 1},
        ),  # two reasons at once
        ({"thermal": 9}, {"thermal": 0}, {"thermal": 1}),  # a reset: samples are all that is left
        ({"thermal": 9}, {}, {"thermal": 1}),
    ],
)
def test_the_drivers_counters_decide_and_samples_only_without_them(before, after, expected):
    names = [
        {f"throttle_{kind}_microseconds": value for kind, value in counters.items()} for counters in (before, after)
    ]
    summary = told(counted("before", 100.0, **names[0]), *sampled(ON), counted("after", 120.0, **names[1]))
    found = figures(summary)
    assert {kind: found[f"gpu_throttle_{kind}_ratio"] for kind in expected} == expected
    by_counters = 0 in expected.values() or 0.05 in expected.values()
    assert summary.environment()["telemetry"]["throttling"] == ("counters of the driver" if by_counters else "samples")


@pytest.mark.parametrize(("sampled_ratio", "rise", "expected"), [(1, 0, 1), (1, 200_000, 0.01), (0, 0, 0)])
def test_a_hardware_slowdown_that_no_counter_counts_is_seen_by_samples(sampled_ratio, rise, expected):
    before, after = (
        counted(*at, throttle_hardware_microseconds=n) for at, n in ((("before", 100.0), 0), (("after", 120.0), rise))
    )
    found = figures(told(before, *sampled({**ON, "throttle_hardware": sampled_ratio}), after))
    assert found["gpu_throttle_hardware_ratio"] == expected


def test_counters_in_ticks_need_no_time():
    old = {"throttle_ticks": 1000, "throttle_thermal_ticks": 10, "throttle_power_ticks": 0}
    new = {"throttle_ticks": 3000, "throttle_thermal_ticks": 510, "throttle_power_ticks": 2000}
    summary = told(*sampled({}), counted("before", None, **old), counted("after", None, **new))
    found = figures(summary)
    assert (found["gpu_throttle_thermal_ratio"], found["gpu_throttle_power_ratio"]) == (0.25, 1)
    assert "gpu_throttle_hardware_ratio" not in found


def test_the_smallest_margin_to_slower_clocks_is_kept():
    found = figures(told(*sampled(*({"temperature_margin_celsius": margin} for margin in (40, -1, 12)))))
    assert found["gpu_temperature_margin_min_celsius"] == -1


@pytest.mark.parametrize("count", [1, 599, 600, 601, 5000, 100_000])
def test_a_curve_stays_short_and_keeps_its_mean(count):
    curve = ThinnedCurve()
    for x in range(count):
        curve.add(float(x), float(x))
    points = curve.points()
    assert min(count, MAX_POINTS // 2) <= len(points) <= MAX_POINTS
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[-1][0] > count * 0.99 - 1
    assert sum(y for _, y in points) / len(points) == pytest.approx((count - 1) / 2, rel=0.01, abs=0.01)


def test_percentiles_by_nearest_rank():
    from collections import Counter

    assert percentile(Counter(range(1, 101)), 0.95) == 95
    assert percentile(Counter([7]), 0.95) == 7
    assert percentile(Counter(), 0.5) is None


def test_counters_are_compared_and_the_part_is_named():
    old = {**GPU, "ecc_corrected": 5, "ecc_uncorrected": 0, "row_remaps": 1, "link_errors": {"0": 3, "1": 0}}
    new = {**old, "ecc_corrected": 6, "ecc_uncorrected": 2, "row_remaps": 2, "link_errors": {"0": 3, "1": 12}}
    found = TelemetryComparison({4: old}, {4: {**new, "links_up": [0, 2], "pcie_width": 8}})
    assert {name: value for _index, name, value in found.new} == {
        "gpu_ecc_corrected_new_count": 1,
        "gpu_ecc_uncorrected_new_count": 2,
        "gpu_row_remap_new_count": 1,
        "gpu_link_error_new_count": 12,
    }
    assert (found.lost, found.topology) == ([], 2)
    assert "gpu:4 (0000:10:00.0) link 1: 12 new errors" in found.changes
    assert "gpu:4 (0000:10:00.0) link 1 went down" in found.changes
    assert "gpu:4 (0000:10:00.0) pcie_width: 16 before, 8 after" in found.changes


def test_counters_that_were_set_back_count_from_zero():
    found = TelemetryComparison({0: {**GPU, "ecc_corrected": 50}}, {0: {**GPU, "ecc_corrected": 3}})
    assert found.new == [(0, "gpu_ecc_corrected_new_count", 3)]


def test_a_lost_gpu_is_named_though_the_others_move_up():
    gpus = {index: {**GPU, "uuid": f"GPU-{index}", "pci_address": f"0000:1{index}:00.0"} for index in range(4)}
    after = {0: gpus[0], 1: gpus[2], 2: gpus[3]}
    found = TelemetryComparison(gpus, after)
    assert (found.lost, found.topology, found.changes) == ([1], 1, ["gpu:1 (0000:11:00.0) is lost"])
    marked = TelemetryComparison(gpus, {**gpus, 2: {"lost": True}})
    assert marked.lost == [2]
    assert TelemetryComparison(gpus, gpus).topology == 0


def test_kernel_events_are_counted_and_given_to_their_gpu():
    xid = {"kind": "kernel", "event": "xid", "number": 79, "address": "0000:10:00.0", "critical": True}
    summary = told(
        {"kind": "before", "gpus": {"0": GPU, "1": {**GPU, "uuid": "GPU-1", "pci_address": "0000:11:00.0"}}},
        {**xid, "count": 2, "texts": ["first", "second"]},
        {**xid, "number": 13, "critical": False, "count": 1, "texts": ["an application's"]},
        {"kind": "kernel", "event": "link_flap", "number": None, "address": None, "count": 1, "texts": ["down"]},
        END,
    )
    node = figures(summary, "node")
    assert (node["kernel_xid_count"], node["kernel_xid_critical_count"], node["kernel_link_flap_count"]) == (3, 2, 1)
    assert node["kernel_oom_count"] == 0
    assert [figures(summary, f"gpu:{index}")["gpu_xid_critical_count"] for index in (0, 1)] == [2, 0]
    event = summary.environment()["kernel_events"][0]
    assert (event["gpu"], event["number"], event["count"], event["text"]) == (0, 79, 2, "first")
    assert summary.kernel_lines == ["first", "second", "an application's", "down"]


def test_a_log_that_cannot_be_read_gives_no_zeros():
    summary = told({**END, "kernel_log": None, "kernel_problem": "not permitted", "oom_kills": 3})
    node = figures(summary, "node")
    assert not any(name.startswith("kernel_") for name in node if name != "kernel_oom_count")
    assert node["kernel_oom_count"] == 3  # by the machine's own counter
    assert summary.environment()["telemetry"]["absent"]["kernel_log"] == "not permitted"


def test_errors_of_main_memory_are_counted_or_absent_with_their_reason():
    rises = {"ecc_corrected_count": 3, "ecc_uncorrected_count": 0}
    node = figures(told({**END, "memory_errors": rises}), "node")
    assert (node["memory_ecc_corrected_new_count"], node["memory_ecc_uncorrected_new_count"]) == (3, 0)
    reason = {"ecc_uncorrected_count": "no EDAC driver"}
    summary = told({**END, "memory_errors": {}, "host_absent": reason})
    assert "memory_ecc_uncorrected_new_count" not in figures(summary, "node")
    assert summary.environment()["telemetry"]["absent"] == {"memory_ecc_uncorrected_new_count": "no EDAC driver"}


def test_pcie_errors_are_counted_by_device_or_absent_with_their_reason():
    rises = {"pcie_corrected": {"0000:3b:00.0": 8, "0000:3a:00.0": 1}, "pcie_nonfatal": {}, "pcie_fatal": {"x": "1"}}
    summary = told({**END, "pcie_errors": rises})
    node = figures(summary, "node")
    names = [f"pcie_{kind}_new_count" for kind in ("corrected", "nonfatal", "fatal")]
    assert [node[name] for name in names] == [9, 0, 0], "a word is no number"
    changes = summary.environment()["telemetry"]["changes"]
    assert changes == [f"{device}: {rise} corrected PCIe errors" for device, rise in rises["pcie_corrected"].items()]
    summary = told({**END, "pcie_errors": {}, "host_absent": {"pcie_fatal": "no AER"}})
    assert not set(names) & set(figures(summary, "node"))
    assert summary.environment()["telemetry"]["absent"] == {"pcie_fatal_new_count": "no AER"}


def test_failures_of_links_are_counted_by_port_and_of_a_ratio_the_worst_port():
    failed = {
        "link_down": {"mlx5_0:1": 2, "mlx5_1:1": 1},
        "link_symbol_error_ratio": {"mlx5_0:1": 2e-13, "mlx5_2:1": 3e-12},
    }
    summary = told(
        {**END, "link_failures": {**failed, "link_crc_error": {}, "unknown": {"x": 1}, "link_carrier_down": 7}}
    )
    node = figures(summary, "node")
    assert (node["link_down_new_count"], node["link_symbol_error_new_ratio"], node["link_crc_error_new_count"]) == (
        3,
        3e-12,
        0,
    )
    assert "link_carrier_down_new_count" not in node
    assert summary.environment()["telemetry"]["changes"] == [
        "mlx5_0:1: 2 losses or recoveries of the link",
        "mlx5_1:1: 1 losses or recoveries of the link",
        "mlx5_0:1: 2e-13 symbol errors for each bit",
        "mlx5_2:1: 3e-12 symbol errors for each bit",
    ]
    assert summary.environment()["telemetry"]["links_down"] == ["mlx5_0:1", "mlx5_1:1"]


def test_a_flood_of_events_stays_bounded():
    summary = told(
        *(
            {"kind": "kernel", "event": "aer", "number": n, "address": None, "count": 9, "texts": ["x" * 9999] * 9}
            for n in range(1000)
        ),
        END,
    )
    assert figures(summary, "node")["kernel_aer_count"] == 9000
    environment = summary.environment()
    *listed, rest = environment["kernel_events"]
    assert (len(listed), rest["kind"], rest["number"]) == (MAX_KERNEL_EVENTS, "aer", None)
    assert sum(event["count"] for event in environment["kernel_events"]) == 9000
    assert len(str(environment)) < 32_000  # a larger entry of the environment would be left out of a full record
    assert len(summary.kernel_lines) == 200 and max(map(len, summary.kernel_lines)) <= 300


@pytest.mark.parametrize(
    "message",
    [
        None,
        3,
        [],
        {},
        {"kind": "nothing"},
        {"kind": "gpus", "at": "x", "gpus": 3},
        {"kind": "gpus", "at": 1, "gpus": {"0": {"power_watts": "NaN", "temperature_celsius": None}}},
        {"kind": "gpus", "at": 1, "gpus": {"x": {}, "1": []}},
        {"kind": "before", "gpus": None},
        {"kind": "kernel", "event": "made up", "count": 1},
        {"kind": "kernel", "event": "xid", "count": "x"},
        {"kind": "host", "host": []},
        {"kind": "host", "host": {"cpu_utilisation_ratio": float("inf")}},
        {"kind": "absent", "what": 7},
    ],
)
def test_a_message_that_is_none_does_no_harm(message):
    summary = told(message, END)
    summary.curves()
    summary.environment()
    assert all(isinstance(metric["value"], (int, float)) for metric in summary.metrics())


def test_figures_have_the_units_of_their_names():
    sample = {"power_watts": 1, "temperature_celsius": 2, "memory_used_bytes": 3, "utilisation_ratio": 1}
    units = {metric["unit"] for metric in told(*sampled(sample), END).metrics()}
    assert units <= {"watts", "celsius", "bytes", "ratio", "count", "hertz"}


def gpu(index):
    return {**GPU, "uuid": f"GPU-{index}", "pci_address": f"0000:1{index}:00.0"}


def test_a_gpu_that_an_earlier_stage_saw_and_this_one_never_is_lost():
    first = told({"kind": "before", "gpus": {"0": gpu(0), "1": gpu(1)}}, {"kind": "after", "gpus": {"0": gpu(0)}})
    assert figures(first, "node")["gpu_lost_count"] == 1
    for begins in ({"0": gpu(0)}, {"0": gpu(0), "1": {"lost": True}}):  # gone from the count, or only named lost
        second = TelemetrySummary(100.0, 1.0, first.seen())
        for message in ({"kind": "before", "gpus": begins}, {"kind": "after", "gpus": begins}, END):
            second.take(message)
        node = figures(second, "node")
        assert (node["gpu_lost_count"], node["topology_changed_count"]) == (1, 1)
        assert second.environment()["telemetry"]["changes"] == ["gpu:1 (0000:11:00.0) was lost before the stage"]
        assert len(second.seen()) == 2


@pytest.mark.parametrize(
    ("reading", "metric"),
    [("ecc_uncorrected", "gpu_ecc_uncorrected_new_count"), ("row_remaps", "gpu_row_remap_new_count")],
)
def test_errors_between_two_stages_count_in_the_second_once(reading, metric):
    carried, new = [], []
    for before, after in ((0, 0), (2, 2), (2, 3)):
        stage = TelemetrySummary(100.0, 1.0, carried)
        stage.take({"kind": "before", "gpus": {"0": {**gpu(0), reading: before}}})
        stage.take({"kind": "after", "gpus": {"0": {**gpu(0), reading: after}}})
        stage.take(END)
        new.append(figures(stage, "gpu:0")[metric])
        carried = stage.seen()
    assert new == [0, 2, 1]


def test_all_gpus_lost_before_the_stage():
    summary = TelemetrySummary(100.0, 1.0, [(0, gpu(0)), (1, gpu(1))])
    for kind in ("before", "after"):
        summary.take({"kind": kind, "gpus": {}})
    assert figures(summary, "node")["gpu_lost_count"] == 2


def test_who_was_seen_earlier_and_is_there_is_not_lost():
    both = {0: gpu(0), 1: gpu(1)}
    assert (
        TelemetryComparison(
            both, both, [(1, gpu(0)), (0, {"uuid": "GPU-1"}), (1, {"pci_address": "0000:11:00.0"})]
        ).lost
        == []
    )
    assert TelemetryComparison({0: gpu(0)}, both, [(1, gpu(1))]).lost == []  # it came back
    assert TelemetryComparison(both, {0: gpu(0)}, [(1, gpu(1))]).lost == [1]  # once
    assert (
        TelemetryComparison({0: {}}, {0: {}}, [(1, gpu(1))]).lost == []
    )  # without names nobody can say who is missing


def test_a_gpu_that_the_driver_counts_as_lost_is_lost_in_a_first_stage_too():
    found = TelemetryComparison({0: gpu(0), 1: {"lost": True}}, {0: gpu(0), 1: {"lost": True}})
    assert (found.lost, found.changes) == ([1], ["gpu:1 was lost before the stage"])
    refused = {0: gpu(0), 1: {"lost": True, "refused": True}}  # by a control group: others' GPU
    assert TelemetryComparison(refused, refused).lost == []
    another = TelemetryComparison({0: gpu(0), 1: {"lost": True}}, {0: {"lost": True}, 1: {"lost": True}})
    assert sorted(another.lost) == [0, 1]


@pytest.mark.parametrize(
    ("told_position", "taken"), [([1.5, 2.5], (1.5, 2.5)), (None, None), ([1], None), (["x", 1], None), ("ab", None)]
)
def test_the_position_in_the_log(told_position, taken):
    position = told({**END, "kernel_position": told_position}).position
    assert (position and (position.wall, position.boot)) == taken
