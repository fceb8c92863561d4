"""What the report keeps of a record's environment and setup: short texts of any environment."""

import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import properties
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.properties import VERSIONS
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import accepted, facts_record, make_record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text("aB0 ;-\n", max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "name", "serial", "vendor"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def setup(command, **fields):
    return properties.setup_of(make_record(command=command, **fields))


def test_arguments_make_a_setup_and_places_do_not():
    one = setup(["/usr/bin/python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "20"])
    assert setup(["/opt/venv/bin/python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "20"]) == one
    other = make_record(node="n2", command=["python3", "-m", "work", "--out", "/tmp/run-2/n2", "--seconds", "20"])
    assert properties.setup_of({**other, "run_id": "run-2"}) == one
    assert setup(["python3", "-m", "work", "--out", "/tmp/run-1/node-1", "--seconds", "300"]) != one


def test_a_setup_that_the_stage_reported_is_part_of_it_and_results_are_not():
    one = setup(["x"], fingerprints={"training_setup": "llama-1b", "answer_sha256": "1"})
    assert one == setup(["x"], fingerprints={"training_setup": "llama-1b", "answer_sha256": "2"})
    assert one != setup(["x"], fingerprints={"training_setup": "llama-8b", "answer_sha256": "1"})
    assert one["training_setup"] == "llama-1b"


def test_several_values_are_one_text_and_numbers_have_units():
    record = facts_record(gpus=2)
    record["environment"]["gpus"][0] |= {"driver_version": "580.1", "memory_bytes": 141_000_000_000}
    record["environment"]["gpus"][1] |= {"driver_version": "590.1", "memory_bytes": 141_000_000_000}
    found = properties.properties_of(accepted(record))
    assert found["driver"] == "580.1, 590.1"
    assert found["gpu_memory"].startswith("141")
    assert "torch" not in found


def test_a_stage_has_its_own_software_and_image():
    record = make_record(image="registry/train:1", environment={"torch": "2.13.0", "gpus": [{"driver_version": "1"}]})
    assert properties.properties_of(record) == {"torch": "2.13.0", "image": "registry/train:1"}


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("identity", "accelerator", "gpus", "os", "firmware"), JSON)))
def test_facts_of_any_form_are_accepted(environment):
    found = properties.properties_of(make_record(stage="facts", environment=environment))
    assert len(json.dumps(found)) < 100_000


def test_versions_that_can_be_declared_are_properties_of_the_facts():
    of_facts = {known.name for known in properties.PROPERTIES if known.stage == properties.FACTS}
    assert VERSIONS.keys() <= of_facts
    assert len(properties.PATHS) == len(properties.PROPERTIES), "names are unique"
