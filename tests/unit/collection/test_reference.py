"""docs/reference/ is what tools/reference.py makes of the argument specs, schemas, criteria and SKUs as they are."""

import pytest

from tools import reference


def test_the_pages_are_current():
    stale = [path.name for path, text in reference.pages().items() if path.read_text() != text]
    assert stale == [], "run make reference"


def test_every_variable_has_a_row():
    rows = (reference.PAGES / "variables.md").read_text()
    for role in (reference.COLLECTION / "roles").iterdir():
        for _title, _summary, options in reference.sections(role):
            for name in options:
                assert f"| `{name}` |" in rows


@pytest.mark.parametrize(
    ("check", "limit"),
    [
        ({"kind": "min", "value": 4.4e10, "unit": "bytes/s"}, "at least 44 GB/s"),
        ({"kind": "max", "value": 0, "unit": "count"}, "at most 0"),
        ({"kind": "max", "value": 1e-4, "unit": "seconds"}, "at most 0.0001 seconds"),
        ({"kind": "equal", "value_from": "gpus", "unit": "count"}, "equal to gpus"),
        ({"kind": "outlier", "peers": "node", "max_below": 0.03}, "at most 3% below the median of the node"),
        ({"kind": "same", "path": "os.kernel"}, "`os.kernel` the same within the fleet"),
    ],
)
def test_a_limit_in_words(check, limit):
    assert reference.limit(check) == limit


def test_a_profile_covers_what_its_stages_and_the_check_allow():
    stages = reference.profiles()
    assert {"quick", "standard", "burnin", "soak"} <= stages.keys()
    known = reference.checks_by_name()
    assert [name for name in stages if reference.holds_in(known["training_soak_link_errors"], name, stages[name])] == [
        "soak"
    ]
    assert not reference.holds_in(known["collective_errors"], "quick", stages["quick"])
    with pytest.raises(ValueError, match="no check is called training_sped"):
        reference.matching("training_sped", known)
