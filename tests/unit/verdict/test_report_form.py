"""The direct test of a report's checks accepts nothing that the schema refuses."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils import report_form, schemas
from builders import healthy, judge, make_run


def report():
    run = make_run(["node-1"])
    return judge(run, healthy(run))


def test_a_judged_report_is_plain_and_valid():
    judged = report()
    assert all(report_form.is_plain(check) for node in judged["nodes"] for check in node["checks"])
    report_form.validate(judged, what="report")
    schemas.validate("report", judged, what="report")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("verdict", "good"), ("kind", "lambda"), ("severity", None), ("severity", []), ("reason", 5), ("name", None),
        ("metric", 3), ("value", []), ("value", True), ("part", None), ("more", "x"),
        ("remedy", None),
    ],
)  # fmt: skip
def test_what_the_schema_refuses_is_refused(key, value):
    judged = copy.deepcopy(report())
    judged["nodes"][0]["checks"][3][key] = value
    with pytest.raises(schemas.Invalid):
        report_form.validate(judged, what="report")


@pytest.mark.parametrize("place", ["counts", "nodes", "fleet", "summary"])
def test_the_rest_of_the_report_is_held_against_the_schema(place):
    judged = report()
    judged[place] = 5
    with pytest.raises(schemas.Invalid, match=place):
        report_form.validate(judged, what="report")


def test_a_key_that_is_missing_is_told():
    judged = copy.deepcopy(report())
    del judged["nodes"][0]["checks"][2]["remedy"]
    with pytest.raises(schemas.Invalid, match="remedy"):
        report_form.validate(judged, what="report")
