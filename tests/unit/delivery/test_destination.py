"""A destination whose keys may write and not read, and one that loses an object while it is compared."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import destination, pack


class WriteOnly(BaseHTTPRequestHandler):
    """Answers like AWS does keys that have s3:PutObject alone."""

    def do_HEAD(self):
        self._answer(403)

    def do_PUT(self):
        self.server.put[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
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
    server.put = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_file_is_sent_whose_object_cannot_be_compared(server, tmp_path):
    (tmp_path / "a.txt").write_text("acceptance")
    file = pack.File("a.txt", 10, pack.digest(tmp_path / "a.txt"))
    connection = Connection(
        bucket="b", endpoint=f"http://127.0.0.1:{server.server_port}", access_key="k", secret_key="s", direct=True
    )
    sent = destination.Bucket(connection, "to").send(tmp_path, [file], "x")
    assert (sent.sent, sent.there) == (1, 0)
    assert list(server.put) == ["/b/to/x/a.txt"]
    assert b"acceptance" in server.put["/b/to/x/a.txt"]
