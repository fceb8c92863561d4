"""Wheels of what an environment of workloads has, each a module of a few lines, and the real wheel of uv."""

import contextlib
import functools
import hashlib
import http.server
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "collections/ansible_collections/gpuval/fleet/node/requirements/locked/uv.txt"
#: Kept between calls: it has 18 MB.
UV_FOLDER = ROOT / ".gpuval/test-uv"
VERSION = "1.0"
TORCH = "torch==9.9.0"
TORCH_CODE = "class cuda:\n    is_available = staticmethod(lambda: False)\n"
NAMES = ("deepspeed", "transformers", "accelerate", "fastapi", "openai")
PYTHON_TAG = f"cp3{sys.version_info[1]}"
TORCH_TAG = f"{PYTHON_TAG}-{PYTHON_TAG}-linux_x86_64"


def uv_entry():
    """The lines of uv in the lock."""
    return re.search(r"^uv==.*(?:\n    .*)*", LOCK.read_text(), re.MULTILINE)[0]


@functools.cache
def uv_wheel():
    """The wheel of uv, from the index of this machine's pip."""
    version = uv_entry().partition(" ")[0]
    pattern = f"{version.replace('==', '-')}-*.whl"
    if not [*UV_FOLDER.glob(pattern)]:
        download = ["download", "--quiet", "--no-deps", "--dest", str(UV_FOLDER), version]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True, timeout=300)
    return next(UV_FOLDER.glob(pattern))


@functools.cache
def wheels_of_nodes():
    """The folder of the real wheels that a bundle carries for nodes of this machine's kind; kept between calls."""
    sys.path.insert(0, str(ROOT / "tools"))
    import bundle

    names = bundle.REQUIREMENTS[1:]
    texts = "".join((ROOT / name).with_name("locked").joinpath(Path(name).name).read_text() for name in names)
    folder = ROOT / ".gpuval/test-wheels" / hashlib.sha256(texts.encode()).hexdigest()[:12]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        bundle.build_wheels(sys.executable, ROOT, names, folder)
    return folder


def write_wheel(folder, name, version=VERSION, code="", tag="py3-none-any"):
    """A wheel of one module."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {
            f"{name}.py": f"__version__ = {version!r}\n{code}",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
            f"{info}/RECORD": "",
        }.items():
            wheel.writestr(zipfile.ZipInfo(file), text)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class TinyWheels:
    """A folder of tiny wheels, with the lock of them."""

    def __init__(self, folder, **code):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.paths = [write_wheel(folder, name, code=code.get(name, "")) for name in NAMES]
        write_wheel(folder, "torch", "9.9.0+cpu", TORCH_CODE + code.get("torch", ""), TORCH_TAG)
        with contextlib.suppress(FileExistsError):
            (folder / uv_wheel().name).hardlink_to(uv_wheel())

    def lock(self, **digests):
        """The text of the lock; `digests` replace those of packages."""
        entries = [
            f"{name}=={VERSION} \\\n    --hash=sha256:{digests.get(name) or sha256(path)}"
            for name, path in zip(NAMES, self.paths, strict=True)
        ]
        return "\n".join([*entries, uv_entry(), ""])

    def pack(self, path):
        """The archive of the wheels, as the controller makes it. Returns what a node is told of it, but its URL."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for wheel in sorted(self.folder.iterdir()):
                tar.add(wheel, wheel.name)
        return {"sha256": sha256(path), "bytes": path.stat().st_size, "authority": ""}

    @contextlib.contextmanager
    def served(self, login=""):
        """The wheels as a package index on loopback, for those with a `login` only. Yields its address without it."""
        wheels = {path.name: path for path in self.folder.iterdir()}

        class Index(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = unquote(self.path).rstrip("/").rpartition("/")[2]
                files = [file for file in wheels if file.lower().startswith(f"{name}-")]
                if name in wheels:
                    body, kind = wheels[name].read_bytes(), "application/octet-stream"
                else:
                    links = (f'<a href="/files/{file.replace("+", "%2B")}">{file}</a>' for file in files)
                    body, kind = f"<html><body>{''.join(links)}</body></html>".encode(), "text/html"
                refused = login and self.headers["Authorization"] != f"Basic {b64encode(login.encode()).decode()}"
                self.send_response(401 if refused else 200 if name in wheels or files else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *words):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            server.server_close()
