"""The archive of wheels for nodes without internet: equal wheels make an equal one, whoever has packed them."""

import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.pack_wheels import pack, pack_wheels

from tests.kit.tiny_wheels import write_wheel


def test_equal_wheels_make_an_equal_archive(tmp_path):
    for age, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        path = write_wheel(tmp_path / name, "torch")
        os.utime(path, (0, age))
        pack([path], tmp_path / f"{name}.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_nothing_is_packed_without_wheels_or_for_nodes_that_do_not_reach_the_store(tmp_path):
    state = tmp_path / "state"
    store = {"bucket": "gpuval", "endpoint": "", "state_dir": str(state), "results_dir": "", "address": "", "port": 0}
    with pytest.raises(SettingError, match="has no wheels: correct environment_wheels, or make them with"):
        pack_wheels(None, store=store, folder=tmp_path)
    write_wheel(tmp_path, "torch")
    with pytest.raises(SettingError, match="do not reach it: set gpuval_store_address, or an S3 service"):
        pack_wheels(None, store=store, folder=tmp_path)
    assert not state.exists()
