"""The stage `endpoints` beside real servers on this machine: what it measures, and what it says of each trouble."""

import http.server
import json
import ssl
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import endpoints as declared
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from gpuval_runner import cli

from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run
from tests.kit.h200 import telemetry

SIZE = 300_000


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if self.path == "/away" else 200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        for number in range(3):
            if number and self.path == "/stalls":
                self.server.released.wait(20)
            if number and self.path == "/closes":
                return
            if self.path == "/slow":
                time.sleep(0.1)
            self.wfile.write(bytes(SIZE // 3))

    def do_PUT(self):
        self.server.received = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(403 if self.path == "/refused" else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    running = []

    def start(certificate=None, host="127.0.0.1"):
        server = http.server.ThreadingHTTPServer((host, 0), Handler)
        server.daemon_threads, server.released = True, threading.Event()
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.server, certificate.server_key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def measure(tmp_path, monkeypatch):
    def run(*entries, seconds=60):
        result = tmp_path / "result.json"
        monkeypatch.setenv("GPUVAL_RESULT_FILE", str(result))
        entries = declared.parse([{"name": f"e{number}", **entry} for number, entry in enumerate(entries)])
        assert cli.main(["endpoints", "--endpoints", json.dumps(entries), "--seconds", str(seconds)]) == 0
        return json.loads(result.read_text())

    return run


def figures(result, scope="link:e0"):
    return {metric["name"]: metric["value"] for metric in result["metrics"] if metric["scope"] == scope}


def checks_of(result):
    run = make_run(stages=["facts", "endpoints"])
    evidence = healthy(run)
    evidence.records["node-1"]["endpoints"] = make_record(
        stage="endpoints", **{**result, "metrics": [*result["metrics"], *telemetry()]}
    )
    (node,) = judge(run, evidence, SHIPPED)["nodes"]
    return {check["name"]: check for check in node["checks"] if check["stage"] == "endpoints"}


def test_bytes_pass_both_ways_and_floors_are_kept(serve, measure):
    server = serve()
    url = f"http://127.0.0.1:{server.server_port}"
    result = measure(
        {"url": f"{url}/file", "size": "300 kB", "min_rate": "1 kB/s", "max_latency": "60 s", "max_loss": "50 %"},
        {"url": f"{url}/put", "method": "PUT", "size": "200 kB"},
        {"address": f"127.0.0.1:{server.server_port}"},
    )
    found = figures(result)
    assert found["endpoints_bytes_per_second"] > 0 and found["endpoints_connect_seconds"] < 60
    assert found["endpoints_mtu_bytes"] >= 1280 and found["endpoints_loss_ratio"] < 0.5
    assert server.received == 200_000
    assert result["message"] == "as declared: e0, e1, e2"
    assert figures(result, "node") == {
        "endpoints_count": 3, "endpoints_rates_count": 2, "endpoints_connected_count": 3,
    }  # fmt: skip
    checks = checks_of(result)
    assert {checks[f"endpoints_{name}"]["verdict"] for name in ("reached", "floors")} == {"pass"}


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("/stalls", {}, "the answer stalled"),
        ("/closes", {}, "of 300000 bytes passed before the answer ended"),
        ("/away", {}, "GET answered with HTTP 404"),
        ("/refused", {"method": "PUT"}, "PUT answered with HTTP 403"),
    ],
)
def test_a_transfer_that_does_not_pass_fails_the_node_and_says_why(serve, measure, path, more, message):
    url = f"http://127.0.0.1:{serve().server_port}{path}"
    result = measure({"url": url, "size": "300 kB", **more}, seconds=0.5)
    assert message in result["message"] and "endpoints_bytes_per_second" not in figures(result)
    check = checks_of(result)["endpoints_reached"]
    assert (check["verdict"], check["part"]) == ("fail", "link:e0")
    assert message in check["reason"]


def test_a_status_counts_as_reached_where_no_size_is_declared(serve, measure):
    result = measure({"url": f"http://127.0.0.1:{serve().server_port}/away"})
    assert figures(result)["endpoints_reached_count"] == 1


def test_a_throttled_service_misses_its_floor(serve, measure):
    url = f"http://127.0.0.1:{serve().server_port}/slow"
    result = measure({"url": url, "size": "300 kB", "min_rate": "10 MB/s"})
    check = checks_of(result)["endpoints_floors"]
    assert check["verdict"] == "fail" and "under the declared 1e+07" in check["reason"]


def certificate(folder, names=("127.0.0.1",), ago=timedelta()):
    files = certificates.CertificateFiles(folder)
    folder.mkdir()
    now = datetime.now(timezone.utc) - ago
    certificates.ensure(files, names, now)
    return files


def test_a_certificate_of_a_known_ca_is_good_and_its_end_is_known(serve, measure, tmp_path):
    files = certificate(tmp_path / "good")
    url = f"https://127.0.0.1:{serve(files).server_port}/file"
    result = measure({"url": url, "size": "300 kB", "ca_file": str(files.authority)})
    left = figures(result)["endpoints_certificate_left_seconds"]
    assert 80 * 86400 < left < 100 * 86400
    assert checks_of(result)["endpoints_certificate"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("ago", "host", "trusted", "message"),
    [
        (
            timedelta(),
            "127.0.0.1",
            False,
            "the certificate has an unknown CA: give the CA's file on the node as ca_file",
        ),
        (timedelta(days=120), "127.0.0.1", True, "the certificate expired: renew it on the service"),
        (timedelta(days=-30), "127.0.0.1", True, "the certificate is not yet valid: correct the clock"),
        (timedelta(), "127.0.0.2", True, "the certificate is for another name: use the name in the certificate"),
    ],
)
def test_trouble_with_a_certificate_is_named(serve, measure, tmp_path, ago, host, trusted, message):
    files = certificate(tmp_path / "tls", ago=ago)
    port = serve(files, host).server_port  # all of 127.0.0.0/8 is this machine
    result = measure({"url": f"https://{host}:{port}/", **({"ca_file": str(files.authority)} if trusted else {})})
    assert f"e0: tls: {host}: {message}" in result["message"]


def test_two_endpoints_of_one_name_are_rejected():
    with pytest.raises(SettingError, match="two endpoints have the name a: rename one"):
        declared.parse([{"name": "a", "address": "x:1"}, {"name": "a", "address": "y:1"}])
