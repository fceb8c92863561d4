"""Wheels of one module, or of one program, as small as pip and uv accept them."""

import hashlib
import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str = "1.0", program: Path | None = None) -> Path:
    """A wheel of a module, or of a program that goes into the environment's ``bin``. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    info, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    content = f"{name}-{version}.data/scripts/{program.name}" if program else f"{name}.py"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        if program:
            archive.write(program, content)
        else:
            archive.writestr(content, f"VALUE = {name!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", f"{content},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def locked(wheel: Path, marker: str = "") -> str:
    """The line of a file of requirements that pins a wheel by its hash."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name.replace('_', '-')}=={version}{marker} \\\n    --hash=sha256:{digest}\n"
