"""The criteria of both stages: valid, and about metrics that the workloads write."""

from pathlib import Path

import jsonschema
import pytest
import yaml
from gpuval_workloads.inference.client import CompletionAnswer, Tally

COLLECTION = Path(__file__).resolve().parents[3] / "collections" / "ansible_collections" / "gpuval" / "fleet"
LOADING = {
    "loading_files_count",
    "loading_checksum_errors_count",
    "loading_transfer_errors_count",
    "loading_bytes",
    "loading_bytes_per_second",
}


def criteria(stage):
    return yaml.safe_load((COLLECTION / "roles" / stage / "files" / "criteria.yml").read_text())


@pytest.mark.parametrize("stage", ["loading", "inference"])
def test_criteria_are_valid_and_of_their_stage(stage):
    schema = yaml.safe_load((COLLECTION / "schemas" / "criteria.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(criteria(stage))
    checks = criteria(stage)["checks"]
    assert criteria(stage)["stage"] == stage and not any("stage" in check for check in checks)
    assert len({check["name"] for check in checks}) == len(checks)


def test_every_metric_judged_is_written():
    tally = Tally()
    tally.add_answer(CompletionAnswer("a", 0.1, (0.1,), 1, 1, True))
    written = {name for name, _, _ in tally.metrics(1.0)} | {"inference_startup_seconds"}
    written |= {"inference_setup", "inference_warm_up_answer"}  # fingerprints
    assert {check["metric"] for check in criteria("inference")["checks"]} <= written
    assert {check["metric"] for check in criteria("loading")["checks"]} <= LOADING


def test_wrong_bytes_are_never_tried_again():
    assert all(not check.get("retry", False) for check in criteria("loading")["checks"])
