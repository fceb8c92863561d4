"""The step verify_bundle on the bundle of a real run: what it tells apart, and what it never calls verified."""

import json
import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import version
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import statement, verify_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle.signing_keys import (
    PUBLIC_FILE,
    keyid_of,
    read_private_key,
)

from tests.kit.actions import run_action
from tests.kit.bundled_runs import edit

from .conftest import add_signature

pytestmark = pytest.mark.usefixtures("shipped_proofs")


@pytest.fixture
def unsigned(judged_bundle, tmp_path):
    folder = Path(shutil.copytree(judged_bundle, tmp_path / "bundle"))
    statement.seal(folder, statement.predicate_of(folder))
    return folder


@pytest.fixture
def signed(unsigned, parties):
    add_signature(unsigned, parties.keys["vendor"])
    return unsigned


@pytest.fixture
def verify(parties, tmp_path):
    """Verify with the keys of these parties, in a site of its own."""

    def run(bundle, *names, check_mode=False, **options):
        keys = [str(parties.files[name]) for name in names]
        options = {"folder": str(bundle), "keys": keys, "state_dir": str(tmp_path / "state")} | options
        return run_action("verify_bundle", options, check_mode=check_mode)

    return run


def test_what_holds_is_verified_and_leaves_the_folder_as_it_was(signed, verify):
    before = {path: path.stat().st_mtime_ns for path in signed.rglob("*")}
    outcome = verify(signed, "vendor")
    assert not outcome.failed and outcome.result["changed"] is False, outcome.text
    for words in (": verified", "all files have the digests", "judged again: the same report", "verified: FAIL of run"):
        assert words in outcome.text
    assert {path: path.stat().st_mtime_ns for path in signed.rglob("*")} == before


@pytest.mark.parametrize(
    ("names", "words"),
    [([], "signed by an unknown key"), (["customer"], "not signed"), (["vendor", "customer"], "not signed")],
)
def test_a_signature_that_does_not_count_is_never_verified(signed, verify, names, words):
    outcome = verify(signed, *names)
    assert outcome.failed and words in outcome.text and "NOT VERIFIED" in outcome.text
    assert "judged again: the same report" in outcome.text, "what holds is said"


def test_a_bundle_that_is_not_signed_says_so(unsigned, verify):
    for names in ([], ["vendor"]):
        outcome = verify(unsigned, *names)
        assert outcome.failed and "not signed" in outcome.text and "NOT VERIFIED" in outcome.text


@pytest.mark.parametrize("name", ["run/report.html", "letter.pdf", "data/run_me"])
def test_a_page_or_a_program_that_no_judgement_made_is_not_verified(signed, verify, parties, name):
    """Its signer may write into it what it likes."""
    (signed / name).write_text("PASS")
    statement.seal(signed, statement.predicate_of(signed))
    add_signature(signed, parties.keys["vendor"])
    outcome = verify(signed, "vendor")
    assert outcome.failed and f"{name}: no file of an evidence bundle" in outcome.text


def test_a_hostile_statement_fills_no_screen(signed, verify, parties):
    statement.seal(signed, {**statement.predicate_of(signed), "run_id": "x" * 9000})
    payload, *_ = verify_bundle.read_envelope((signed / statement.STATEMENT).read_bytes())
    unknown = {f"key {number}": b"" for number in range(500)}
    (signed / statement.STATEMENT).write_bytes(verify_bundle.encode_envelope(payload, unknown))
    outcome = verify(signed, "vendor")
    assert outcome.failed and len(outcome.lines) < 60 and len(outcome.result["msg"]) < 500


def test_a_changed_byte_is_named_by_its_file_and_nothing_is_judged(signed, verify):
    path = next(signed.glob("run/nodes/*/facts.json"))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    outcome = verify(signed, "vendor")
    assert outcome.failed
    assert f"{path.relative_to(signed)}: changed" in outcome.text and "not judged again" in outcome.text


def test_a_lie_that_is_signed_is_found_by_judging_again(signed, verify, parties):
    """The signer edits a record, and seals and signs again."""
    node = sorted(signed.glob("run/nodes/*/facts.json"))[0].parent.name
    report = (signed / "run/report.json").read_text()
    edit(signed / "run/report.json", '"verdict":"FAIL"', '"verdict":"PASS"')
    assert (signed / "run/report.json").read_text() != report
    statement.seal(signed, statement.predicate_of(signed))
    add_signature(signed, parties.keys["vendor"])
    outcome = verify(signed, "vendor")
    assert outcome.failed and ": verified" in outcome.text, node
    assert "run/report.json: " in outcome.text and "kept PASS; judged again FAIL" in outcome.text
    assert "NOT VERIFIED" in outcome.text


