"""Documents that follow their schema pass, and what is wrong with others is named by path, whatever its type."""

import copy
import datetime
import importlib

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

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


def is_valid(name, document):
    try:
        schemas.validate(name, document, what="it")
    except schemas.Invalid:
        return False
    return True


def places(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_right_documents_pass(name):
    assert is_valid(name, DOCUMENTS[name])


def test_records_of_facts_pass():
    assert is_valid("record", facts_record())


@settings(max_examples=200)
@given(st.data())
def test_what_passes_follows_its_schema(data):
    """Another implementation of JSON Schema finds nothing wrong; it lets ``$`` match before a line feed."""
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
    if is_valid(name, document):
        assert not list(Draft202012Validator(schemas.schema(name)).iter_errors(document))


@pytest.mark.parametrize("key", [1, datetime.date(2026, 11, 2)])
def test_what_json_does_not_have_is_invalid(key):
    assert not is_valid("run", {**RUN, key: 1})
    assert not is_valid("run", {**RUN, "bucket": key})


class Text(str):
    """As Ansible's strings, which know their origin."""


class Number(int):
    pass


def test_values_of_subclasses_are_judged_as_what_they_are():
    run = {Text(key): value for key, value in RUN.items()}
    assert is_valid("run", {**run, "bucket": Text("b"), "deadline_seconds": Number(7200)})
    assert not is_valid("run", {**run, "bucket": Number(3)})
    assert not is_valid("run", {**run, Text("more"): 1})


def test_a_pattern_ends_at_the_very_end_and_has_ascii_digits():
    for node in ("node\n", "node\u0663"):
        assert not is_valid("record", {**make_record(), "node": node})


def test_the_place_and_the_reason_are_named():
    broken = make_record(metrics=training_metrics())
    del broken["metrics"][1]["unit"]
    with pytest.raises(schemas.Invalid, match=r'^it: metrics\[1\]: "unit" is a required property$'):
        schemas.validate("record", broken, what="it")


def test_a_key_of_digits_leads_to_its_place():
    answer = {"node": "a", "peers": {}, "endpoints": {}, "interfaces": {}, "not_listening": {"22": 1}}
    with pytest.raises(schemas.Invalid, match="22"):
        schemas.validate("network_answer", answer, what="it")


def test_all_problems_of_a_document_are_named_once_each():
    step = {"name": "a", "rnu": "true", "tiemout_seconds": 5}
    wrong = {"schema": "gpuval.job/1", "name": "A b", "steps": [step], "retry": ["crahs"], "sku": 1}
    found = schemas.problems("job", wrong, what="job")
    places = [(one.path, one.key) for one in found]
    assert len(places) == len(found) == 6
    assert set(places) == {
        ((), "sku"), (("name",), ""), (("steps", 0), "rnu"), (("steps", 0), "tiemout_seconds"), (("steps", 0), ""),
        (("retry", 0), ""),
    }  # fmt: skip
    assert schemas.problems("job", {**wrong, "when": datetime.date(2026, 1, 1)}, what="job")
    good = {"schema": "gpuval.job/1", "name": "a", "steps": [{"name": "a", "run": "true"}]}
    assert schemas.problems("job", good, what="job") == []


def test_libraries_that_lack_are_named_together_with_the_command_that_installs_them(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in {"boto3", "cryptography", "orjson"} else found(name)
    )
    with pytest.raises(AnsibleError, match="lacks boto3, cryptography, orjson: run `make setup`"):
        importlib.reload(schemas)
