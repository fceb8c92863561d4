"""What the judge says of the made-up fleets of `tests/kit/judged_fleets`, beside what it said before.

After an intended change rewrite the snapshots: `GPUVAL_WRITE_JUDGED_FLEETS=1 make test ARGS=THIS_FILE`.
"""

import difflib
import os
import subprocess
import sys
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


#: Writes the documents of all fleets in the order of their keys, a line for each fleet.
PROGRAM = """
import json, sys
import tests.conftest
from tests.kit.judged_fleets import catalogue
def as_list(value):
    return sorted(value) if isinstance(value, (set, frozenset)) else list(value)
for name in sorted(catalogue.FLEETS):
    print(name, json.dumps(catalogue.judge_fleet(name), default=as_list), flush=True)
"""


@pytest.mark.slow
def test_fleets_are_judged_alike_at_another_time_and_place_and_with_sets_in_another_order(tmp_path):
    here = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}
    elsewhere = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "2", "PYTHONUTF8": "1"}
    children = []
    for number, (later, environment) in enumerate((([], here), (["faketime", "-f", "+400d"], elsewhere))):
        command = [*later, sys.executable, "-c", PROGRAM]
        with (tmp_path / str(number)).open("w") as stream:
            place = {**os.environ, **environment}
            child = subprocess.Popen(command, cwd=SNAPSHOTS.parents[2], env=place, stdout=stream)
            children.append(child)
    assert [child.wait(timeout=3600) for child in children] == [0, 0]
    lines, lines_elsewhere = ((tmp_path / str(number)).read_text().splitlines() for number in range(2))
    assert len(lines) == len(catalogue.FLEETS)
    differing = [line.partition(" ")[0] for line, other in zip(lines, lines_elsewhere, strict=True) if line != other]
    assert differing == []
