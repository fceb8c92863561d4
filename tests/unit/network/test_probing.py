"""Real connections on this machine: listeners that end, ports, services, names that hang."""

import functools
import http.server
import json
import socket
import threading
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network import endpoints, listener, peers, tcp
from ansible_collections.gpuval.fleet.plugins.module_utils.network.parallel import in_parallel
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError

from tests.kit.ports import free_port


@pytest.fixture
def listening(tmp_path):
    """A listener of node `two` that `one` and `three` are to ask."""
    first = free_port()
    ports = [first, first + 1]
    found, others = listener.open_ports(ports)
    assert not others
    listener.start(tmp_path / "base", "two", found, 30, {"one", "three"})
    yield tmp_path / "base", ports
    listener.stop(tmp_path / "base")


def ended(port):
    for _try in range(600):
        if tcp.connect("127.0.0.1", port, 1)[0] == "closed":
            return True
        time.sleep(0.05)
    return False


def test_a_listener_says_which_node_it_is_and_ends_when_all_have_asked(listening):
    base, ports = listening
    assert [tcp.port_state("127.0.0.1", port, 20, "two") for port in ports] == ["open", "open"]
    assert tcp.port_state("127.0.0.1", ports[0], 20, "four") == "other_node"
    assert tcp.receive("127.0.0.1", ports[0], 1_000_000, 20) > 0
    tcp.say("127.0.0.1", ports[0], "bye one\n", 20)
    tcp.say("127.0.0.1", ports[0], "bye stranger\n", 20)
    time.sleep(0.7)
    assert tcp.port_state("127.0.0.1", ports[1], 20, "two") == "open", "three did not ask yet"
    tcp.say("127.0.0.1", ports[0], "bye three\n", 20)
    assert all(map(ended, ports))
    assert not (base / "network/listener.json").exists()


def test_a_listener_can_be_stopped_and_never_ends_another_process(listening):
    base, ports = listening
    path = base / "network/listener.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "started": "1"}))
    assert not listener.stop(base), "a later process of that number is not ours"
    assert tcp.port_state("127.0.0.1", ports[0], 20, "two") == "open"
    path.write_text(json.dumps(known))
    assert listener.stop(base)
    assert all(map(ended, ports))
    assert not listener.stop(base)


def test_a_listener_ends_when_its_time_is_over(tmp_path):
    port = free_port()
    found, _others = listener.open_ports([port])
    listener.start(tmp_path / "base", "two", found, 0.5, {"one"})
    assert ended(port)


def test_a_port_in_use_is_reported(listening):
    _base, ports = listening
    found, others = listener.open_ports([ports[0]])
    assert (found, others) == ({}, {ports[0]: "in_use"})


def test_states_of_a_connection():
    assert tcp.connect("127.0.0.1", free_port(), 1)[0] == "closed"
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        held = [tcp.connect("127.0.0.1", port, 0.3)[2] for _number in range(3)]
        assert tcp.connect("127.0.0.1", port, 0.3) == ("timeout", None, None)
        for link in held:
            if link is not None:
                link.close()
    assert tcp.resolve("no-such-name.invalid") == (None, None)
    assert tcp.resolve("127.0.0.1")[0] == "127.0.0.1"


def test_nothing_waits_for_what_hangs():
    begin = time.monotonic()
    done = in_parallel({"quick": lambda: 1, "slow": lambda: time.sleep(30)}, 3)
    assert done == {"quick": 1}
    assert time.monotonic() - begin < 20
    assert in_parallel({}, 1) == {}
    assert in_parallel({number: functools.partial(int, number) for number in range(100)}, 5) == {
        number: number for number in range(100)
    }


@pytest.mark.parametrize(
    ("text", "counts", "mean"),
    [
        (
            "3 packets transmitted, 3 received, 0% packet loss\nrtt min/avg/max/mdev = 0.060/0.162/0.293/0.090 ms",
            (3, 3),
            0.000162,
        ),
        ("3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 400ms", (3, 0), None),
        (
            "2 packets transmitted, 2 packets received, 0% packet loss\nround-trip min/avg/max = 0.1/0.2/0.3 ms",
            (2, 2),
            0.0002,
        ),
    ],
)
def test_what_ping_says(text, counts, mean):
    sent, received, seconds = peers.run_ping(["echo", text])
    assert (sent, received) == counts
    assert seconds == (None if mean is None else pytest.approx(mean))


def test_ping_that_says_nothing_is_not_known():
    assert peers.run_ping(["echo", "ping: invalid option -- 'M'"]) == (0, 0, None)
    assert peers.run_ping(["/nonexistent/ping"]) == (0, 0, None)
    assert peers.run_ping(["sh", "-c", "echo 3 packets transmitted, 3 received"]) == (3, 3, None)


@pytest.fixture
def service():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(403 if self.path == "/denied" else 200)
            self.end_headers()
            if self.path == "/stuck":
                self.wfile.write(b"x" * 100_000)
                self.wfile.flush()
                time.sleep(30)
                return
            self.wfile.write(b"x" * 3_000_000)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def probe(entry, size=1_000_000, seconds=20):
    return endpoints.probe(endpoints.parse({"name": "it", **entry}), size, seconds)


def test_a_service_is_read_within_bounds(service):
    found = probe({"url": f"http://127.0.0.1:{service}/file"})
    assert (found["state"], found["status"], found["received_bytes"]) == ("ok", 200, 1_000_000)
    assert found["bytes_per_second"] > 0 and 0 < found["tcp_seconds"] < 20
    assert probe({"url": f"http://127.0.0.1:{service}/denied"})["status"] == 403
    assert probe({"address": f"127.0.0.1:{service}"})["state"] == "ok"


def test_a_service_that_stalls_speaks_no_tls_or_is_away_is_named(service):
    begin = time.monotonic()
    assert "the answer stalled" in probe({"url": f"http://127.0.0.1:{service}/stuck"}, seconds=1)["message"]
    assert time.monotonic() - begin < 20
    assert probe({"url": f"https://127.0.0.1:{service}/"})["state"] == "tls"
    assert probe({"address": f"127.0.0.1:{free_port()}"})["message"].endswith("closed")
    assert probe({"url": "https://no-such-name.invalid/"}, seconds=1)["state"] == "name"


@pytest.mark.parametrize("entry", [{}, {"url": "ftp://x/"}, {"address": "registry"}, {"url": "http://u:secret@[x/"}])
def test_an_endpoint_that_cannot_be_read_is_named_without_its_secrets(entry):
    with pytest.raises(NodeError, match="endpoint it") as raised:
        endpoints.parse({"name": "it", **entry})
    assert "secret" not in str(raised.value)
