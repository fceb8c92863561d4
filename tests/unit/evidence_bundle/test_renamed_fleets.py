"""Each fleet is judged alike under other names, and its report is the renamed one."""

import pytest

from tests.kit.judged_fleets import catalogue
from tests.kit.renamed_fleets import comparable, differences, judged_under_other_names

#: Fleets that are judged in more than a few seconds.
LARGE = ("gangs", "noisy_fleets", "odd_figures", "other_software", "whole_fleets", "baselines", "slow_parts")
#: Makers without a judgement.
UNJUDGED = ("criteria_of_sites", "gangs_that_are_expected", "orders_of_sites", "setups_of_runs", "skus_of_sites")
#: Of more nodes with one cloned disk than are compared in pairs each check names two that are most alike.
NAMES_SOME = ("clones",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in sorted(catalogue.FLEETS)]
)
def test_fleet_is_judged_alike_under_other_names(name):
    with judged_under_other_names() as judgements:
        catalogue.judge_fleet(name)
    assert bool(judgements) != (name in UNJUDGED)
    for under_its_names, under_others, renamed, judged in judgements:
        assert under_others == under_its_names
        assert name in NAMES_SOME or list(differences(comparable(judged), comparable(renamed))) == []
