"""The profile soak: no counter of errors may rise, no clock may fall, and a run of days fits what limits it."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import MAX_SIGNED_SECONDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import CLOCK_SLACK_SECONDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from gpuval_runner.telemetry.gpu_figures import GpuFigures

from tests.kit.builders import healthy, judge, make_record, make_run, metric, training_metrics
from tests.kit.h200 import facts

SOAK = criteria.read_file(criteria.COLLECTION / "roles/training/files/criteria_soak.yml")
COUNTERS = {"gpu_ecc_corrected_new_count", "gpu_link_error_new_count", "gpu_pcie_replay_new_count"}
OF_THE_NODE = {"kernel_mce_count", "kernel_link_flap_count", "memory_ecc_corrected_new_count"}


def judged(changed="", value=0.0, profile="soak", left_out=""):
    run = make_run(stages=["facts", "training"], profile=profile)
    evidence = healthy(run)
    figures = [metric(name, 0) for name in OF_THE_NODE]
    for gpu in range(8):
        figures += [metric(name, 0, "count", f"gpu:{gpu}") for name in COUNTERS]
        figures.append(metric("gpu_sm_clock_held_ratio", 0.995, "ratio", f"gpu:{gpu}"))
    for one in figures:
        if one["name"] == changed and one["scope"] in ("node", "gpu:5"):
            one["value"] = value
    figures = [one for one in figures if one["name"] != left_out]
    evidence.records["node-1"] = {
        "facts": facts(), "training": make_record("node-1", "training", metrics=[*training_metrics(), *figures])
    }  # fmt: skip
    return judge(run, evidence, SOAK)["nodes"][0]


def test_a_node_that_counts_nothing_and_keeps_its_clock_passes():
    node = judged()
    assert node["verdict"] == "PASS"
    assert {one["verdict"] for one in node["checks"] if one["name"].startswith("training_soak_")} == {"pass"}


@pytest.mark.parametrize(("name", "value"), [*((name, 1) for name in sorted(COUNTERS | OF_THE_NODE)),
                                             ("gpu_sm_clock_held_ratio", 0.92)])  # fmt: skip
def test_one_error_or_a_clock_that_falls_fails_the_node_in_this_profile_alone(name, value):
    node = judged(name, value)
    (entry,) = [one for one in node["checks"] if one["verdict"] == "fail"]
    assert (node["verdict"], entry["metric"]) == ("FAIL", name)
    assert entry["part"] == ("node" if name in OF_THE_NODE else "gpu:5")
    assert judged(name, value, profile="burnin")["verdict"] == "PASS"


def test_a_clock_that_was_not_measured_is_missing_evidence():
    assert judged(left_out="gpu_sm_clock_held_ratio")["verdict"] == "INCOMPLETE"


def test_the_clock_of_72_hours_is_compared_in_bounded_memory():
    figures = GpuFigures()
    for second in range(0, 259_200, 30):
        clock = 1.98e9 if second < 200_000 else 1.7e9
        figures.add(second, {"sm_clock_hertz": clock, "utilisation_ratio": 1.0})
        figures.add(second + 1, {"sm_clock_hertz": 3e8, "utilisation_ratio": 0.1})  # idle: no clock of work
    assert figures.figures()["gpu_sm_clock_held_ratio"] == pytest.approx(1.7 / 1.98, rel=1e-3)
    assert len(figures.busy_clock.points()) <= 601
    assert GpuFigures().figures()["gpu_sm_clock_held_ratio"] is None


def test_each_stage_of_a_soak_has_its_own_time_and_all_fit_its_deadline():
    """An inventory that names no time must not fall back to the minute of the profile standard."""
    known = stages.profiles()
    soak = dict(known["soak"].settings)
    assert {"storage_seconds", "storage_max_written_bytes", "rdma_seconds", "inference_seconds"} < soak.keys()
    assert soak.keys() == known["burnin"].settings.keys()
    deadline = soak.pop("gpuval_deadline_seconds")
    of_gangs = ("collective_", "deepspeed_")  # they have limits of their own
    own = [seconds for name, seconds in soak.items() if name.endswith("_seconds") and not name.startswith(of_gangs)]
    assert sum(own) < deadline - 4 * 3600  # 4 h for images, models and starts


def test_a_soak_fits_signatures_certificates_and_records():
    deadline = stages.profiles()["soak"].settings["gpuval_deadline_seconds"]
    assert 72 * 3600 < deadline < MAX_SIGNED_SECONDS
    assert deadline + CLOCK_SLACK_SECONDS < certificates.SERVER_LIFE.total_seconds()
