"""The embedded store's own certificate authority, and the server certificate that it signs (ECDSA P-256).

Made for one store and trusted only by its nodes and its controller. Its key never leaves the controller.
"""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...module_utils.store import MAX_SIGNED_SECONDS
from ..core import files

#: How far a node's clock may lag behind the controller's before the node rejects a new certificate.
CLOCK_SLACK = timedelta(days=2)
AUTHORITY_LIFE = timedelta(days=400)
SERVER_LIFE = timedelta(days=90)
#: Min remaining lifetime of a certificate in use: longer than any signed URL, plus clock skew.
NEEDED = timedelta(seconds=MAX_SIGNED_SECONDS) + CLOCK_SLACK

#: Names by which the controller reaches the store.
LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")


class CertificateFiles:
    """Paths of the embedded store's certificates and keys in a folder on the controller."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.authority_key = directory / "ca.pem", directory / "ca.key"
        self.server, self.server_key = directory / "server.pem", directory / "server.key"

    def remove(self) -> bool:
        """Delete all certificates and keys. Returns whether there were any."""
        present = [path for path in vars(self).values() if path.exists()]
        for path in present:
            path.unlink()
        return bool(present)


def ensure(files: CertificateFiles, names: Iterable[str], now: datetime | None = None) -> bool:
    """Make a certificate authority, and a server certificate for the hosts `names` and the loopback.

    Valid ones are kept, since nodes of active runs trust them. Returns whether the server certificate is new.
    """
    now = now or datetime.now(timezone.utc)
    needed = list(dict.fromkeys(str(_general_name(name).value) for name in (*names, *LOOPBACK_NAMES)))
    authority = _load(files.authority, files.authority_key)
    if authority is None or not _lasts(authority[0], now):
        authority = _make_authority(now)
        _write_pair(files.authority, files.authority_key, *authority)
    server = _load(files.server, files.server_key)
    if server and _lasts(server[0], now) and _names(server[0]) == set(needed):
        with suppress(ValueError, TypeError, InvalidSignature):  # signed by another authority
            server[0].verify_directly_issued_by(authority[0])
            return False
    _write_pair(files.server, files.server_key, *_make_server(authority[0], authority[1], needed, now))
    return True


def _make_authority(now: datetime):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuval embedded store")])
    builder = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def _make_server(authority, authority_key, names: list[str], now: datetime):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuval store")])
    life = min(now + SERVER_LIFE, authority.not_valid_after_utc) - now
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(subject, authority.subject, key.public_key(), now, life)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    return builder.sign(authority_key, hashes.SHA256()), key


def _builder(subject: x509.Name, issuer: x509.Name, public_key, now: datetime, life: timedelta):
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(**usages):
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: usages.get(name, False) for name in names})


def _general_name(name: str):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate):
    try:
        entries = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(entry.value) for entry in entries}


def _lasts(certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now and certificate.not_valid_after_utc >= now + NEEDED


def _load(certificate_file: Path, key_file: Path):
    """Read a certificate and its key; None if one is missing or damaged, or if they do not belong together."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    return (certificate, key) if key.public_key() == certificate.public_key() else None


def _write_pair(certificate_file: Path, key_file: Path, certificate, key):
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.replace(key_file, secret, files.PRIVATE)
    files.replace(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