def test_data_files_of_the_sender_are_named_though_all_holds(signed, verify, parties):
    path = signed / "data/skus/b200.yml"
    path.write_text(path.read_text() + "# as we like it\n")
    statement.seal(signed, statement.predicate_of(signed))
    add_signature(signed, parties.keys["vendor"])
    outcome = verify(signed, "vendor")
    assert not outcome.failed, outcome.text
    assert f"data/skus/b200.yml: not as gpuval {version()} has it" in outcome.text
    assert "judged by data files of its own: 1, see above" in outcome.text


@pytest.mark.parametrize(
    ("name", "value"), [("verdict", "PASS"), ("nodes", {}), ("judged_at", "2020-01-01T00:00:00Z"), ("profile", None)]
)
def test_a_statement_that_differs_from_its_report_is_found(signed, verify, parties, name, value):
    statement.seal(signed, {**statement.predicate_of(signed), name: value})
    add_signature(signed, parties.keys["vendor"])
    outcome = verify(signed, "vendor")
    assert outcome.failed and f"statement.dsse.json: {name} is not that of the report" in outcome.text


def test_the_other_party_signs_what_holds_and_then_both_keys_are_needed(signed, verify, parties, tmp_path):
    assert "run `make keys SIGNING=1`" in verify(signed, "vendor", sign=True).text
    state = str(tmp_path / "state")
    planned = run_action("signing_keys", {"state_dir": state}, check_mode=True)
    assert planned.result["changed"] and not (tmp_path / "state").exists()
    assert run_action("signing_keys", {"state_dir": state}).result["changed"]
    before = (signed / statement.STATEMENT).read_bytes()
    assert verify(signed, "vendor", sign=True, check_mode=True).result["changed"]
    assert (signed / statement.STATEMENT).read_bytes() == before
    outcome = verify(signed, "vendor", sign=True)
    assert not outcome.failed and outcome.result["changed"], outcome.text
    assert verify(signed, "vendor", sign=True).result["changed"] is False
    assert verify(signed, "vendor").result["changed"] is False
    elsewhere = {"state_dir": str(tmp_path / "elsewhere")}
    assert "signed by an unknown key" in verify(signed, "vendor", **elsewhere).text
    outcome = verify(signed, "vendor", known_keys=[str(tmp_path / "state" / PUBLIC_FILE)], **elsewhere)
    assert not outcome.failed, outcome.text


@pytest.mark.parametrize("names", [["customer"], []])
def test_nothing_is_signed_that_does_not_hold(signed, verify, names, tmp_path):
    run_action("signing_keys", {"state_dir": str(tmp_path / "state")})
    before = (signed / statement.STATEMENT).read_bytes()
    assert verify(signed, *names, sign=True).failed
    (signed / "run/added").write_text("x")
    assert verify(signed, "vendor", sign=True).failed
    assert (signed / statement.STATEMENT).read_bytes() == before


def test_a_revoked_key_is_told_with_its_reason(unsigned, verify, tmp_path):
    state = tmp_path / "state"
    run_action("signing_keys", {"state_dir": str(state)})
    key = read_private_key(state, {})
    add_signature(unsigned, key)
    assert not verify(unsigned).failed
    document = json.loads((state / PUBLIC_FILE).read_text())
    document["revoked"] = [{"keyid": keyid_of(key), "at": "2026-05-01T00:00:00Z", "reason": "stolen"}]
    (state / PUBLIC_FILE).write_text(json.dumps(document))
    outcome = verify(unsigned)
    assert outcome.failed and "signed by a revoked key (2026-05-01T00:00:00Z: stolen)" in outcome.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": ""}, "verify_folder names no evidence bundle"),
        ({"folder": "/no/such"}, "/no/such is no evidence bundle: it has no statement.dsse.json"),
        ({"folder": "/"}, "/ is no evidence bundle: it has no statement.dsse.json"),
        ({"keys": ["/no/such.pem"]}, "/no/such.pem: the key cannot be read: No such file"),
        ({"keys": ["/etc/hostname"]}, "/etc/hostname: no Ed25519 public key in PEM"),
        ({"known_keys": ["/no/such.json"]}, "/no/such.json: cannot be read: No such file"),
        ({"known_keys": ["/etc/hostname"]}, "/etc/hostname"),
    ],
    ids=str,
)
def test_what_is_mistyped_is_named(unsigned, verify, options, words):
    outcome = verify(unsigned, **options)
    assert outcome.failed and words in outcome.text


def test_nothing_of_a_hostile_text_reaches_the_terminal(unsigned, verify):
    (unsigned / "run/a\x1b[2Jb\n::error::x").write_text("x")
    outcome = verify(unsigned)
    assert outcome.failed and "\x1b" not in outcome.text and "\n" not in outcome.text


def test_temporary_files_are_removed(signed, verify, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert not verify(signed, "vendor").failed
    assert list((tmp_path / "temporary").iterdir()) == []
