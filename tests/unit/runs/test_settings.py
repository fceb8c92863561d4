"""What an operator set is held against what the roles declare."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

KNOWN = settings.declared()


def test_every_default_of_the_roles_is_declared():
    assert set(KNOWN.defaults) <= set(KNOWN.options)
    assert len(KNOWN.options) > 100


def test_the_defaults_themselves_are_no_change():
    assert settings.changed(KNOWN.defaults, KNOWN) == {}


def test_what_differs_from_its_default_is_looked_at_and_other_variables_are_not():
    values = {**KNOWN.defaults, "gpuval_retries": 0, "gpuval_gpu_count": 8, "mine": "x"}
    assert settings.changed(values, KNOWN) == {"gpuval_retries": 0, "gpuval_gpu_count": 8}


@pytest.mark.parametrize(("name", "value"), [("gpuval_retries", "1"), ("gpuval_force", "yes"), ("gpuval_hosts", "a:b")])
def test_text_that_stands_for_the_type_is_good(name, value):
    assert settings.problems({name: value}, KNOWN) == []


def test_a_secret_is_not_reported():
    (problem,) = settings.problems({"gpuval_s3_secret_key": {"open": "sesame"}}, KNOWN) or [""]
    assert "sesame" not in problem
