"""What the leader reads of members that have not joined, over real HTTP."""

import functools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gpuval_workloads.gang.membership import RECORDS_FILE, find_ended


@pytest.fixture
def serve():
    found = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = found.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield found, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def find(serve, tmp_path):
    _, url = serve
    urls = {
        f"{stage}/n{number}": f"{url}/{stage}/n{number}" for stage in ("collective", "deepspeed") for number in (2, 3)
    }
    (tmp_path / RECORDS_FILE).write_text(json.dumps({"urls": urls, "ca": ""}))
    own = {"GPUVAL_STAGE": "collective", "GPUVAL_ATTEMPT": "2"}
    return functools.partial(find_ended, environ={"GPUVAL_GANG_FILE": str(tmp_path / "gang.json"), **own})


@pytest.mark.parametrize("state", ["failure", "crash", "timeout"])
def test_the_first_member_that_has_ended_is_found(serve, find, state):
    found, _ = serve
    found["/collective/n3"] = json.dumps(
        {"attempt": 2, "state": state, "message": "the leader\nis unreachable " + 1000 * "x"}
    ).encode()
    node, message = find(["n2", "n3"])
    assert node == "n3"
    assert message.startswith("the leader is unreachable xx") and len(message) == 500
    assert find(["n2"]) is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[1]", b'"crash"', b"\xff", b"{}", b"[" * 100_000),
        *(b'{"attempt": 2, "state": "running"}', b'{"attempt": 2, "state": "success"}'),
        b'{"attempt": 1, "state": "crash", "message": "of an earlier attempt"}',
    ],
)
def test_no_member_has_ended_where_its_record_does_not_say_so(serve, find, body):
    found, _ = serve
    found["/collective/n2"] = body
    found["/deepspeed/n3"] = b'{"attempt": 2, "state": "crash", "message": ""}'
    assert find(["n2", "n3", "n4"]) is None


def test_without_urls_or_a_store_nothing_is_known(tmp_path):
    environ = {"GPUVAL_GANG_FILE": str(tmp_path / "gang.json"), "GPUVAL_STAGE": "x", "GPUVAL_ATTEMPT": "1"}
    assert find_ended(["n2"], {}) is None
    assert find_ended(["n2"], environ) is None
    (tmp_path / RECORDS_FILE).write_text(json.dumps({"urls": {"x/n2": "http://127.0.0.1:9/x"}, "ca": ""}))
    assert find_ended(["n2"], environ) is None
