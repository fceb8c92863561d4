"""Which channel confirms a node's evidence, by the digests that it states and those of what was read."""

import hashlib

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.digests import (
    BY_CHANNEL,
    CUT,
    STORE_ONLY,
    NodeDigests,
    digest_of_bytes,
)

A, B, C = (letter * 64 for letter in "abc")
RECORD, LOG, SERIES = "records/facts", "logs/facts", "series/facts"


@pytest.mark.parametrize(
    ("stated", "read", "channel"),
    [
        ({RECORD: [A], LOG: [B]}, {RECORD: A, LOG: B}, "node"),
        ({RECORD: [B, A]}, {RECORD: A}, "node"),  # the store lacks the last version
        ({RECORD: [A]}, {RECORD: A, LOG: BY_CHANNEL}, "node"),
        ({RECORD: [A], LOG: [B]}, {RECORD: A, LOG: C}, STORE_ONLY),
        ({RECORD: [A]}, {RECORD: A, LOG: B}, STORE_ONLY),
        ({RECORD: [A], LOG: [B]}, {RECORD: A, LOG: CUT}, STORE_ONLY),
        ({}, {RECORD: A}, STORE_ONLY),
        ({RECORD: [A]}, {}, STORE_ONLY),
        ({"records/work": [A]}, {"records/work": A}, STORE_ONLY),
        ({RECORD: [A], LOG: [B]}, {LOG: B}, STORE_ONLY),  # the watch of an older release read the record
    ],
)
def test_a_stage_is_confirmed_if_all_that_was_read_of_it_is(stated, read, channel):
    assert NodeDigests("node", stated, read).channel_of("facts") == channel


def test_without_a_channel_nothing_is_confirmed():
    assert NodeDigests("", {RECORD: [A]}, {RECORD: A}).channel_of("facts") == STORE_ONLY


def test_only_another_digest_than_the_stated_one_is_an_altered_object():
    known = NodeDigests("node", {RECORD: [A, B], LOG: [A], SERIES: [A]}, {RECORD: B, LOG: C, SERIES: CUT})
    known.read["series/work"] = C  # the node states none
    assert [key for key in known.read if known.is_altered(key)] == [LOG]
    known.read[LOG] = BY_CHANNEL
    assert not known.is_altered(LOG)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"channel": "node", "stated": {RECORD: A}, "read": {}},
        {"channel": "node", "stated": {}, "read": {"../records/facts": A}},
        {"channel": "node", "stated": {}, "read": {RECORD: "short"}},
        {"channel": "No Channel", "stated": {}, "read": {RECORD: A}},
    ],
)
def test_a_damaged_file_confirms_nothing(document):
    assert NodeDigests.of(document) == NodeDigests()


def test_a_file_is_read_as_it_was_written():
    known = NodeDigests("kubernetes", {RECORD: [A]}, {RECORD: A, LOG: BY_CHANNEL, SERIES: CUT})
    assert NodeDigests.of(vars(known)) == known


def test_what_is_not_read_whole_has_no_digest():
    assert digest_of_bytes(b"1234", 4) == hashlib.sha256(b"1234").hexdigest()
    assert digest_of_bytes(b"12345", 4) == CUT
