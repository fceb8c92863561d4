"""A run whose stages are shorter than those of its profile says so."""

import jinja2
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import opening

from tests.kit.builders import healthy, judge, make_run
from tests.kit.run_commands import lay_out, open_run

STAGES = ["facts", "image", "diagnostics", "training", "inference", "pause"]


def found(**settings):
    known = {"gpuval_profile": "standard", "training_steps": 0, "inference_requests": 0, **settings}
    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined)
    return opening.shortened(STAGES, known, lambda text: jinja.from_string(text).render(known))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"training_seconds": 300, "diagnostics_seconds": 60}, []),
        ({"training_seconds": 301}, []),
        ({"training_seconds": 0, "training_steps": 10}, ["training_steps 10"]),
        (
            {"training_seconds": "20", "inference_seconds": 30.5},
            ["training_seconds 20 of 300", "inference_seconds 30.5 of 180"],
        ),
        ({"gpuval_profile": "quick", "training_seconds": 20}, []),
        ({"gpuval_profile": "quick", "diagnostics_seconds": 1}, ["diagnostics_seconds 1 of 15"]),
        ({"training_seconds": "soon", "inference_requests": 2}, ["inference_requests 2"]),
        ({"pause_seconds": 1}, []),
    ],
)  # fmt: skip
def test_settings_below_those_of_the_profile_are_found(settings, expected):
    assert found(**settings) == expected


def test_a_run_is_opened_with_what_is_shorter(tmp_path):
    stages = ["facts", "training"]
    options = {"profile_stages": stages, "workloads": {stage: {"command": ["true"]} for stage in stages}}
    known = {"gpuval_profile": "standard", "training_seconds": "20"}
    done = open_run(lay_out(tmp_path), "r1", **options, task_vars=known)
    assert done.result["run"]["shortened"] == ["training_seconds 20 of 300"]


def test_the_block_says_that_stages_were_shortened():
    run = make_run(shortened=["training_seconds 20 of 300", "training_steps 10"])
    schemas.validate("run", run, what="run")
    report = judge(run, healthy(run))
    schemas.validate("report", report, what="report")
    assert report["verdict"] == "PASS"
    line = "Shorter than the profile quick: training_seconds 20 of 300, training_steps 10"
    assert line in report["summary"]
    plain = judge(make_run(), healthy(make_run()))
    assert not any("hortened" in line for line in plain["summary"])
