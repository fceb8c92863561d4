"""What is put back is what was found first."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network.errors import NetworkError
from ansible_collections.gpuval.fleet.plugins.module_utils.network.journal import Journal
from ansible_collections.gpuval.fleet.plugins.module_utils.network.plan import Change


def mtu(before, after, name="ib0"):
    return Change("mtu", f"{name} mtu", before, after, name)


def test_the_first_value_wins_however_often_it_changes(tmp_path):
    base = tmp_path / "base"
    journal = Journal(base)
    journal.note(mtu(1500, 9000))
    journal.note(mtu(1500, 9000, "ib1"))
    journal.note(mtu(9000, 4000))
    assert Journal(base).changes == [mtu(1500, 4000), mtu(1500, 9000, "ib1")]
    assert base.stat().st_mode & 0o777 == journal.folder.stat().st_mode & 0o777 == 0o700
    assert journal.path.stat().st_mode & 0o777 == 0o600


def test_a_change_is_on_disk_before_it_is_made_and_forgotten_only_after(tmp_path):
    journal = Journal(tmp_path / "base")
    journal.note(mtu(1500, 9000))
    journal.note(mtu(9000, 1500))
    assert Journal(tmp_path / "base").changes, "the change back may still fail"
    journal.tidy()
    assert not (tmp_path / "base").exists()


def test_a_change_rolled_back_leaves_what_earlier_runs_changed(tmp_path):
    journal = Journal(tmp_path / "base")
    journal.note(mtu(1500, 9000))
    was = list(journal.changes)
    journal.note(mtu(9000, 4000))
    journal.note(mtu(1500, 4000, "ib1"))
    journal.take_back(mtu(1500, 4000, "ib1"), was)
    journal.take_back(mtu(9000, 4000), was)
    assert Journal(tmp_path / "base").changes == [mtu(1500, 9000)]


def test_other_things_in_the_folder_stay(tmp_path):
    journal = Journal(tmp_path)
    journal.note(mtu(1500, 9000))
    (tmp_path / "models").mkdir()
    journal.forget(mtu(1500, 9000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"schema": "other", "changes": [], "flapped": {}})])
def test_a_damaged_journal_is_no_empty_one(tmp_path, text):
    (tmp_path / "network").mkdir(mode=0o700)
    (tmp_path / "network/undo.json").write_text(text)
    with pytest.raises(NetworkError, match="damaged"):
        Journal(tmp_path)
