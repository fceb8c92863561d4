"""A destination whose keys may write and not read."""

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

    def _answer(self, code):
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), WriteOnly)
    server.put = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_keys_that_may_write_alone_are_enough(server, tmp_path):
    (tmp_path / "a.txt").write_text("acceptance")
    file = pack.File("a.txt", 10, pack.digest(tmp_path / "a.txt"))
    connection = Connection(
        bucket="b", endpoint=f"http://127.0.0.1:{server.server_port}", access_key="k", secret_key="s", direct=True
    )
    sent = destination.Bucket(connection, "to").send(tmp_path, [file], "x")
    assert (sent.sent, sent.there) == (1, 0)
    assert list(server.put) == ["/b/to/x/a.txt"]
    assert b"acceptance" in server.put["/b/to/x/a.txt"]
