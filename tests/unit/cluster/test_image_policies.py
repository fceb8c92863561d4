"""Policies on images have a class and a remedy of their own, as an answer to a Job and as an event about one."""

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import pod_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import ObjectRefused

REFUSALS = yaml.safe_load(Path(__file__).with_name("data").joinpath("image_policies.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal["policy"] for refusal in REFUSALS])
def test_a_policy_on_images_is_a_class_of_its_own(refusal):
    row = pod_classes.of_error(ObjectRefused(refusal["text"], refusal["code"]))
    assert row.name == refusal["class"]
    assert pod_classes.class_of(refusal["text"], pod_classes.OF_REFUSALS) == refusal["class"]
    assert ("gpuval_images" in row.remedy) == (refusal["class"] == "image_refused")
