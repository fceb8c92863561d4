"""Many things in few words."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import listed, some_of


@pytest.mark.parametrize(
    ("things", "options", "said"),
    [
        ([], {}, ""),
        (["a"], {"most": 1}, "a"),
        (["a", "b"], {"most": 2}, "a, b"),
        (["a", "b", "c"], {"most": 2}, "a, b and 1 more"),
        ((number for number in range(12)), {"most": 3}, "0, 1, 2 and 9 more"),
        (["a", "b", "c"], {"most": 2, "between": "; "}, "a; b and 1 more"),
        (map(str, range(9)), {}, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"),
    ],
)
def test_the_first_are_named_and_the_others_counted(things, options, said):
    assert some_of(things, **options) == said


@pytest.mark.parametrize(
    ("value", "parts"), [("a.yml, b.yml", ["a.yml", "b.yml"]), (["a"], ["a"]), ("", []), (None, []), (5, []), ({}, [])]
)
def test_text_with_commas_stands_for_a_list(value, parts):
    assert listed(value) == parts
