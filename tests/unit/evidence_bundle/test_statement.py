"""Bundles are sealed, signed by one party and then another, and checked against known, replaced and revoked keys."""

import json
from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import (
    EvidenceBundleError,
    statement,
    verify_bundle,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle.signing_keys import (
    KnownKeys,
    keyid_of,
)

from .conftest import FILES, PREDICATE, add_signature, write_bundle


def test_the_root_digest_depends_on_files_and_predicate_alone(tmp_path):
    first, second = (statement.seal(write_bundle(tmp_path / name), PREDICATE) for name in "ab")
    assert first == second
    (tmp_path / "b/run.json").write_text("{}")
    assert statement.seal(tmp_path / "b", PREDICATE) != first
    assert statement.seal(tmp_path / "a", {**PREDICATE, "verdict": "FAIL"}) != first


def test_a_bundle_that_is_sealed_again_keeps_its_signatures_unless_it_changed(bundle):
    path, signed = bundle / statement.STATEMENT, (bundle / statement.STATEMENT).read_bytes()
    inode = path.stat().st_ino
    statement.seal(bundle, PREDICATE)
    assert path.read_bytes() == signed and path.stat().st_ino == inode
    statement.seal(bundle, {**PREDICATE, "verdict": "FAIL"})
    assert json.loads(path.read_bytes())["signatures"] == []


def test_the_second_party_signs_without_the_key_of_the_first(tmp_path, parties):
    folder = write_bundle(tmp_path / "bundle")
    path = folder / statement.STATEMENT
    assert statement.check(folder, parties.known()).signatures == {}
    assert not statement.check(folder, parties.known()).is_verified, "not signed"
    add_signature(folder, parties.keys["vendor"])
    (first,) = json.loads(path.read_bytes())["signatures"]
    digest = statement.check(folder, parties.known()).root_digest
    add_signature(folder, parties.keys["customer"])
    assert first in json.loads(path.read_bytes())["signatures"]
    checked = statement.check(folder, parties.required())
    assert checked.is_verified and checked.root_digest == digest and len(checked.signatures) == 2
    signed = path.read_bytes()
    add_signature(folder, parties.keys["customer"])
    assert path.read_bytes() == signed, "Ed25519 has one signature for a key and a text"


def test_what_is_not_signed_is_never_verified(tmp_path, parties):
    folder = write_bundle(tmp_path / "bundle")
    vendor, customer = (keyid_of(parties.keys[name]) for name in ("vendor", "customer"))
    known = replace(parties.known(), required=[vendor])
    assert statement.check(folder, known).signatures == {vendor: "not signed"}
    add_signature(folder, parties.keys["customer"])
    checked = statement.check(folder, known)
    assert not checked.is_verified and checked.signatures == {vendor: "not signed", customer: "verified"}
    assert statement.check(folder, parties.known()).is_verified, "if it is not required"


def test_an_unknown_key_verifies_nothing(bundle, parties):
    vendor, customer = (keyid_of(parties.keys[name]) for name in ("vendor", "customer"))
    checked = statement.check(bundle, parties.known("vendor"))
    assert not checked.is_verified
    assert checked.signatures == {vendor: "verified", customer: "signed by an unknown key"}
    assert {*statement.check(bundle, KnownKeys({}, {}, {})).signatures.values()} == {"signed by an unknown key"}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_revoked_key_verifies_nothing_known_or_not(bundle, parties, is_known):
    vendor = keyid_of(parties.keys["vendor"])
    keys = parties.known(*([] if is_known else ["customer"])).keys
    checked = statement.check(bundle, KnownKeys(keys, {}, {vendor: "2026-02-01T00:00:00Z: stolen"}))
    assert not checked.is_verified
    assert checked.signatures[vendor] == "signed by a revoked key (2026-02-01T00:00:00Z: stolen)"


def test_a_signature_that_does_not_fit_is_invalid_though_its_key_is_revoked(bundle, parties):
    vendor, path = keyid_of(parties.keys["vendor"]), bundle / statement.STATEMENT
    payload, signatures, *_ = verify_bundle.read_envelope(path.read_bytes())
    path.write_bytes(verify_bundle.encode_envelope(payload, {**signatures, vendor: bytes(64)}))
    checked = statement.check(bundle, KnownKeys(parties.known().keys, {}, {vendor: "x"}))
    assert checked.signatures[vendor] == "invalid signature" and not checked.is_verified


@pytest.mark.parametrize(
    ("until", "is_verified"),
    [("2026-03-01T12:00:00Z", True), ("2027-01-01T00:00:00Z", True), ("2026-03-01T11:59:59Z", False)],
)
def test_a_replaced_key_counts_for_judgements_up_to_then(bundle, parties, until, is_verified):
    vendor = keyid_of(parties.keys["vendor"])
    checked = statement.check(bundle, KnownKeys(parties.known().keys, {vendor: until}, {}))
    assert checked.is_verified is is_verified
    if not is_verified:
        expected = f"signed by a key that was replaced before the judgement ({until})"
        assert checked.signatures[vendor] == expected


@pytest.mark.parametrize("judged_at", [None, "", "soon"])
def test_a_replaced_key_does_not_count_without_a_time(tmp_path, parties, judged_at):
    folder = write_bundle(tmp_path / "bundle")
    statement.seal(folder, {"judged_at": judged_at})
    add_signature(folder, parties.keys["vendor"])
    vendor = keyid_of(parties.keys["vendor"])
    assert statement.check(folder, parties.known()).is_verified
    assert not statement.check(
        folder, KnownKeys(parties.known().keys, {vendor: "2027-01-01T00:00:00Z"}, {})
    ).is_verified


def test_what_verify_would_refuse_cannot_be_sealed(tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    (folder / "link").symlink_to("run.json")
    with pytest.raises(EvidenceBundleError, match="cannot be sealed, verify would refuse it: link: a link"):
        statement.seal(folder, PREDICATE)
    (folder / "link").unlink()
    for predicate in ({"value": float("nan")}, {"value": object()}, {1: 1, "a": 2}):
        with pytest.raises(EvidenceBundleError, match="cannot be sealed"):
            statement.seal(folder, predicate)
    with pytest.raises(EvidenceBundleError, match="No such file"):
        statement.seal(tmp_path / "none", PREDICATE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvidenceBundleError, match="an empty folder"):
        statement.seal(tmp_path / "empty", PREDICATE)


def test_what_is_no_bundle_is_neither_checked_nor_signed(tmp_path, parties):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path):
        with pytest.raises(EvidenceBundleError, match=r"is no evidence bundle: it has no statement\.dsse\.json"):
            statement.check(folder, parties.known())
    (tmp_path / statement.STATEMENT).write_text("{}")
    with pytest.raises(EvidenceBundleError, match=r"statement\.dsse\.json is missing, damaged"):
        statement.check(tmp_path, parties.known())
    with pytest.raises(EvidenceBundleError, match="damaged"):
        statement.sign(b"{}", parties.keys["vendor"])


def test_names_in_any_script_are_sealed(tmp_path, parties):
    folder = write_bundle(tmp_path / "bundle", {**FILES, "skus/größe 数.yml": b"x"})
    add_signature(folder, parties.keys["vendor"])
    assert statement.check(folder, parties.known()).is_verified
    (folder / "skus/größe 数.yml").rename(folder / "skus/größe 教.yml")
    assert statement.check(folder, parties.known()).problems == {
        "skus/größe 数.yml": "missing",
        "skus/größe 教.yml": "added",
    }
