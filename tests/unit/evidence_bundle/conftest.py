import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import files
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import contents, statement, verify_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle.signing_keys import (
    public_pem,
    read_known_keys,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import acceptance
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.kit.bundled_runs import judged_run, make

PREDICATE = {"run_id": "run-1", "verdict": "PASS", "judged_at": "2026-03-01T12:00:00Z"}
#: Content by path; files of equal size and of equal content among them.
FILES = {
    "run.json": b'{"run_id": "run-1"}',
    "judgement.json": b'{"judged_at": "2026-03-01T12:00:00Z"}',
    "criteria/training.yml": b"checks: []\n",
    "nodes/node-1/training.json": b'{"value": 2799390720}',
    "nodes/node-2/training.json": b'{"value": 2799390620}',
    "nodes/node-1/training.log": b"step 1\n" * 300,
    "nodes/node-2/training.log": b"step 1\n" * 300,
    "nodes/node-1/empty.log": b"",
    "skus/h200.yml": bytes(range(256)),
}


class Parties:
    """Vendor and customer, each with a private key and a file with the public one."""

    def __init__(self, folder):
        self.keys = {name: Ed25519PrivateKey.generate() for name in ("vendor", "customer")}
        self.folder = folder
        self.files = {name: folder / f"{name}.pem" for name in self.keys}
        for name, key in self.keys.items():
            self.files[name].write_bytes(public_pem(key))

    def known(self, *names):
        """The public keys of these parties, or both; signatures of none are required."""
        return replace(self.required(*names), required=())

    def required(self, *names):
        return read_known_keys(self.folder, [], [self.files[name] for name in names or self.keys])


@pytest.fixture(scope="session")
def parties(tmp_path_factory):
    return Parties(tmp_path_factory.mktemp("keys"))


def write_bundle(folder, files_by_path=FILES):
    for name, content in files_by_path.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    statement.seal(folder, PREDICATE)
    return folder


def add_signature(folder, key):
    path = folder / statement.STATEMENT
    files.replace(path, statement.sign(path.read_bytes(), key))


@pytest.fixture
def bundle(tmp_path, parties):
    """A bundle that both parties signed."""
    folder = write_bundle(tmp_path / "bundle")
    for key in parties.keys.values():
        add_signature(folder, key)
    return folder


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    """The script as it lies beside a bundle, loaded from there."""
    path = tmp_path_factory.mktemp("beside") / "verify_bundle.py"
    path.write_bytes(Path(verify_bundle.__file__).read_bytes())
    spec = importlib.util.spec_from_file_location("verify_bundle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shipped_proofs():
    """What an acceptance needs, as it ships: other tests have a file of their own, which no other process reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acceptance, "PROOFS", COLLECTION / "skus/shared/acceptance.yml")
        yield


@pytest.fixture(scope="module")
def judged_bundle(shipped_proofs, tmp_path_factory):
    """The bundle of a run with gangs and a node that failed, without the run."""
    folder = tmp_path_factory.mktemp("made")
    run = judged_run("kubernetes", folder)
    outcome = make(run)
    assert not outcome.failed, outcome.text
    moved = tmp_path_factory.mktemp("elsewhere") / "bundle"
    (run.path / contents.FOLDER).rename(moved)
    shutil.rmtree(folder)
    return moved
