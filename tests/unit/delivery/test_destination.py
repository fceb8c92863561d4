"""A destination whose keys may write and not read, and one that loses an object while it is compared."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.image_archive import sha256_of
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import DeliveryError, destination, pack


class WriteOnly(BaseHTTPRequestHandler):
    """Answers like AWS does keys that have s3:PutObject alone."""

    def do_HEAD(self):
        self._answer(403)

    def do_PUT(self):
        path = self.path.partition("?")[0]
        self.server.put[path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.types[path] = self.headers["Content-Type"]
        self._answer(200)

    def _answer(self, code, size=0, **headers):
        self.send_response(code)
        for name, value in {"Content-Length": str(size), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


class RemovedMeanwhile(WriteOnly):
    """Still knows the size of an object that was removed behind its back, and nothing else of it."""

    def do_HEAD(self):
        etag = f'"{hashlib.md5(b"acceptance", usedforsecurity=False).hexdigest()}"'
        self._answer(200, size=10, **({"ETag": etag} if self.path in self.server.put else {}))

    def do_GET(self):
        self._answer(404)


@pytest.fixture(params=[WriteOnly, RemovedMeanwhile])
def server(request):
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    server.put, server.types = {}, {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.txt").write_text("acceptance")
    return pack.File("a.txt", 10, sha256_of(tmp_path / "a.txt"))


def send(server, tmp_path, *files):
    connection = Connection("b", f"http://127.0.0.1:{server.server_port}", access_key="k", secret_key="s")
    return destination.send(connection, tmp_path, files, "to/x", lambda _line: None)


def test_a_file_is_sent_whose_object_cannot_be_compared(server, tmp_path, file):
    sent = send(server, tmp_path, file)
    assert (sent.sent, sent.there) == (1, 0)
    assert list(server.put) == ["/b/to/x/a.txt"]
    assert b"acceptance" in server.put["/b/to/x/a.txt"]


def test_what_marks_a_delivery_as_complete_is_sent_last(server, tmp_path):
    paths = [f"logs/{number}.log" for number in range(20)] + ["perf.csv", "manifest.json", "SHA256SUMS"]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("acceptance")
    files = [pack.File(path, 10, sha256_of(tmp_path / path)) for path in paths]
    assert send(server, tmp_path, *files).sent == 23
    assert list(server.put)[-2:] == ["/b/to/x/manifest.json", "/b/to/x/SHA256SUMS"]
    types = {path.rpartition("/")[2]: kind for path, kind in server.types.items()}
    assert types["0.log"] == types["SHA256SUMS"] == "text/plain; charset=utf-8"


def test_a_service_that_refuses_is_named_with_what_to_check(server, tmp_path, file, monkeypatch):
    monkeypatch.setattr(WriteOnly, "do_PUT", lambda self: self._answer(403))
    with pytest.raises(
        DeliveryError, match=r"cannot send to b/to/x: a\.txt .*403.* Check delivery_destination, "
    ) as error:
        send(server, tmp_path, file)
    assert "acceptance" not in str(error.value)


def test_a_folder_gets_files_in_place_of_links_and_of_others_files(tmp_path, file):
    folder, other = tmp_path / "handover", tmp_path / "other.txt"
    folder.mkdir()
    other.write_text("another's")
    (folder / "a.txt").symlink_to(other)
    assert destination.send_to_folder(tmp_path / "root", tmp_path, [file], folder).sent == 1
    assert other.read_text() == "another's"
    assert not (folder / "a.txt").is_symlink()
    assert (folder / "a.txt").read_text() == "acceptance"
    assert destination.send_to_folder(tmp_path / "root", tmp_path, [file], folder).there == 1
