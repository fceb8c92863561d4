"""The keys of a round: for this user alone, others in each round, gone after it."""

import stat

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import AbandonedError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError, RunFolder

from tests.kit.builders import make_run
from tests.kit.gang_bed import Bed, Died, Fault, build

FILES = {"gpuval.json", "token", "id_ed25519", "id_ed25519.pub"}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "gangs" / "all")
    folder.write_run(make_run(("node-1", "node-2")))
    return folder


def file_of(folder):
    return folder.state / "gang_keys.json"


def test_they_are_for_this_user_alone(folder):
    keys.make(folder)
    assert stat.S_IMODE(file_of(folder).stat().st_mode) == 0o600
    assert [path.name for path in folder.state.iterdir()] == ["gang_keys.json"]  # no draft is left


def test_members_have_the_same_and_know_whose_they_are(folder):
    keys.make(folder)
    one, two = keys.files_for(folder, "node-1"), keys.files_for(folder, "node-2")
    assert set(one) == FILES
    assert {name for name in FILES if one[name] != two[name]} == {"gpuval.json"}
    assert one["id_ed25519"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert one["id_ed25519.pub"].startswith("ssh-ed25519 ")
    assert len(bytes.fromhex(one["token"])) == keys.TOKEN_BYTES


def test_a_controller_that_is_started_again_takes_those_that_are_there(folder):
    keys.make(folder)
    before = file_of(folder).read_bytes()
    keys.make(folder)
    assert file_of(folder).read_bytes() == before


def test_they_are_forgotten_and_that_twice(folder):
    keys.make(folder)
    keys.forget(folder)
    keys.forget(folder)
    assert keys.files_for(folder, "node-1") == {}


def searched():
    gang = build(4, 1, rack=0, noise=0.0)
    gang.bad["node-002"] = Fault("slow", 0.5)
    return gang


def test_each_round_has_its_own_and_none_is_left(tmp_path):
    bed = Bed(tmp_path, searched())
    bed.go()
    assert len(bed.pairs) == len(bed.carried) > 3
    for name in ("token", "id_ed25519", "id_ed25519.pub"):
        assert len({pair[name] for pair in bed.pairs}) == len(bed.pairs)
    assert not list(tmp_path.rglob("gang_keys.json"))


def test_no_secret_is_written_anywhere_else(tmp_path):
    bed = Bed(tmp_path, searched())
    bed.go()
    secret = [pair["token"] for pair in bed.pairs] + [pair["id_ed25519"].splitlines()[1] for pair in bed.pairs]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert not any(one in text for one in secret), path
    assert not any(one in line for one in secret for line in bed.said)


def test_a_round_that_was_cut_off_keeps_its_pair(tmp_path):
    bed = Bed(tmp_path, searched())
    bed.dies_at = 5  # the first members have worked
    with pytest.raises(Died):
        bed.go()
    assert file_of(bed.below("all")).exists()
    bed.go()
    assert bed.pairs[0]["token"] == bed.pairs[1]["token"]
    assert not list(tmp_path.rglob("gang_keys.json"))
    assert run_folder.read_json(bed.folder.path / "gangs" / "gangs.json")["ended_at"]


def test_an_error_that_ends_the_gangs_leaves_none(tmp_path):
    bed, work = Bed(tmp_path, searched()), Bed.work

    def breaks_off(bed, below, run, nodes):
        work(bed, below, run, nodes)
        raise RunError("no space left on device")

    bed.work = breaks_off.__get__(bed)
    with pytest.raises(RunError):
        bed.go()
    assert bed.pairs
    assert not list(tmp_path.rglob("gang_keys.json"))


def test_a_worker_whose_ansible_playbook_was_killed_leaves_them_for_the_next(tmp_path):
    bed, work = Bed(tmp_path, searched()), Bed.work

    def is_abandoned(bed, below, run, nodes):
        work(bed, below, run, nodes)
        raise AbandonedError("ansible-playbook has ended without its worker")

    bed.work = is_abandoned.__get__(bed)
    with pytest.raises(AbandonedError):
        bed.go()
    bed.work = work.__get__(bed)
    bed.go()
    assert bed.pairs[0]["token"] == bed.pairs[1]["token"]


def test_a_run_that_was_closed_amid_a_round_ends_without(tmp_path):
    bed = Bed(tmp_path, searched())
    bed.dies_at = 5
    with pytest.raises(Died):
        bed.go()
    bed.close()
    bed.go()
    assert bed.document["ended_at"]
    assert not list(tmp_path.rglob("gang_keys.json"))
