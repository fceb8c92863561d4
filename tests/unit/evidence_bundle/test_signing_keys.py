"""The site's signing key: made once, closed to others, replaced, revoked; the lists of keys that verify knows."""

import json
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import is_secret
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError, SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import signing_keys, statement
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle.signing_keys import (
    PRIVATE_FILE,
    PUBLIC_FILE,
    ensure_key,
    keyid_of,
    public_pem,
    read_known_keys,
    read_private_key,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.kit.needs import needs_programs

from .conftest import PREDICATE, add_signature, write_bundle

MADE_AT, REPLACED_AT = "2026-01-01T00:00:00Z", "2026-04-01T00:00:00Z"


def private_pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()).decode()


def listed(state_dir):
    return json.loads((state_dir / PUBLIC_FILE).read_text())


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The state folder of a site with a key."""
    monkeypatch.setattr(run_folder, "now", lambda: MADE_AT)
    assert ensure_key(tmp_path / "state", False, {})[1]
    return tmp_path / "state"


def test_a_key_is_made_once_and_closed_to_others(site):
    private, public = site / PRIVATE_FILE, site / PUBLIC_FILE
    assert private.stat().st_mode & 0o777 == 0o600 and private.parent.stat().st_mode & 0o777 == 0o700
    before = private.read_bytes(), public.read_bytes()
    key = read_private_key(site, {})
    assert ensure_key(site, False, {}) == (listed(site)["keys"][0], False)
    assert (private.read_bytes(), public.read_bytes()) == before
    assert "PRIVATE" not in public.read_text()
    (entry,) = listed(site)["keys"]
    assert entry == {"keyid": keyid_of(key), "public_key": public_pem(key).decode(), "made_at": MADE_AT}


def test_the_keyid_is_the_sha256_of_the_der_form(site, run_openssl):
    """As openssl computes it from the private key."""
    der = run_openssl("pkey", "-in", str(site / PRIVATE_FILE), "-pubout", "-outform", "DER")
    assert listed(site)["keys"][0]["keyid"] == run_openssl("sha256", "-r", stdin=der).split()[0].decode()


@pytest.fixture
def run_openssl():
    needs_programs({"openssl": "openssl"})
    return lambda *arguments, stdin=b"": (
        subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, check=True, timeout=30).stdout
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_read_is_refused(site, mode):
    (site / PRIVATE_FILE).chmod(mode)
    for use in (lambda: read_private_key(site, {}), lambda: ensure_key(site, False, {})):
        with pytest.raises(SettingError, match="other users may read or write it: run chmod 600"):
            use()


def test_a_site_without_a_key_signs_nothing(tmp_path):
    assert read_private_key(tmp_path, {}) is None
    assert read_known_keys(tmp_path).keys == {}


def test_the_environment_wins_as_pem_or_as_a_file(site, tmp_path):
    key, path = ed25519.Ed25519PrivateKey.generate(), tmp_path / "other.pem"
    path.write_text(private_pem(key))
    path.chmod(0o600)
    for value in (private_pem(key), str(path), f" {path}\n"):
        environment = {"GPUVAL_SIGNING_KEY": value}
        assert keyid_of(read_private_key(site, environment)) == keyid_of(key)
    private = (site / PRIVATE_FILE).read_bytes()
    for is_new in (True, False):
        entry, is_changed = ensure_key(site, False, environment)
        assert entry["keyid"] == keyid_of(key) and is_changed is is_new
    assert [entry["keyid"] for entry in listed(site)["keys"]][1:] == [keyid_of(key)]
    assert (site / PRIVATE_FILE).read_bytes() == private, "the key of the environment is not written"
    assert private_pem(key) not in "".join(file.read_text() for file in (site / "signing").iterdir())
    path.chmod(0o644)
    with pytest.raises(SettingError, match="chmod 600"):
        read_private_key(site, {"GPUVAL_SIGNING_KEY": str(path)})


EC_KEY = ec.generate_private_key(ec.SECP256R1())
LOCKED = private_pem(ed25519.Ed25519PrivateKey.generate(), BestAvailableEncryption(b"password"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/no/such/file", "neither PEM nor a file that can be read: No such file"),
        ("MC4CAQAwBQYDK2VwBCIEI", "neither PEM nor a file"),
        ("x" * 5000, "neither PEM nor a file"),
        ("-----BEGIN PRIVATE KEY-----\nsecret\n", "GPUVAL_SIGNING_KEY: no Ed25519 private key"),
        (private_pem(EC_KEY), "GPUVAL_SIGNING_KEY: no Ed25519 private key"),
        (LOCKED, "without a password"),
        (public_pem(ed25519.Ed25519PrivateKey.generate()).decode(), "no Ed25519 private key"),
    ],
    ids=["no file", "base64", "too long", "damaged", "another kind", "password", "public"],
)
def test_a_mistyped_key_is_refused_and_not_printed(site, value, message):
    with pytest.raises(SettingError, match=message) as raised:
        read_private_key(site, {"GPUVAL_SIGNING_KEY": value})
    text = f"{raised.value} {raised.value.__cause__}"
    assert value.splitlines()[-1] not in text or value.startswith("/no")


def test_rotation_keeps_what_was_judged_before_it(site, tmp_path, monkeypatch):
    bundle = write_bundle(tmp_path / "bundle")  # judged 2026-03-01
    old = read_private_key(site, {})
    add_signature(bundle, old)
    monkeypatch.setattr(run_folder, "now", lambda: REPLACED_AT)
    entry, is_changed = ensure_key(site, True, {})
    assert is_changed and keyid_of(read_private_key(site, {})) == entry["keyid"] != keyid_of(old)
    first, second = listed(site)["keys"]
    assert first["until"] == REPLACED_AT and "until" not in second
    known = read_known_keys(site)
    assert statement.check(bundle, known).is_verified
    statement.seal(bundle, {**PREDICATE, "judged_at": "2026-04-01T00:00:01Z"})
    add_signature(bundle, old)
    (state,) = statement.check(bundle, known).signatures.values()
    assert state == f"signed by a key that was replaced before the judgement ({REPLACED_AT})"
    with pytest.raises(SettingError, match="was replaced or revoked: run `make keys SIGNING=1 ROTATE=1`"):
        read_private_key(site, {"GPUVAL_SIGNING_KEY": private_pem(old)})
    monkeypatch.setattr(run_folder, "now", lambda: "2026-05-01T00:00:00Z")
    ensure_key(site, True, {})
    assert [entry.get("until") for entry in listed(site)["keys"]] == [REPLACED_AT, "2026-05-01T00:00:00Z", None]


def test_rotation_of_a_key_in_the_environment_needs_the_new_one(site):
    old, new = (private_pem(ed25519.Ed25519PrivateKey.generate()) for _ in range(2))
    ensure_key(site, False, {"GPUVAL_SIGNING_KEY": old})
    with pytest.raises(SettingError, match="lists the key in GPUVAL_SIGNING_KEY already: set it to the new key"):
        ensure_key(site, True, {"GPUVAL_SIGNING_KEY": old})
    assert ensure_key(site, True, {"GPUVAL_SIGNING_KEY": new})[1]
    assert ["until" in entry for entry in listed(site)["keys"]] == [True, True, False]


def revoke(site, revoked_id, **changes):
    path = site / PUBLIC_FILE
    entry = {"keyid": revoked_id, "at": "2026-05-01T00:00:00Z", "reason": "the laptop was stolen", **changes}
    path.write_text(json.dumps({**listed(site), "revoked": [entry]}))


def test_a_revoked_key_neither_signs_nor_verifies(site, tmp_path):
    bundle, key = write_bundle(tmp_path / "bundle"), read_private_key(site, {})
    add_signature(bundle, key)
    assert statement.check(bundle, read_known_keys(site)).is_verified
    revoke(site, keyid_of(key))
    (state,) = statement.check(bundle, read_known_keys(site)).signatures.values()
    assert state == "signed by a revoked key (2026-05-01T00:00:00Z: the laptop was stolen)"
    with pytest.raises(SettingError, match="was replaced or revoked"):
        read_private_key(site, {})
    ensure_key(site, True, {})
    assert read_private_key(site, {}), "the new key signs"
    assert listed(site)["revoked"], "the list of revoked keys remains"


def test_a_restriction_in_any_list_counts(site, tmp_path):
    theirs = tmp_path / "theirs"
    key = read_private_key(site, {})
    pem = tmp_path / "key.pem"
    pem.write_bytes(public_pem(key))
    for until in (REPLACED_AT, "2026-02-01T00:00:00Z"):
        document = listed(site)
        document["keys"][0]["until"] = until
        theirs.with_suffix(f".{until[5:7]}").write_text(json.dumps(document))
    paths = [theirs.with_suffix(suffix) for suffix in (".04", ".02")]
    for lists in (paths, paths[::-1]):
        assert read_known_keys(site, lists, [pem]).until == {keyid_of(key): "2026-02-01T00:00:00Z"}
    with pytest.raises(GpuvalError, match=r"none\.json: cannot be read"):
        read_known_keys(site, [tmp_path / "none.json"])


@pytest.mark.parametrize(
    "damage",
    [
        {"keyid": "abc"},
        {"keyid": "A" * 64},
        {"at": "yesterday"},
        {"at": "2026-05-01"},
        {"reason": ""},
        {"resaon": "stolen"},
    ],
    ids=str,
)
def test_a_mistyped_revocation_is_refused_as_a_whole(site, damage):
    revoke(site, "a" * 64, **damage)
    with pytest.raises(GpuvalError, match=r"keys\.json: revoked\[0\]"):
        read_known_keys(site)


def test_a_list_whose_keyid_is_not_that_of_its_key_is_refused(site):
    document = listed(site)
    document["keys"][0]["keyid"] = "a" * 64
    (site / PUBLIC_FILE).write_text(json.dumps(document))
    with pytest.raises(SettingError, match=f"the keyid {'a' * 64} for a key with another keyid"):
        read_known_keys(site)


def test_keyids_that_change_places_are_refused(site):
    """Else the end of the replaced key would be that of the new one."""
    ensure_key(site, rotate=True, environment={})
    document = listed(site)
    old, new = document["keys"]
    old["keyid"], new["keyid"] = new["keyid"], old["keyid"]
    (site / PUBLIC_FILE).write_text(json.dumps(document))
    with pytest.raises(SettingError, match="for a key with another keyid"):
        read_known_keys(site)


def test_a_public_key_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(EC_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(SettingError, match=r"key\.pem: no Ed25519 public key in PEM"):
        read_known_keys(tmp_path, [], [path])
    with pytest.raises(SettingError, match="cannot be read: No such file"):
        read_known_keys(tmp_path, [], [tmp_path / "none.pem"])


def test_the_variable_is_one_that_logs_and_deliveries_hide():
    assert is_secret(signing_keys.VARIABLE)
