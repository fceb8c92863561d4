"""The line of a part of a YAML file, by the keys and indices that lead to it."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import yaml_file

TEXT = """\
# first
name: a
steps:
  - name: one
    run: |
      a
  - {name: two, run: b}
1: x
"""


@pytest.mark.parametrize(
    ("path", "key", "line"),
    [
        ((), "", 2),
        ((), "steps", 3),
        (("steps", 0), "", 4),
        (("steps", 0, "run"), "", 5),
        (("steps", 1), "run", 7),
        (("steps", 1, "creates"), "", 7),
        (("steps", 5), "", 3),
        (("1",), "", 8),
    ],
)
def test_the_line_of_a_part(path, key, line):
    assert yaml_file.line_of(TEXT, path, key) == line


def test_an_empty_text_has_one_line():
    assert yaml_file.line_of("", ("a",)) == 1
