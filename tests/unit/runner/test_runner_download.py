import errno
import hashlib
import http.client
import resource
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gpuval_runner import download as downloads
from gpuval_runner.download import ChecksumError, DownloadError, download
from gpuval_runner.plan import Archive
from gpuval_runner.upload import reason

SocketTimeout = socket.timeout
DATA = bytes(range(256)) * 5000
EXPECTED = Archive("images/a.tar", hashlib.sha256(DATA).hexdigest(), len(DATA))


class Server:
    """Serves DATA as a plan of answers says: how many bytes before the connection ends, or a status."""

    def __init__(self, *answers, ranges=True):
        server = self
        self.answers, self.ranges, self.asked = list(answers), ranges, []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                server.asked.append(asked)
                answer = server.answers.pop(0) if server.answers else len(DATA)
                start = int(asked.split("=")[1].rstrip("-")) if asked and server.ranges else 0
                if isinstance(answer, str):
                    self.send_response(int(answer))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(DATA) - start))
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
                self.end_headers()
                self.wfile.write(DATA[start : start + answer])

            def log_message(self, *_):
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/x?X-Amz-Signature=5ecret"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(downloads, "PACE", downloads.UploadPace(first=0.01, longest=0.05))
    made = []

    def make(*answers, **options):
        made.append(Server(*answers, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


def fetch(server, target, expected=EXPECTED, seconds=10):
    return download(server.url, target, expected, time.monotonic() + seconds)


def test_what_is_cut_off_again_and_again_arrives_whole(serve, tmp_path):
    server = serve(1000, "503", 70_000, 300_000)
    target = tmp_path / "a.tar"
    assert fetch(server, target) == len(DATA)
    assert target.read_bytes() == DATA
    assert server.asked == [None, "bytes=1000-", "bytes=1000-", "bytes=71000-", "bytes=371000-"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_store_without_ranges_begins_anew(serve, tmp_path):
    target = tmp_path / "a.tar"
    received = fetch(serve(1000, ranges=False), target)
    assert (target.read_bytes(), received) == (DATA, 1000 + len(DATA))


@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA), len(DATA) + 7])
def test_a_part_file_is_kept_as_far_as_it_may_be_right(serve, tmp_path, size):
    target = tmp_path / "a.tar"
    target.with_name("a.tar.part").write_bytes((DATA + b"garbage")[:size])
    received = fetch(serve(), target)
    assert target.read_bytes() == DATA
    assert received == (len(DATA) - size if size <= len(DATA) else len(DATA))


def test_what_is_not_as_announced_is_removed(serve, tmp_path):
    with pytest.raises(ChecksumError, match="it was removed"):
        fetch(serve(), tmp_path / "a.tar", Archive("images/a.tar", "0" * 64, len(DATA)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "said"), [("403", "expired"), ("404", "no such archive"), ("400", "with 400")])
def test_a_refusal_is_final_and_tells_no_url(serve, tmp_path, status, said):
    server = serve(*[status] * 3)
    with pytest.raises(DownloadError, match=said) as caught:
        fetch(server, tmp_path / "a.tar")
    assert len(server.asked) == 1
    assert "5ecret" not in str(caught.value)


def test_a_store_that_stays_away_is_given_up(serve, tmp_path):
    server = serve(*["503"] * 50)
    with pytest.raises(DownloadError, match=r"503.*are kept"):
        fetch(server, tmp_path / "a.tar")
    assert len(server.asked) == downloads.MAX_FAILURES


def test_the_deadline_holds(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "MAX_FAILURES", 10_000)
    begun = time.monotonic()
    with pytest.raises(DownloadError):
        fetch(serve(*["503"] * 10_000), tmp_path / "a.tar", seconds=0.5)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("error", [OSError(errno.EHOSTUNREACH, "No route to host"), SocketTimeout("timed out")])
def test_whatever_the_network_does_is_tried_again(serve, tmp_path, monkeypatch, error):
    """On Python 3.9 a read that times out is neither a TimeoutError nor wrapped."""
    server, real, failed = serve(), http.client.HTTPResponse.read, []

    def read(answer, *arguments):
        if not failed:
            failed.append(answer)
            raise error
        return real(answer, *arguments)

    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    assert fetch(server, tmp_path / "a.tar") == len(DATA)
    assert len(server.asked) == 2


def test_an_error_of_the_disk_is_none_of_the_network(serve, tmp_path, monkeypatch):
    def full(_stream, _block):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloads, "_append", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(serve(), tmp_path / "a.tar")


def test_a_full_disk_keeps_nothing_of_the_block_that_does_not_fit(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "a.tar.part").open("ab") as stream:
        downloads._append(stream, bytes(1000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                downloads._append(stream, bytes(downloads.BLOCK_BYTES))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (tmp_path / "a.tar.part").stat().st_size == 1000


def test_a_timeout_of_old_python_is_named():
    assert reason(SocketTimeout("timed out")) == "timed out"
