"""The quick test of a document against the validator: it says yes to no document that breaks its schema."""

import copy
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import quick_schema, schemas
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import facts_record, healthy, judge, make_record, make_run, training_metrics

RUN = make_run(["one", "two"])
DOCUMENTS = {
    "record": make_record(metrics=training_metrics(), attempts=[make_record(state="crash")], fingerprints={"a": "b"}),
    "run": RUN,
    "report": judge(RUN, healthy(RUN)),
    "series": {
        "schema": "gpuval.series/1", "run_id": "r", "node": "n", "stage": "s", "attempt": 1,
        "series": [{"name": "l", "unit": "", "scope": "gpu:1", "x_unit": "step", "x": [1, 2], "y": [1.5, None]}],
    },
}  # fmt: skip
WRONG = [None, True, 0, -1, 1.5, 10**9, "", "a b", "x" * 5000, "node\n", [], [None], {}, {"x": 1}]


def valid(name, document):
    return not list(schemas.validator(name).iter_errors(document))


def places(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_right_documents_are_seen_at_once(name):
    assert valid(name, DOCUMENTS[name])
    assert schemas.quick(name)(DOCUMENTS[name])


def test_records_of_facts_are_seen_at_once():
    assert schemas.quick("record")(facts_record())


@settings(max_examples=300)
@given(st.data())
def test_what_passes_at_once_is_valid(data):
    name = data.draw(st.sampled_from(sorted(DOCUMENTS)))
    document = copy.deepcopy(DOCUMENTS[name])
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([path for path in places(document) if path]))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace":
            parent[path[-1]] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
        elif what == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent["more"] = 1
    if schemas.quick(name)(document):
        assert valid(name, document)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"not": {"type": "string"}}, 1),
        ({"type": "string", "format": "date"}, "x"),
        ({"type": "array", "uniqueItems": True}, []),
        ({"enum": ["a"], "type": "string"}, "a"),
        ({"$ref": "#/$defs/gone"}, 1),
        ({"minimum": 3}, 5),
        (False, 1),
    ],
)
def test_what_is_not_understood_is_left_to_the_validator(schema, value):
    assert not quick_schema.compiled(schema, schemas._compiled)(value)


def test_wrong_documents_are_told_as_ever():
    document = json.loads(json.dumps(DOCUMENTS["report"]))
    document["nodes"][1]["checks"][2]["severity"] = "lethal"
    with pytest.raises(schemas.Invalid) as told:
        schemas.validate("report", document, what="report.json")
    assert told.value.path == ("nodes", 1, "checks", 2, "severity")
