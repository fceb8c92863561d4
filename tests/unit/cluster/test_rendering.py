"""Manifests as YAML that every reader reads alike."""

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import render_manifests
from ruamel.yaml import YAML

#: What versions of YAML take for numbers, times, truth and nothing, unless it is quoted.
AMBIGUOUS = [
    "1e3",
    "12e45",
    "0o7",
    "017",
    "0x1f",
    "1_000",
    "12:30",
    "2026-11-20",
    "on",
    "Yes",
    "n",
    "~",
    "null",
    ".inf",
]
OTHERS = [
    "",
    " x",
    "a: b",
    "# x",
    "- x",
    "{}",
    "*a",
    "%",
    "@",
    "two\nlines\n",
    "\u00e4\u2028\U0001f600",
    "\t",
    '"',
    "nvidia.com/gpu",
]


@pytest.mark.parametrize("text", [*AMBIGUOUS, *OTHERS])
def test_a_text_stays_a_text(text):
    objects = [{"kind": "X", "data": {text or "empty": text}, "number": 8, "flag": False, "none": None}]
    written = render_manifests.to_yaml(objects)
    assert list(yaml.safe_load_all(written)) == objects
    newer = YAML(typ="safe", pure=True)
    newer.version = (1, 2)
    assert list(newer.load_all(written)) == objects


def test_documents_are_whole_and_in_order():
    shared = {"a": "b"}
    written = render_manifests.to_yaml([{"kind": "B", "z": shared, "a": shared}, {"kind": "A"}])
    assert written == "---\nkind: B\nz:\n  a: b\na:\n  a: b\n---\nkind: A\n"


def test_a_summary_tells_no_content():
    secret = {"kind": "Secret", "metadata": {"name": "x"}, "data": {"store.json": "5ecret"}}
    assert render_manifests._summary([secret]) == "Secret x\n"
