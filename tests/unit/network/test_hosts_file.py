"""The block in /etc/hosts goes in and comes out; every other byte stays, and so does the file's owner."""

import errno
import os
import stat

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network.host import write_file
from ansible_collections.gpuval.fleet.plugins.module_utils.network.hosts_file import (
    block_of,
    other_addresses,
    read_block,
    set_block,
)

BLOCK = "10.0.0.1 node-1\n10.0.0.2 node-2\n"


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1 localhost\n", "127.0.0.1 localhost", "127.0.0.1\tlocalhost\r\n# x\n\n\n", "\n"]
)
def test_in_and_out_gives_the_old_bytes(text):
    written = set_block(text, BLOCK)
    assert written.startswith(text)
    assert read_block(written) == BLOCK
    assert set_block(written, BLOCK) == written
    assert set_block(set_block(written, "10.0.0.3 other\n"), None) == text


def test_what_others_added_after_it_stays():
    written = set_block("127.0.0.1 localhost", BLOCK) + "10.9.9.9 late\n"
    assert set_block(written, None) == "127.0.0.1 localhost\n10.9.9.9 late\n"


def test_lines_by_address_and_names_that_have_another_one():
    assert block_of({"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.1"}) == "10.0.0.1 a c\n10.0.0.2 b\n"
    text = set_block("127.0.1.1 a # 10.0.0.1\n10.0.0.2 b\n", "10.0.0.1 a\n")
    assert other_addresses(text, {"a": "10.0.0.1", "b": "10.0.0.2"}) == {"a": "127.0.1.1"}


def test_a_written_file_keeps_its_mode_and_one_whose_owner_cannot_be_given_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "hosts"
    path.write_text("old\n")
    path.chmod(0o640)
    replaced = path.stat()
    write_file(path, "new\n")
    written = path.stat()
    assert (path.read_text(), stat.S_IMODE(written.st_mode), written.st_uid) == ("new\n", 0o640, replaced.st_uid)
    assert written.st_ino != replaced.st_ino

    def refuse(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # an owner outside the user namespace

    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(os, "fchown", refuse)
    write_file(path, "again\n")
    assert (path.read_text(), path.stat().st_ino) == ("again\n", written.st_ino)
    assert [entry.name for entry in tmp_path.iterdir()] == ["hosts"]
