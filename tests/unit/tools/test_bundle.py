"""A bundle there and back: real pip, a checkout, a model and an image archive that are small."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.wheels import write_wheel

ROOT = Path(__file__).resolve().parents[3]
FLEET = "collections/ansible_collections/gpuval/fleet"
MODEL = "store/data/gpuval/models/models--gpuval--tiny"
IMAGE = "images/training-0123456789ab.tar"


def tool(checkout, *arguments, code=0, **environment):
    """Run the checkout's own tool, as make does."""
    done = subprocess.run(
        [sys.executable, "tools/bundle.py", *map(str, arguments)],
        cwd=checkout,
        env={**os.environ, "PIP_NO_INDEX": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def lock(root, name, digest=None):
    """Lock the controller's one package by its hash, as tools/lock.py writes it."""
    data = (root / "dist" / f"{name}-1.0-py3-none-any.whl").read_bytes()
    digest = digest or hashlib.sha256(data).hexdigest()
    text = f"# locked\n{name.replace('_', '-')}==1.0 ; python_version >= '3.9' \\\n    --hash=sha256:{digest}\n"
    put(root / "requirements/locked/controller.txt", text.encode())


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A checkout with internet: two packages, a model and an image in the embedded store."""
    root = tmp_path_factory.mktemp("origin")
    for name in ("tools/bundle.py", *(f"{FLEET}/{part}" for part in ("galaxy.yml", "README.md", "LICENSE"))):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "roles").mkdir()
    (root / "roles/cleanup").symlink_to(f"../{FLEET}/roles/cleanup")
    write_wheel(root / "dist", "gpuval_tiny_controller")
    write_wheel(root / "dist", "gpuval_tiny_node")
    put(root / "requirements/controller.txt", b"gpuval-tiny-controller==1.0\n")
    for name in ("node", "gangs", "uv"):
        put(root / f"requirements/{name}.txt", b"gpuval-tiny-node==1.0\n")
    lock(root, "gpuval_tiny_controller")
    state = root / ".gpuval"
    digest = put(state / MODEL / "model.safetensors", os.urandom(300_000))
    other = put(state / MODEL / "config.json", b"{}")
    put(state / MODEL / "SHA256SUMS", f"{other}  config.json\n{digest}  model.safetensors\n".encode())
    put((state / MODEL).with_suffix(".json"), b'{"source": "tiny", "revision": "", "origin": "test"}')
    sha256 = put(state / "store/data/gpuval" / IMAGE, os.urandom(100_000))
    put(state / "images.json", catalogue(image("gpuval/training:1", sha256)))
    return root


def image(reference, sha256):
    return {
        "name": "training",
        "reference": reference,
        "id": f"sha256:{sha256}",
        "sha256": sha256,
        "bytes": 100_000,
        "key": IMAGE,
        "architecture": "amd64",
    }


def catalogue(*images):
    document = {"schema": "gpuval.images/1", "images": {entry["reference"]: entry for entry in images}}
    schemas.validate("images", document, what="images.json")
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def bundle(origin, tmp_path_factory):
    path = tmp_path_factory.mktemp("carried") / "gpuval-bundle.tar"
    told = tool(origin, "create", "--output", path, PIP_FIND_LINKS=str(origin / "dist"))
    assert "make setup BUNDLE=../gpuval-bundle.tar SHA256=" in told
    return path


@pytest.fixture
def site(bundle, tmp_path):
    """A site without internet: the checkout that the bundle carries, and nothing else."""
    subprocess.run(["tar", "-xf", str(bundle), "-C", str(tmp_path), "gpuval"], check=True, timeout=60)
    return tmp_path / "gpuval"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_bundle_than_its_maker_gave_is_refused(bundle, site):
    """A bundle that was made anew has a manifest that fits it: only its digest, carried another way, tells."""
    digest, name = bundle.with_name(f"{bundle.name}.sha256").read_text().split()
    assert (digest, name) == (hashlib.sha256(bundle.read_bytes()).hexdigest(), bundle.name)
    told = tool(site, "install", bundle, "--sha256", "0" * 64, code=1)
    assert f"is not the bundle with SHA-256 {'0' * 64}" in told
    assert not (site / ".gpuval").exists()
    assert f"SHA-256 {digest}" in tool(site, "verify", bundle)
    told = tool(site, "install", bundle, "--sha256", digest.upper(), "--without", "wheels", PIP_FIND_LINKS="")
    assert "is not compared" not in told
    assert "is not compared with its maker's digest: SHA256=" in tool(site, "install", bundle, "--without", "wheels")


def test_there_and_back_without_any_index(origin, bundle, site):
    told = tool(site, "install", bundle, PIP_FIND_LINKS="")
    assert "SHA-256 of each as in the manifest" in told
    assert contents(site / ".gpuval/store") == contents(origin / ".gpuval/store")
    assert json.loads((site / ".gpuval/images.json").read_text()) == json.loads(
        (origin / ".gpuval/images.json").read_text()
    )
    for environment, module in ((".venv", "gpuval_tiny_controller"), (".venv-node", "gpuval_tiny_node")):
        code = f"import {module}; print({module}.VALUE)"
        done = subprocess.run(
            [site / environment / "bin/python", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == module
        assert (site / environment / ".ready").exists()
    assert (site / "roles/cleanup").readlink() == (origin / "roles/cleanup").readlink()
    assert not list((site / ".gpuval").glob("unbundle-*")), "nothing of the reading stays"
    assert "set up from" in tool(site, "install", bundle, "--without", "wheels"), "and once more"


def test_the_manifest_names_every_file_with_its_digest(bundle):
    with tarfile.open(bundle) as tar:
        members = tar.getmembers()
        assert members[0].name == "bundle.json"
        assert members[-1].name == "manifest.json"
        manifest = json.load(tar.extractfile(members[-1]))
        for entry in manifest["entries"]:
            if "link" not in entry:
                data = tar.extractfile(entry["path"]).read()
                assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
        assert {entry["path"] for entry in manifest["entries"]} == {info.name for info in members[1:-1]}
    assert manifest["packages"] == {"gpuval-tiny-controller": "1.0", "gpuval-tiny-node": "1.0"}
    assert manifest["models"] == ["models--gpuval--tiny"]
    assert manifest["images"] == ["training-0123456789ab.tar"]
    assert manifest["python"]["version"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert not [info.name for info in members if ".gpuval" in info.name or "store.json" in info.name], "no keys travel"


def damaged(bundle, path, inside):
    """A copy with one byte flipped in the middle of a file."""
    data = bytearray(bundle.read_bytes())
    with tarfile.open(bundle) as tar:
        info = tar.getmember(inside)
    data[info.offset_data + info.size // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "inside",
    [
        "store/models/models--gpuval--tiny/model.safetensors",
        f"store/{IMAGE}",
        "wheels/gpuval_tiny_node-1.0-py3-none-any.whl",
    ],
)
def test_a_flipped_byte_is_found_and_nothing_is_put_in_place(bundle, site, tmp_path, inside):
    bad = damaged(bundle, tmp_path / "bad.tar", inside)
    told = tool(site, "install", bad, code=1)
    assert f"not as the manifest says: {inside}" in told
    assert not contents(site / ".gpuval")
    assert not (site / ".venv").exists()
    assert inside in tool(site, "verify", bad, code=1)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_bundle_that_was_cut_off_is_refused(bundle, site, tmp_path, kept):
    data = bundle.read_bytes()
    (tmp_path / "short.tar").write_bytes(data[: int(len(data) * kept)])
    told = tool(site, "install", tmp_path / "short.tar", code=1)
    assert "cut off" in told or "damaged" in told
    assert not contents(site / ".gpuval")


def test_parts_can_be_left_out_on_both_sides(origin, bundle, site, tmp_path):
    path = tmp_path / "small.tar"
    tool(origin, "create", "--output", path, "--without", "models", "--without", "wheels", PIP_FIND_LINKS="")
    with tarfile.open(path) as tar:
        tops = {info.name.split("/")[0] for info in tar}
        assert not [info.name for info in tar if "models" in info.name]
    assert tops == {"bundle.json", "gpuval", "store", "images.json", "manifest.json"}
    tool(site, "install", bundle, "--without", "wheels", "--without", "images")
    assert (site / ".gpuval" / MODEL).is_dir()
    assert not (site / ".venv").exists()
    assert not (site / ".gpuval/images.json").exists()


def test_a_damaged_model_is_not_carried(origin, tmp_path):
    path = origin / ".gpuval" / MODEL / "config.json"
    before = path.read_bytes()
    path.write_bytes(b"[]")
    try:
        told = tool(origin, "create", "--output", tmp_path / "b.tar", "--without", "wheels", code=1)
    finally:
        path.write_bytes(before)
    assert "config.json is missing or not what its SHA256SUMS says" in told
    assert not list(tmp_path.glob("b.tar*")), "no half of a bundle is left"


def test_images_of_before_stay_in_the_catalogue(bundle, site):
    put(site / ".gpuval/images.json", catalogue(image("other:1", "0" * 64), image("gpuval/training:1", "1" * 64)))
    tool(site, "install", bundle, "--without", "wheels")
    document = json.loads((site / ".gpuval/images.json").read_text())
    schemas.validate("images", document, what="images.json")
    assert document["images"]["other:1"]["sha256"] == "0" * 64
    found = hashlib.sha256((site / ".gpuval/store/data/gpuval" / IMAGE).read_bytes()).hexdigest()
    assert document["images"]["gpuval/training:1"]["sha256"] == found


def test_a_damaged_or_missing_archive_is_not_carried(origin, tmp_path):
    path = origin / ".gpuval/store/data/gpuval" / IMAGE
    before = path.read_bytes()
    try:
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        told = tool(origin, "create", "--output", tmp_path / "b.tar", "--without", "wheels", code=1)
        assert f"{IMAGE} is not what images.json says" in told
        path.unlink()
        told = tool(origin, "create", "--output", tmp_path / "b.tar", "--without", "wheels", code=1)
        assert f"{IMAGE} is missing" in told
    finally:
        path.write_bytes(before)
    assert not list(tmp_path.glob("b.tar*"))


def rewritten(bundle, path, change):
    """A copy whose members went through `change(info, data)`; None leaves one out."""
    with tarfile.open(bundle) as source, tarfile.open(path, "w") as target:
        for info in source:
            stream = source.extractfile(info) if info.isreg() else None
            changed = change(info, stream.read() if stream else b"")
            if changed is None:
                continue
            info.size = len(changed) if info.isreg() else 0
            target.addfile(info, io.BytesIO(changed))
    return path


def head_with(**fields):
    def change(info, data):
        return json.dumps({**json.loads(data), **fields}).encode() if info.name == "bundle.json" else data

    return change


def test_wheels_for_another_python_are_refused_at_once(bundle, site, tmp_path):
    other = {"implementation": "CPython", "version": "3.99", "machine": "aarch64", "libc": "glibc"}
    bad = rewritten(bundle, tmp_path / "other.tar", head_with(python=other))
    told = tool(site, "install", bad, code=1)
    assert "the wheels are for CPython 3.99 on aarch64" in told
    assert "PYTHON=python3.99" in told
    assert not (site / ".gpuval").exists()


def test_wheels_for_a_newer_system_are_refused_at_once(bundle, site, tmp_path):
    told = tool(site, "install", rewritten(bundle, tmp_path / "newer.tar", head_with(glibc=999)), code=1)
    assert "the wheels need glibc 2.999" in told


def test_too_little_space_is_reported_before_anything_is_read(bundle, site, tmp_path):
    bad = rewritten(bundle, tmp_path / "huge.tar", head_with(bytes=10**18))
    assert "are free" in tool(site, "install", bad, code=1)


def test_a_bundle_that_leads_out_of_its_place_is_refused(bundle, site, tmp_path):
    def change(info, data):
        if info.name.endswith("config.json"):
            info.name = "store/models/../../../../outside"
        return data

    bad = rewritten(bundle, tmp_path / "evil.tar", change)
    assert "leads out of it" in tool(site, "install", bad, code=1)
    assert not list(tmp_path.rglob("outside"))


def test_a_file_that_the_manifest_does_not_know_is_refused(bundle, site, tmp_path):
    def change(info, data):
        if info.name == "manifest.json":
            document = json.loads(data)
            document["entries"] = [one for one in document["entries"] if not one["path"].endswith(".whl")]
            return json.dumps(document).encode()
        return data

    bad = rewritten(bundle, tmp_path / "more.tar", change)
    assert "not as the manifest says: wheels/" in tool(site, "install", bad, code=1)


def test_a_package_that_is_not_the_locked_one_is_not_carried(origin, tmp_path):
    locked = (origin / "requirements/locked/controller.txt").read_bytes()
    try:
        lock(origin, "gpuval_tiny_controller", "0" * 64)
        more = {"code": 1, "PIP_FIND_LINKS": str(origin / "dist")}
        told = tool(origin, "create", "--output", tmp_path / "b.tar", "--state-dir", tmp_path / "state", **more)
    finally:
        put(origin / "requirements/locked/controller.txt", locked)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in told
    assert not list(tmp_path.glob("b.tar*"))


def test_a_missing_model_or_package_is_reported_with_a_remedy(origin, tmp_path):
    told = tool(origin, "create", "--output", tmp_path / "b.tar", "--without", "wheels", "--model", "models--x", code=1)
    assert "has no models--x: `make models`" in told
    told = tool(origin, "create", "--output", tmp_path / "b.tar", "--state-dir", tmp_path / "none", code=1)
    assert "pip could not bring what requirements/controller.txt names" in told
    assert not list(tmp_path.glob("b.tar*"))
