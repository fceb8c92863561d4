"""The store's certificate authority: kept while it is good, made anew when it is not, valid for openssl."""

import stat
import subprocess
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.certificates import CertificateFiles, ensure
from cryptography import x509

NOW = datetime.now(timezone.utc)


@pytest.fixture
def files(tmp_path):
    return CertificateFiles(tmp_path)


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def texts(files):
    return {path.name: path.read_text() for path in vars(files).values()}


def test_what_is_good_is_kept(files):
    assert ensure(files, ["controller.example"]) is True
    before = texts(files)
    assert ensure(files, ["controller.example"]) is False
    assert texts(files) == before


def test_another_address_gets_another_certificate_of_the_same_authority(files):
    ensure(files, ["192.0.2.7"])
    before = texts(files)
    assert ensure(files, ["192.0.2.8"]) is True
    after = texts(files)
    assert after["ca.pem"] == before["ca.pem"]
    assert after["server.pem"] != before["server.pem"]
    names = read(files.server).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"192.0.2.8", "127.0.0.1", "::1", "localhost"}


def test_keys_are_private(files):
    ensure(files, ["controller"])
    for path in (files.authority_key, files.server_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "PRIVATE" not in files.authority.read_text()


def test_a_certificate_outlives_every_url_signed_while_it_is_used(files):
    ensure(files, ["controller"], NOW)
    for age in (timedelta(0), timedelta(days=40), timedelta(days=80), timedelta(days=380)):
        then = NOW + age
        ensure(files, ["controller"], then)
        for path in (files.server, files.authority):
            certificate = read(path)
            assert certificate.not_valid_after_utc >= then + timedelta(days=7)
            assert certificate.not_valid_before_utc <= then - timedelta(days=2) + timedelta(seconds=2)
        assert read(files.server).not_valid_after_utc <= then + certificates.SERVER_LIFE


def test_an_authority_that_ends_soon_is_replaced_with_its_certificate(files):
    ensure(files, ["controller"], NOW)
    before = texts(files)
    assert ensure(files, ["controller"], NOW + certificates.AUTHORITY_LIFE - timedelta(days=8)) is True
    assert texts(files)["ca.pem"] != before["ca.pem"]


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "server.key"])
@pytest.mark.parametrize("damage", ["", "no certificate"])
def test_a_damaged_file_is_made_anew(files, name, damage):
    ensure(files, ["controller"])
    (files.authority.parent / name).write_text(damage)
    assert ensure(files, ["controller"]) is True
    verify(files)


def test_removing_leaves_nothing(files):
    assert files.remove() is False
    ensure(files, ["controller"])
    assert files.remove() is True
    assert list(files.authority.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["controller.example", "192.0.2.7", "2001:db8::7", "127.0.0.1", "localhost"])
def test_openssl_takes_it_for_valid_in_its_strict_mode(files, name):
    ensure(files, ["controller.example", "192.0.2.7", "2001:DB8::7"])
    check = "-verify_hostname" if name[0].isalpha() else "-verify_ip"
    verify(files, "-x509_strict", "-purpose", "sslserver", check, name)
    refused = run_verify(files, check, "other.example" if name[0].isalpha() else "192.0.2.9")
    assert refused.returncode != 0


def verify(files, *options):
    done = run_verify(files, *options)
    assert done.returncode == 0, done.stderr


def run_verify(files, *options):
    command = ["openssl", "verify", *options, "-CAfile", str(files.authority), str(files.server)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
