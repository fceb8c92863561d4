"""The block in /etc/hosts goes in and comes out; every other byte stays."""

import pytest
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
