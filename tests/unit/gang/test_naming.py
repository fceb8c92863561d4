"""No run is taken for a round of another one, and none of those without gangs is refused."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import make_run
from tests.kit.gang_actions import open_run


def run_of(run_id, *, gangs):
    run = make_run(run_id=run_id)
    for node in run["nodes"].values():
        node.update({"gang_stages": ["collective"]} if gangs else {})
    return run


def opened(results, run_id, *, gangs=True):
    """Open a run; RunError where its id is refused."""
    run = run_of(run_id, gangs=gangs)
    rounds.check_run_id(results, run)
    folder.RunFolder(results / run_id).write_run(run)


@pytest.mark.parametrize("name", ["all", "all-again", "search-01", "h200-rack-1", "gangs"])
def test_what_a_round_is_called_is_no_runs_id(tmp_path, name):
    opened(tmp_path, "r")
    with pytest.raises(folder.RunError, match=rf"'r\.{name}' is also the id of a gang round of run r"):
        opened(tmp_path, f"r.{name}", gangs=False)
    assert rounds.run_id_of("r", name) == f"r.{name}"


@pytest.mark.parametrize("gangs", [True, False])
def test_a_run_whose_rounds_would_be_called_as_a_run_that_is_there(tmp_path, gangs):
    opened(tmp_path, "r.all", gangs=gangs)
    with pytest.raises(folder.RunError, match=r"'r': a gang round would have the id of run r\.all"):
        opened(tmp_path, "r")
    opened(tmp_path, "r", gangs=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [("v1.2", "v1.3"), ("2026.11.22", "2026.11.23"), ("r", "r.ALL"), ("r", "r.a_b"), ("r", "rr.all"), ("r.", "r")],
)
def test_ids_with_dots_are_fine(tmp_path, first, second):
    opened(tmp_path, first)
    opened(tmp_path, second)
    opened(tmp_path, second)  # taken up


def test_without_gangs_every_id_is_fine(tmp_path):
    opened(tmp_path, "r", gangs=False)
    opened(tmp_path, "r.all", gangs=False)
    opened(tmp_path, "r.all.all", gangs=False)


def test_a_damaged_run_may_have_rounds(tmp_path):
    folder.write_bytes(tmp_path / "r" / "run.json", b"{")
    with pytest.raises(folder.RunError, match="is also the id of a gang round"):
        opened(tmp_path, "r.all", gangs=False)


def test_a_long_id_is_shortened_to_one_that_is_free(tmp_path):
    opened(tmp_path, "x" * 60)
    opened(tmp_path, "x" * 59 + ".all", gangs=False)


def test_open_run_refuses_it_before_anything_is_written(tmp_path):
    hosts = ["node-1", "node-2"]
    assert not open_run(tmp_path, "one", hosts, alone=True)[0].failed
    done, _ = open_run(tmp_path, "one.all", hosts, alone=True)
    assert done.failed
    assert "'one.all' is also the id of a gang round of run one" in done.text
    assert not (tmp_path / "one.all").exists()
    done, _ = open_run(tmp_path, "one", hosts, alone=True)
    assert not done.failed, done.text
