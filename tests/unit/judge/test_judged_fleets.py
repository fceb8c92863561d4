"""What the judge says of the made-up fleets of `tests/kit/judged_fleets`, beside what it said before.

After an intended change rewrite the snapshots: `GPUVAL_WRITE_JUDGED_FLEETS=1 make test ARGS=THIS_FILE`.
"""

import difflib
import os
from pathlib import Path

import pytest

from tests.kit.judged_fleets import catalogue

SNAPSHOTS = Path(__file__).parents[2] / "data/judged_fleets"
REWRITES = bool(os.environ.get("GPUVAL_WRITE_JUDGED_FLEETS"))


@pytest.mark.parametrize("name", sorted(catalogue.FLEETS))
def test_fleet_is_judged_as_before(name):
    path = SNAPSHOTS / f"{name}.txt"
    judged_now = catalogue.snapshot(name, catalogue.judge_fleet(name))
    if REWRITES:
        path.parent.mkdir(exist_ok=True)
        path.write_text(judged_now)
    changes = difflib.unified_diff(path.read_text().splitlines(), judged_now.splitlines(), lineterm="", n=1)
    assert not (shown := "\n".join(changes)), f"{name} is judged otherwise than before:\n{shown}"


def test_every_snapshot_is_of_a_fleet():
    assert {path.stem for path in SNAPSHOTS.glob("*")} == catalogue.FLEETS.keys()
