"""A small image made of this machine's own Python and shell: needs no registry, no network, no debootstrap."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

STEP_SECONDS = 300
PROGRAMS = ("sh", "cat", "chmod", "env", "id", "ls", "mkdir", "sleep", "touch")
LEFT_OUT = {
    "test",
    "lib2to3",
    "tests",
    "idlelib",
    "tkinter",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "ensurepip",
}
DESCRIBE = "import json, sys, sysconfig; print(json.dumps([sys.executable, sysconfig.get_path('stdlib')]))"


def import_image(engine, reference, archive, *options):
    """Give an engine an image whose only layer is a tar file."""
    subprocess.run(
        [engine, "import", *options, str(archive), reference], check=True, capture_output=True, timeout=STEP_SECONDS
    )


def write_root(path):
    """Write the file system of the image as a tar file: `python3` and a shell with what they need."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    described = subprocess.run([system, "-c", DESCRIBE], check=True, capture_output=True, timeout=60, text=True)
    python, library = json.loads(described.stdout)
    programs = {f"usr/bin/{name}": Path(shutil.which(name, path="/usr/bin:/bin")) for name in PROGRAMS}
    programs["usr/bin/python3"] = Path(python)
    files = {Path(library) / entry for entry in _below(Path(library))}
    binaries = [*programs.values(), *(file for file in files if file.suffix == ".so")]
    with tarfile.open(path, "w", dereference=True) as tar:
        for name in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        _text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        for name, source in programs.items():
            tar.add(source.resolve(), name)
        tar.add(programs["usr/bin/sh"].resolve(), "bin/sh")
        for source in sorted({*files, *_libraries(binaries)}):
            tar.add(source, str(source).lstrip("/"), recursive=False)


def write_foreign_root(path):
    """Write an image whose programs are for another machine: ELF headers that no kernel here takes."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\xff\x01\x00\x00\x00" + bytes(40)
    with tarfile.open(path, "w") as tar:
        for name in ("usr/bin/python3", "bin/sh"):
            _text(tar, name, header.decode("latin-1"), 0o755)


def write_archive(path, reference, layer, architecture):
    """Write an archive that `docker load` and `podman load` take: one layer, for any architecture by its own word."""
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "test"}],
    }
    text = json.dumps(config)
    name = f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    with tarfile.open(path, "w") as tar:
        tar.add(layer, "layer.tar")
        _text(tar, name, text)
        _text(tar, "manifest.json", json.dumps([{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]))


def _text(tar, name, text, mode=0o644):
    data = text.encode("latin-1")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _below(folder):
    for entry in folder.rglob("*"):
        relative = entry.relative_to(folder)
        if entry.is_file() and not LEFT_OUT & set(relative.parts) and entry.suffix != ".pyc":
            yield relative


def _libraries(binaries):
    found = set()
    for start in range(0, len(binaries), 50):
        done = subprocess.run(
            ["ldd", *map(str, binaries[start : start + 50])], capture_output=True, text=True, timeout=60, check=False
        )
        found |= {Path(name) for name in re.findall(r"(?:=> |^\s+)(/\S+)", done.stdout, re.MULTILINE)}
    return found
