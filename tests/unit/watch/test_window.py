"""The window of a run, changed while it is watched."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import window

BEGUN = window.Window(4, 16)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_as_the_watch_was_begun_with_until_it_is_set(folder):
    assert window.read_window(folder, BEGUN) == BEGUN
    window.write_window(folder, 20, None)
    assert window.read_window(folder, BEGUN) == window.Window(20, 16)
    window.write_window(folder, None, 0)
    assert window.read_window(folder, BEGUN) == window.Window(20, 0)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"nodes": -1, "transfers": "8"}', '{"nodes": true}'])
def test_a_damaged_file_changes_nothing(folder, text):
    path = window.window_file(folder)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert window.read_window(folder, BEGUN) == BEGUN


def test_it_says_what_holds():
    assert str(window.Window(0, 8)) == "all node(s) work at once, at most 8 of them may load images"
    assert str(window.Window(20, 8)) == "20 node(s) work at once, at most 8 of them may load images"
    for transfers in (0, 2, 16):
        assert str(window.Window(2, transfers)) == "2 node(s) work at once, all of them may load images"
