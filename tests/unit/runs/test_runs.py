"""A run's identity, and when an unfinished one is taken up."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import cleanable, opening
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit import builders

NODES = {"a": {"stages": ["facts"], "sku": "auto", "gpu_count": None}}


def make_run(**changes):
    return {**builders.make_run(run_id="r1", folder="r1", created_at=run_folder.now()), "nodes": NODES, **changes}


@pytest.fixture
def results(tmp_path):
    folder = run_folder.RunFolder(tmp_path / "r1")
    folder.write_run(make_run())
    run_folder.remember(run_folder.RunFolder(tmp_path / "r1"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("r12", "is it r1?; `make runs` lists them"),
        ("hall", "the latest are s9, s8, s7, s6, s5 and 6 more; `make runs` lists them"),
    ],
)
def test_an_unknown_run_names_the_nearest_or_the_latest(results, name, advice):
    for number in range(10):
        run = make_run(run_id=f"s{number}", created_at=f"2027-01-01T00:00:0{number}Z")
        run_folder.RunFolder(results / run["run_id"]).write_run(run)
    with pytest.raises(run_folder.RunError) as refused:
        run_folder.RunFolder(results / name).read_run()
    assert str(refused.value) == f"no run in {results / name}: {advice}"


def choose(results, requested="", nodes=NODES, profile="quick", narrowed_by=()):
    return opening.choose_run_id(results, requested, nodes, profile, list(narrowed_by))


def test_an_unfinished_run_of_the_same_nodes_is_resumed(results):
    assert choose(results) == "r1"


@pytest.mark.parametrize(
    "asked",
    [
        {"requested": "new"},
        {"nodes": {**NODES, "b": NODES["a"]}},
        {"nodes": {"a": {**NODES["a"], "stages": ["facts", "training"]}}},
        {"profile": "standard"},
        {"narrowed_by": ["limit"]},
    ],
)
def test_anything_else_starts_another_run(results, asked):
    assert choose(results, **asked) != "r1"


@pytest.mark.parametrize(
    "changes",
    [{"finished_at": run_folder.now()}, {"created_at": "2026-01-01T00:00:00Z"}],
    ids=["finished", "long past"],
)
def test_a_run_that_is_over_is_not_resumed(results, changes):
    run_folder.RunFolder(results / "r1").write_run(make_run(**changes))
    assert choose(results) != "r1"


def test_a_damaged_run_is_not_resumed(results):
    (results / "r1" / "run.json").write_text("{")
    assert choose(results) != "r1"


@pytest.mark.parametrize("run_id", ["../x", "-x", "a/b", "", "x" * 64, "a b", "a\n"])
def test_an_unsafe_run_id_is_refused(run_id):
    with pytest.raises(run_folder.RunError, match="gpuval_run_id"):
        run_folder.check_run_id(run_id)


def test_nodes_join_a_run_by_name_and_the_known_ones_stay_as_they_are():
    other = {"a": {**NODES["a"], "gpu_count": 8}, "b": NODES["a"]}
    run, joined = opening.merge(make_run(finished_at=run_folder.now()), make_run(nodes=other))
    assert joined == ["b"]
    assert run["nodes"]["a"] == NODES["a"]
    assert {**NODES["a"], "joined_at": run["nodes"]["b"]["joined_at"]} == run["nodes"]["b"]
    assert run["finished_at"] is None


def test_a_run_that_nodes_joined_is_resumed_like_any_other(results):
    nodes = {"a": NODES["a"], "b": {**NODES["a"], "joined_at": run_folder.now()}}
    run_folder.RunFolder(results / "r1").write_run(make_run(nodes=nodes))
    run_folder.remember(run_folder.find(results, "r1"))
    asked = {"a": NODES["a"], "b": NODES["a"]}
    assert opening.choose_run_id(results, "", asked, make_run()["profile"], []) == "r1"


def test_a_run_is_resumed_though_the_inventory_does_not_list_who_joined_while_it_was_watched(results):
    nodes = {**NODES, "new": {**NODES["a"], "joined_at": run_folder.now()}}
    run_folder.RunFolder(results / "r1").write_run(make_run(nodes=nodes))
    run_folder.remember(run_folder.find(results, "r1"))
    assert choose(results) == "r1"
    assert choose(results, nodes={"b": NODES["a"]}) != "r1"


def test_latest_follows_the_last_run(results):
    run_folder.remember(run_folder.find(results, "r2"))
    assert run_folder.latest_run(results).path.name == "r2"
    assert run_folder.resolve(results, "").path == results / "r2"


def test_no_run_at_all_says_what_to_do(tmp_path):
    with pytest.raises(run_folder.RunError, match="make validate"):
        run_folder.resolve(tmp_path, "")


def test_a_finished_run_is_not_opened_again_by_its_id():
    with pytest.raises(run_folder.RunError, match="ended at"):
        opening.merge(make_run(finished_at=run_folder.now()), make_run())


def test_an_unfinished_run_is_opened_again_as_it_is():
    assert opening.merge(make_run(), make_run(deadline_seconds=1)) == (make_run(), [])


def test_who_joins_with_fewer_stages_narrows_the_run():
    wanted = make_run(nodes={"b": NODES["a"]}, narrowed_by=["limit", "tags"])
    assert opening.merge(make_run(), wanted)[0]["narrowed_by"] == ["tags"]


def test_another_profile_needs_another_run():
    with pytest.raises(run_folder.RunError, match="profile"):
        opening.merge(make_run(), make_run(profile="burnin"))


@pytest.mark.parametrize("word", ["latest", "new", "models", "images"])
def test_a_word_with_another_meaning_is_no_run_id(word):
    with pytest.raises(run_folder.RunError, match="another meaning"):
        run_folder.check_run_id(word)


def test_latest_stands_for_the_id_of_the_latest_run(results, tmp_path_factory):
    assert choose(results, "latest") == "r1"
    assert run_folder.resolve(results, "latest").path == results / "r1"
    assert choose(tmp_path_factory.mktemp("none"), "latest") != "latest"


@pytest.mark.parametrize("folder", ["", "/", "models", "models/x", "images", "a//b", "../a", "a/..", ".x", "a b"])
def test_a_folder_whose_removal_would_take_more_along_is_refused(folder):
    with pytest.raises(run_folder.RunError, match="gpuval_folder"):
        run_folder.check_folder(folder)


def test_a_folder_stands_without_slashes_around_it():
    assert run_folder.check_folder("/acceptance/2026/") == "acceptance/2026"


def test_a_run_of_an_older_form_is_not_resumed(results):
    (results / "r1" / "run.json").write_text("{}")
    assert choose(results) != "r1"


def test_the_deadline_counts_from_the_last_plan(results):
    folder = run_folder.find(results, "r1")
    run = make_run(created_at="2026-01-01T00:00:00Z")
    folder.write_run(run)
    assert folder.begun_at(run) == "2026-01-01T00:00:00Z"
    plan_made = run_folder.now()
    run_folder.write_json(folder.plan_file("a"), {"created_at": plan_made})
    assert folder.begun_at(run) == plan_made
    assert choose(results) == "r1", "its nodes may still be at work"


def active(results):
    return [run.path.name for run in run_folder.known_runs(results) if cleanable.needs_store(run)]


def test_runs_that_are_neither_finished_nor_late_are_active(results):
    for run_id, changes in (("r2", {"finished_at": run_folder.now()}), ("r3", {"created_at": "2026-01-01T00:00:00Z"})):
        run_folder.RunFolder(results / run_id).write_run(make_run(run_id=run_id, **changes))
    (results / "damaged").mkdir()
    (results / "damaged" / "run.json").write_text("{")
    assert active(results) == ["r1"]


def test_a_run_that_nodes_joined_late_is_active_for_them(results):
    joined = {**NODES, "b": {**NODES["a"], "joined_at": run_folder.now()}}
    run_folder.RunFolder(results / "r1").write_run(make_run(created_at="2026-01-01T00:00:00Z", nodes=joined))
    assert active(results) == ["r1"]


def test_a_clean_names_the_command_for_each_other_inventory():
    (note,) = cleanable.Cleanable(others={"b": ["r2"], "a b": ["r1"]}).notes()
    assert note == ("runs of other inventories stay: r1 (`make clean INVENTORY='a b'`); r2 (`make clean INVENTORY=b`)")
