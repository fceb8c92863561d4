#!/usr/bin/env python3
"""Carry gpuval to a site without internet: everything it needs in one tar, and the setting up from it.

    python3 tools/bundle.py create --output dist/gpuval-bundle.tar
    python3 tools/bundle.py install dist/gpuval-bundle.tar
    python3 tools/bundle.py verify dist/gpuval-bundle.tar

Standard library only, and one file: on the other side it runs before any environment exists.

The tar has, in this order: `bundle.json` (what it is and for which Python), `gpuval/` (the source tree, so that
`tar -xf BUNDLE gpuval` is the way in), `wheels/`, `store/` (models and image archives, with the keys that they have in
the bucket), `images.json`, and last `manifest.json` with the SHA-256 of every file. A bundle that was
cut off has no manifest. Nothing is put in its place before the whole tar was read and every file of it was as the
manifest says.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

SCHEMA = "gpuval.bundle/1"
HEAD, MANIFEST = "bundle.json", "manifest.json"
SOURCE, WHEELS, STORE, IMAGES = "gpuval", "wheels", "store", "images.json"
PARTS = ("source", "wheels", "models", "images")
REQUIREMENTS = ("requirements/controller.txt", "requirements/node.txt", "requirements/gangs.txt", "requirements/uv.txt")
#: The environments that `make setup` makes, each from one file of requirements.
ENVIRONMENTS = {".venv": "requirements/controller.txt", ".venv-node": "requirements/node.txt"}
COLLECTION = "collections/ansible_collections/gpuval/fleet"
#: Never a part of the source tree where git does not say what is.
NOT_SOURCE = {".git", ".venv", ".venv-node", ".gpuval", "results", "dist", "__pycache__", ".ansible"}
CHUNK = 4 * 1024 * 1024
#: An unpacked environment takes up to about this many times its wheels.
UNPACKED = 4
SPARE_BYTES = 64 * 1024 * 1024
PROGRESS_SECONDS = 5.0
PIP_SECONDS = 3600
SUMS = "SHA256SUMS"
IMAGES_SCHEMA = "gpuval.images/1"


class BundleError(Exception):
    """The bundle cannot be made or used; the message says what to do."""


def main(arguments=None):
    options = parser().parse_args(arguments)
    try:
        options.work(options)
    except BundleError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bundle: interrupted; run it again", file=sys.stderr)
        return 130
    return 0


def parser():
    top = argparse.ArgumentParser(description="Carry gpuval to a site without internet.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    common.add_argument("--state-dir", type=Path, default=None, help="default: .gpuval in the checkout")
    common.add_argument("--bucket", default="gpuval", help="bucket of the embedded store (gpuval_bucket)")
    commands = top.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", parents=[common], help="make a bundle of this checkout")
    create.add_argument("--output", type=Path, default=Path("dist/gpuval-bundle.tar"))
    create.add_argument(
        "--store", type=Path, default=None, help="folder with models/ and images/; default: the store's"
    )
    create.add_argument("--model", action="append", default=[], help="folder below models/; default: all")
    create.add_argument("--requirements", action="append", default=[], help=f"default: {' '.join(REQUIREMENTS)}")
    create.add_argument("--python", default=sys.executable, help="the Python that the other side has")
    create.set_defaults(work=create_bundle)
    install = commands.add_parser("install", parents=[common], help="set this checkout up from a bundle")
    install.add_argument("bundle", type=Path)
    install.add_argument("--python", default=sys.executable, help="makes the environments")
    install.add_argument("--sha256", default="", help="of the bundle, as its maker gives it: another one is refused")
    install.set_defaults(work=install_bundle)
    verify = commands.add_parser("verify", parents=[common], help="read a bundle and hold it against its manifest")
    verify.add_argument("bundle", type=Path)
    verify.set_defaults(work=verify_bundle)
    for command in (create, install):
        command.add_argument("--without", action="append", default=[], choices=PARTS, help="leave a part out")
    return top


# Making one ----------------------------------------------------------------------------------------------------------


def create_bundle(options):
    started = time.monotonic()
    root = options.root.resolve()
    output = options.output if options.output.is_absolute() else root / options.output
    parts = [part for part in PARTS if part not in options.without]
    state = state_directory(options)
    store = options.store.resolve() if options.store else state / "store" / "data" / options.bucket
    files = []
    if "source" in parts:
        files += [(f"{SOURCE}/{name}", path) for name, path in source_files(root)]
    if "wheels" in parts:
        folder = state / "bundle" / "wheels"
        build_wheels(options.python, root, options.requirements or REQUIREMENTS, folder)
        files += [(f"{WHEELS}/{path.name}", path) for path in sorted(folder.glob("*.whl"))]
    if "models" in parts:
        files += model_files(store, options.model)
    known = None
    if "images" in parts:
        known, found = image_files(state / IMAGES, store)
        files += found
    with tempfile.TemporaryDirectory(prefix="gpuval-bundle-") as scratch:
        if known:
            path = Path(scratch, IMAGES)
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            files.append((IMAGES, path))
        head = {
            "schema": SCHEMA,
            "created_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "gpuval": {"version": collection_version(root), **commit(root)},
            "parts": parts,
            "python": python_of(options.python) if "wheels" in parts else None,
            "glibc": oldest_glibc([name for name, _path in files]),
            "packages": packages([name for name, _path in files]),
            "models": sorted({name.split("/")[2] for name, _path in files if is_model_file(name)}),
            "images": sorted(PurePosixPath(name).name for name, _path in files if name.startswith(f"{STORE}/images/")),
            "files": len(files),
            "bytes": sum(path.lstat().st_size for _name, path in files),
            "wheel_bytes": sum(path.stat().st_size for name, path in files if name.startswith(f"{WHEELS}/")),
        }
        digest = write(output, head, files, known)
        carried = by_part(files)
    seconds = time.monotonic() - started
    say(f"{output}: {len(files)} files, {bytes_text(output.stat().st_size)}, {seconds:.0f} s")
    for part, (count, total) in carried.items():
        say(f"  {part:12} {count:6} files  {bytes_text(total)}")
    say(f"SHA-256: {digest}, also in {output.name}.sha256: send it apart from the bundle")
    say(
        f"on the other side: sha256sum -c {output.name}.sha256 && tar -xf {output.name} {SOURCE} && cd {SOURCE} && "
        f"make setup BUNDLE=../{output.name} SHA256={digest}"
    )


def write(output, head, files, known):
    """Write the tar beside its place and move it there when it is whole. Every file is read once.

    Returns the tar's SHA-256, which is also put beside it as sha256sum reads it.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    need_space(output.parent, head["bytes"] + 2048 * (len(files) + 8), "the bundle")
    draft = output.with_name(output.name + ".part")
    entries, progress = [], Progress("written", head["bytes"])
    try:
        with draft.open("wb") as stream:
            hashing = Hashing(stream)
            tar = tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed below
            add_text(tar, HEAD, head)
            sums = {}
            for name, path in files:
                entries.append(add_file(tar, name, path, progress))
                if is_model_file(name) and PurePosixPath(name).name == SUMS:
                    sums[str(PurePosixPath(name).parent)] = path
            check_sums(sums, entries)
            check_images(known, entries)
            add_text(tar, MANIFEST, {**head, "entries": entries})
            tar.close()
            stream.flush()
            os.fsync(stream.fileno())
        digest = hashing.digest.hexdigest()
        output.with_name(f"{output.name}.sha256").write_text(f"{digest}  {output.name}\n", encoding="utf-8")
        draft.replace(output)
    except OSError as error:
        raise BundleError(f"{error.filename or output}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return digest


def add_file(tar, name, path, progress):
    if path.is_symlink() and name.startswith(f"{SOURCE}/"):
        return add_link(tar, name, path)
    status = path.stat()
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o755 if status.st_mode & 0o100 else 0o644
    with path.open("rb") as source:
        reader = Digesting(source, progress)
        try:
            tar.addfile(info, reader)
        except OSError as error:
            if "unexpected end of data" in str(error):
                raise BundleError(f"{path} shrank while it was read: make the bundle when nothing is at work") from None
            raise
    return {"path": name, "bytes": info.size, "sha256": reader.hexdigest(), "mode": f"{info.mode:o}"}


def add_link(tar, name, path):
    """A link of the source tree, as it is; where it leads is in the tree too."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime = tarfile.SYMTYPE, str(path.readlink()), int(path.lstat().st_mtime)
    if Path(info.linkname).is_absolute():
        raise BundleError(f"{path} is a link to an absolute path, which leads elsewhere on the other side")
    tar.addfile(info)
    return {"path": name, "link": info.linkname}


def add_text(tar, name, document):
    data = (json.dumps(document, indent=1) + "\n").encode()
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o644
    tar.addfile(info, io.BytesIO(data))


def check_images(known, entries):
    """An archive that is damaged here must not be carried anywhere."""
    found = {entry["path"]: entry.get("sha256") for entry in entries}
    for image in known["images"].values() if known else ():
        if image["sha256"] and found[f"{STORE}/{image['key']}"] != image["sha256"]:
            raise BundleError(f"{image['key']} is not what images.json says: `make build` makes it again")


def check_sums(sums, entries):
    """A model that is damaged here must not be carried anywhere."""
    found = {entry["path"]: entry.get("sha256") for entry in entries}
    for folder, path in sums.items():
        for line in path.read_text(encoding="utf-8").splitlines():
            digest, _space, name = line.partition("  ")
            if found.get(f"{folder}/{name}") != digest:
                raise BundleError(
                    f"{folder}/{name} is missing or not what its {SUMS} says: "
                    "bring the model into the store again (make models ARGS='-e model_preload_force=true')"
                )


def source_files(root):
    """What git tracks, as it lies in the working tree; without git everything but what is made.

    What lies about untracked may be a key or a password: it is not carried.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached"],
            capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    except (OSError, subprocess.SubprocessError):
        names = [
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if not NOT_SOURCE.intersection(path.relative_to(root).parts)
        ]
    for name in sorted(set(names)):
        path = root / name
        if path.is_symlink() or path.is_file():
            yield name, path


def model_files(store, wanted):
    """Every whole model of the store, or the wanted ones, with the record of where each came from."""
    models = store / "models"
    have = sorted(path.parent.name for path in models.glob(f"*/{SUMS}"))
    lacking = sorted(set(wanted) - set(have))
    if lacking or not have:
        raise BundleError(
            f"{models} has no {', '.join(lacking) or 'model'}: `make models` brings the model of the inventory there; "
            "--without models leaves models out"
        )
    found = []
    for folder in wanted or have:
        found += [(f"{STORE}/models/{path.relative_to(models).as_posix()}", path) for path in below(models / folder)]
        record = models / f"{folder}.json"
        if record.is_file():
            found.append((f"{STORE}/models/{record.name}", record))
    return found


def image_files(catalogue, store):
    """The catalogue of images, and the archives that it names, as far as the store has them."""
    try:
        known = json.loads(catalogue.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, []
    except ValueError as error:
        raise BundleError(f"{catalogue} is damaged ({error}): `make build` writes it again") from error
    if known.get("schema") != IMAGES_SCHEMA:
        raise BundleError(f"{catalogue} is of another version ({known.get('schema')}): `make build` writes it again")
    found = {}
    for entry in known["images"].values():
        if not entry["sha256"]:  # each node built its own: there is nothing to carry
            continue
        path, cached = store / entry["key"], catalogue.parent / "images" / f"{entry['sha256']}.tar"
        path = path if path.is_file() else cached
        if not path.is_file():
            raise BundleError(
                f"{store / entry['key']} is missing, though {catalogue} names it: `make build`, or --without images"
            )
        found[f"{STORE}/{entry['key']}"] = path
        beside = (store / entry["key"]).with_suffix(".json")
        if beside.is_file():
            found[f"{STORE}/{PurePosixPath(entry['key']).with_suffix('.json')}"] = beside
    return known, sorted(found.items())


def build_wheels(python, root, requirements, folder):
    """All packages as wheels for this Python and platform; what lies there from the last time is not fetched again.

    What is locked comes by its hash; the rest (PyTorch's build is this machine's choice) in the locked versions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="wheels-", dir=folder.parent))
    pip = [python, "-m", "pip", "wheel", "--quiet", "--find-links", str(folder), "--wheel-dir"]
    try:
        for name in requirements:
            say(f"wheels of {name}")
            failure = f"pip could not bring what {name} names"
            locked = (root / name).parent / "locked" / Path(name).name
            others = tempfile.mkdtemp(dir=fresh)
            versions = Path(others, "versions.txt")
            if locked.is_file():
                run([*pip, str(fresh), "--no-deps", "--require-hashes", "-r", str(locked)], root, failure)
                found = re.findall(
                    r"^([A-Za-z0-9._-]+==[^\s\\]+(?: ;[^\\\n]*)?)", locked.read_text("utf-8"), re.MULTILINE
                )
                versions.write_text("\n".join(found), encoding="utf-8")
            constraints = ["-c", str(root / REQUIREMENTS[1])]  # DeepSpeed would bring the newest PyTorch
            constraints += ["-c", str(versions)] if locked.is_file() else []
            run([*pip, others, "--find-links", str(fresh), *constraints, "-r", str(root / name)], root, failure)
            for wheel in Path(others).glob("*.whl"):
                if not (fresh / wheel.name).exists():  # else it came by its hash
                    wheel.rename(fresh / wheel.name)
            shutil.rmtree(others)
        shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


# Using one -----------------------------------------------------------------------------------------------------------


def sha256_of(path):
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_digest(path, expected):
    """Damage shows without this; a bundle replaced on its way does not, since its manifest was replaced too."""
    if not expected:
        say(f"{path.name} is not compared with its maker's digest: SHA256= does")
    elif not path.is_file() or sha256_of(path) != expected.lower():
        raise BundleError(f"{path} is not the bundle with SHA-256 {expected}: get it again. Nothing was put in place")


def verify_bundle(options):
    with opened(options.bundle) as tar:
        head = read_head(tar)
        seen = {}
        manifest = read_members(tar, Progress("verified", head["bytes"]), lambda _name: None, seen)
        check_manifest(manifest, seen)
    say(f"{options.bundle}: SHA-256 {sha256_of(options.bundle)}")
    say(f"{options.bundle}: whole, {len(seen)} files, {bytes_text(head['bytes'])}, gpuval {head['gpuval']['version']}")


def install_bundle(options):
    started = time.monotonic()
    root, state = options.root.resolve(), state_directory(options)
    check_digest(options.bundle, options.sha256)
    with opened(options.bundle) as tar:
        head = read_head(tar)
        parts = [part for part in head["parts"] if part not in options.without]
        check_fits(head, parts, root, options.python)
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        unpacked = UNPACKED * head["wheel_bytes"] if "wheels" in parts else 0
        need_space(state, head["bytes"] + unpacked, "setting up")
        staging = Path(tempfile.mkdtemp(prefix="unbundle-", dir=state))
        try:
            seen = {}
            manifest = read_members(tar, Progress("read", head["bytes"]), place_in(staging, parts), seen)
            check_manifest(manifest, seen)
            say(f"verified: {len(seen)} files, SHA-256 of each as in the manifest")
            put_in_place(staging, state, options.bucket, parts)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    if "wheels" in parts:
        for environment, requirements in ENVIRONMENTS.items():
            make_environment(options.python, root, environment, requirements, state / "bundle" / "wheels")
    say(f"set up from {options.bundle.name} in {time.monotonic() - started:.0f} s, without any network")


@contextlib.contextmanager
def opened(path):
    if not path.is_file():
        raise BundleError(f"{path} does not exist: give the path of a bundle (BUNDLE=)")
    try:
        with tarfile.open(path, mode="r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise BundleError(f"{path} is damaged or no bundle ({error}): copy it here again") from error


def read_head(tar):
    first = tar.next()
    if first is None or first.name != HEAD:
        raise BundleError(f"{tar.name} is no bundle of gpuval: its first file is not {HEAD}")
    head = parsed(tar.extractfile(first).read(), HEAD)
    if head.get("schema") != SCHEMA:
        raise BundleError(
            f"{tar.name} is a bundle of another version ({head.get('schema')}): use the tool that it carries"
        )
    return head


def parsed(data, name):
    try:
        return json.loads(data)
    except ValueError as error:
        raise BundleError(f"{name} in the bundle is damaged ({error}): copy the bundle here again") from error


def read_members(tar, progress, place, seen):
    """Read the rest of the tar once: `place` gives the path to keep a file at, or None. Returns the manifest."""
    while (info := tar.next()) is not None:
        name = safe_name(info)
        if name == MANIFEST:
            return parsed(tar.extractfile(info).read(), MANIFEST)
        if name in seen:
            raise BundleError(f"{name} is in the bundle twice: make it again")
        if info.issym():
            seen[name] = {"path": name, "link": info.linkname}
            continue
        if not info.isreg():
            raise BundleError(f"{name} in the bundle is neither file nor link: make it again")
        seen[name] = keep(tar.extractfile(info), place(name), info, progress)
    raise BundleError(f"{tar.name} is cut off: it has no {MANIFEST}. Copy it here again")


def keep(source, target, info, progress):
    reader = Digesting(source, progress)
    if target is None:
        while reader.read(CHUNK):
            pass
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as stream:
                shutil.copyfileobj(reader, stream, CHUNK)
        except OSError as error:
            raise BundleError(f"{target} cannot be written: {error.strerror}. Free space and run again") from error
        target.chmod(0o755 if info.mode & stat.S_IXUSR else 0o644)
    return {"path": info.name, "bytes": reader.count, "sha256": reader.hexdigest(), "mode": f"{info.mode:o}"}


def safe_name(info):
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise BundleError(f"{info.name!r} in the bundle leads out of it: it was not made by this tool")
    return info.name


def check_manifest(manifest, seen):
    entries = {entry["path"]: entry for entry in manifest["entries"]}
    wrong = sorted(name for name in entries.keys() | seen.keys() if entries.get(name) != seen.get(name))
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise BundleError(
            f"not as the manifest says: {', '.join(wrong[:5])}{more}. The bundle was damaged on its way: copy it here "
            "again. Nothing was put in place"
        )


def check_fits(head, parts, root, python):
    """That this is the machine the bundle was made for, before gigabytes are read."""
    own, carried = collection_version(root), head["gpuval"]["version"]
    if own != carried:
        raise BundleError(
            f"this checkout is gpuval {own}, the bundle carries {carried}: take the checkout of the bundle "
            f"(tar -xf BUNDLE {SOURCE})"
        )
    if "wheels" not in parts:
        return
    here, there = python_of(python), head["python"]
    for what in ("implementation", "version", "machine", "libc"):
        if here[what] != there[what]:
            raise BundleError(
                f"the wheels are for {python_text(there)}, {python} is {python_text(here)}: name a fitting one "
                f"(make setup BUNDLE= PYTHON=python{there['version']}), or make the bundle with that Python"
            )
    glibc = re.fullmatch(r"2\.(\d+)", here["libc_version"])
    if head["glibc"] and glibc and int(glibc[1]) < head["glibc"]:
        raise BundleError(
            f"the wheels need glibc 2.{head['glibc']}, this machine has {here['libc_version']}: make the bundle on "
            "a machine with the same distribution as this one"
        )


def oldest_glibc(names):
    """The oldest glibc (2.x, as x) on which all of these wheels run; None when none of them asks for one."""
    needed = [
        min(int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", name))
        for name in names
        if name.startswith(f"{WHEELS}/") and "manylinux_2_" in name
    ]
    return max(needed, default=None)


def python_text(found):
    return f"{found['implementation']} {found['version']} on {found['machine']} with {found['libc']}"


def place_in(staging, parts):
    """Where a file of the bundle is kept until all of it was read; the source tree is here already."""
    wanted = {WHEELS: "wheels", IMAGES: "images"}

    def place(name):
        top = name.split("/")[0]
        part = name.split("/")[1] if top == STORE else wanted.get(top)
        return staging / name if part in parts else None

    return place


def put_in_place(staging, state, bucket, parts):
    """Renames alone: everything lies on the file system where it is to be."""
    if "wheels" in parts:
        replace_folder(staging / WHEELS, state / "bundle" / "wheels")
    (state / "store").mkdir(mode=0o700, parents=True, exist_ok=True)  # the store keeps its keys there
    data = state / "store" / "data" / bucket
    for path in sorted((staging / STORE / "models").glob("*")):
        target = data / "models" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            replace_folder(path, target)
        else:
            path.replace(target)
        say(f"model: {target}")
    for path in sorted((staging / STORE / "images").glob("*")):
        target = data / "images" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        say(f"image: {target}")
    if (staging / IMAGES).is_file():
        merge_images(staging / IMAGES, state / IMAGES)


def merge_images(brought, catalogue):
    """What the bundle brought wins over an image of the same reference; the others stay."""
    new = json.loads(brought.read_text(encoding="utf-8"))
    with contextlib.suppress(FileNotFoundError, ValueError):
        old = json.loads(catalogue.read_text(encoding="utf-8"))
        if old.get("schema") == new["schema"]:
            new["images"] = {**old["images"], **new["images"]}
    draft = catalogue.with_name(catalogue.name + ".new")
    draft.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    draft.replace(catalogue)


def replace_folder(source, target):
    """Put `source` where `target` is; a folder that was there goes only when the new one stands."""
    target.parent.mkdir(parents=True, exist_ok=True)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def make_environment(python, root, name, requirements, wheels):
    """What `make setup` makes, from the wheels alone; the mark that it is ready comes last."""
    path = root / name
    say(f"{name}: {requirements}")
    (path / ".ready").unlink(missing_ok=True)
    run(
        [python, "-m", "venv", str(path)],
        root,
        f"{name} could not be made (on Debian and Ubuntu: apt install python3-venv)",
    )
    pip = [str(path / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--find-links"]
    failure = f"{requirements} could not be installed from the bundle's wheels"
    run([*pip, str(wheels), "--requirement", str(root / requirements)], root, failure, offline=True)
    (path / ".ready").touch()


# Shared --------------------------------------------------------------------------------------------------------------


class Digesting:
    """A file that is read through: it counts and hashes what passes."""

    def __init__(self, stream, progress):
        self.stream, self.progress = stream, progress
        self.digest, self.count = hashlib.sha256(), 0

    def read(self, size=-1):
        data = self.stream.read(size)
        self.digest.update(data)
        self.count += len(data)
        self.progress.add(len(data))
        return data

    def hexdigest(self):
        return self.digest.hexdigest()


class Hashing:
    """A file that is written through: it hashes what passes."""

    def __init__(self, stream):
        self.stream, self.digest = stream, hashlib.sha256()

    def write(self, data):
        self.digest.update(data)
        return self.stream.write(data)


class Progress:
    """A line every few seconds: how much of how much, how fast, how long still."""

    def __init__(self, what, total):
        self.what, self.total, self.done = what, total, 0
        self.begun = self.spoke = time.monotonic()

    def add(self, count):
        self.done += count
        now = time.monotonic()
        if now - self.spoke < PROGRESS_SECONDS:
            return
        self.spoke = now
        speed = self.done / (now - self.begun)
        left = max(0.0, self.total - self.done) / speed if speed else 0.0
        say(
            f"{self.what} {bytes_text(self.done)} of {bytes_text(self.total)}, {bytes_text(speed)}/s, {left:.0f} s left"
        )


def say(line):
    print(line, flush=True)


def state_directory(options):
    return (options.state_dir or options.root / ".gpuval").resolve()


def collection_version(root):
    try:
        text = (root / COLLECTION / "galaxy.yml").read_text(encoding="utf-8")
    except OSError as error:
        raise BundleError(f"{root} is no checkout of gpuval: {error.strerror}") from error
    return re.search(r"^version: *(\S+)", text, re.MULTILINE)[1]


def commit(root):
    """Which source this is; unknown without git."""

    def git(*words):
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "changed": None}


def python_of(python):
    """What wheels depend on, of that interpreter."""
    program = (
        "import json, platform, sys; print(json.dumps({'implementation': platform.python_implementation(), "
        "'version': '%d.%d' % sys.version_info[:2], 'machine': platform.machine(), 'libc': platform.libc_ver()[0], "
        "'libc_version': platform.libc_ver()[1]}))"
    )
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BundleError(f"{python} cannot be run ({error}): name a Python with --python (make: PYTHON=)") from error
    found = json.loads(done.stdout)
    return {**found, "libc": found["libc"] or platform.system()}


def packages(names):
    """Version by package, from the names of the wheels."""
    found = {}
    for name in names:
        if name.startswith(f"{WHEELS}/"):
            package, version = PurePosixPath(name).name.split("-")[:2]
            found[package.replace("_", "-").lower()] = version
    return found


def is_model_file(name):
    return name.startswith(f"{STORE}/models/") and name.count("/") > 2


def below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def by_part(files):
    found = {}
    for name, path in files:
        top = name.split("/")[1] if name.startswith(f"{STORE}/") else name.split("/")[0]
        count, total = found.get(top, (0, 0))
        found[top] = (count + 1, total + path.lstat().st_size)
    return found


def need_space(folder, needed, what):
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise BundleError(
            f"{what} needs {bytes_text(needed + SPARE_BYTES)} in {folder}, {bytes_text(free)} are free: free space, "
            "or leave a part out with --without"
        )


def run(command, root, failure, *, offline=False):
    """Run a command with its output on the terminal; a site's settings for pip are in force unless `offline`."""
    environment = {key: value for key, value in os.environ.items() if not (offline and key.startswith("PIP_"))}
    if offline:
        environment["PIP_CONFIG_FILE"] = os.devnull
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    try:
        subprocess.run(command, cwd=root, env=environment, check=True, timeout=PIP_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{failure}: not within {PIP_SECONDS} s") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise BundleError(f"{failure}: see above ({error})") from error


def bytes_text(count):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return ""


if __name__ == "__main__":
    sys.exit(main())
