"""Members ask each other over real sockets: on the loopback interface, and through a network that loses packets."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
from gpuval_workloads.gang.host import mesh
from gpuval_workloads.gang.host.mesh import Mesh, MeshPeer

from tests.kit.needs import SYS_ADMIN, lacking
from tests.kit.workload_process import NODE


@pytest.fixture
def members():
    made = []

    def make(index, address=None, gang="all"):
        member = Mesh(gang, index, address or f"127.0.0.{index + 1}")
        made.append(member.__enter__())
        assert member.port, member.problem
        return member

    yield make
    for member in made:
        member.__exit__()


def peers_of(*members, packet_bytes=65536):
    return [MeshPeer(m._index, m._address, m.port, packet_bytes) for m in members]


def test_members_that_reach_each_other(members):
    one, two, three = members(0), members(1), members(2)
    answers = one.ask(peers_of(two, three), 60)
    assert {index: answer.state for index, answer in answers.items()} == {1: "ok", 2: "ok"}
    for answer in answers.values():
        assert 0 < answer.round_trip_seconds < 60
        assert abs(answer.clock_offset_seconds) <= answer.clock_error_seconds + 0.001
        assert answer.path_mtu_bytes == 65535


def test_a_closed_port_is_distinguished_from_silence(members):
    one = members(0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))
        answers = one.ask([MeshPeer(1, "127.0.0.2", closed.getsockname()[1])], 60)
    assert answers[1].state == "refused"
    begun = time.monotonic()
    with socket.socket() as silent:
        silent.bind(("127.0.0.3", 0))
        silent.listen()
        assert one.ask([MeshPeer(2, "127.0.0.3", silent.getsockname()[1])], 90)[2].state == "no answer"
    assert time.monotonic() - begun < 45


def test_who_is_not_asked_in_time_is_not_accused(members):
    one = members(0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", 0))
        silent.listen()
        assert one.ask([MeshPeer(1, "127.0.0.2", silent.getsockname()[1])], 0.3)[1].state == mesh.LATE


def test_another_member_at_the_address_is_reported(members):
    one, two = members(0), members(1)
    assert one.ask([MeshPeer(2, "127.0.0.2", two.port)], 60)[2].state == "another member answers there"
    other = members(2, gang="another")
    assert one.ask([MeshPeer(2, "127.0.0.3", other.port)], 60)[2].state == "another member answers there"


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"[]\n",
        b"gpuval-network all/1\n1e999\n",
        b"gpuval-network all/1\n\n",
        b"x" * 100_000,
    ],
)
def test_garbage_is_no_answer(members, said):
    one = members(0)
    with socket.socket() as server:
        server.bind(("127.0.0.2", 0))
        server.listen()
        thread = threading.Thread(target=lambda: _say(server, said), daemon=True)
        thread.start()
        state = one.ask([MeshPeer(1, "127.0.0.2", server.getsockname()[1])], 60)[1].state
        assert state in ("something else answers there", "its answer has no valid time")
        thread.join()


def _say(server, said):
    with server.accept()[0] as connection:
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):  # the member hangs up without reading all
            connection.recv(10)


def test_strangers_at_the_listener_disturb_no_other(members):
    one, two = members(0), members(1)
    with socket.create_connection(("127.0.0.2", two.port)) as stranger:
        stranger.sendall(b"x" * 100_000)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
            for data in (b"", b"gpuvalps", os.urandom(2000)):
                noise.sendto(data, ("127.0.0.2", two.port))
            assert one.ask(peers_of(two), 5)[1].path_mtu_bytes == 65535


def test_a_server_of_ssh_is_known_by_its_greeting(members):
    one, two = members(0), members(1)
    with socket.socket() as server:
        server.bind(("127.0.0.2", 0))
        server.listen()
        threading.Thread(target=lambda: _say(server, b"SSH-2.0-OpenSSH_9.6\r\n"), daemon=True).start()
        port = server.getsockname()[1]
        assert one.ask([MeshPeer(1, "127.0.0.2", two.port, ssh_port=port)], 5)[1].ssh == "ok"
    assert one.ask([MeshPeer(1, "127.0.0.2", two.port, ssh_port=port)], 5)[1].ssh == "refused"


def test_an_address_that_is_not_here_is_reported():
    with Mesh("all", 0, "192.0.2.77") as member:
        assert member.port is None and "192.0.2.77" in member.problem


def test_a_name_is_listened_at_everywhere():
    with Mesh("all", 0, "localhost") as member, Mesh("all", 1, "127.0.0.2") as other:
        assert other.ask([MeshPeer(0, "localhost", member.port)], 5)[0].state == "ok"


def test_two_hundred_members_are_asked_within_seconds(members):
    asked = [members(index) for index in range(1, 201)]
    begun = time.monotonic()
    answers = members(0).ask(peers_of(*asked, packet_bytes=9000), 90)
    assert {answer.state for answer in answers.values()} == {"ok"}
    assert {answer.path_mtu_bytes for answer in answers.values()} == {9000}
    assert time.monotonic() - begun < 60


SETUP = """
ip netns add {name}-switch
ip -n {name}-switch link add br0 type bridge
ip -n {name}-switch link set br0 up
for n in 1 2; do
  ip netns add {name}-$n
  ip -n {name}-$n link add eth9 type veth peer name port$n netns {name}-switch
  ip -n {name}-$n link set eth9 mtu 9000 up
  ip -n {name}-switch link set port$n mtu {mtu} master br0 up
  ip -n {name}-$n addr add 10.99.0.$n/24 dev eth9
  ip -n {name}-$n addr add fd99::$n/64 dev eth9 nodad
done
"""
LISTEN = """
import sys, time
from gpuval_workloads.gang.host.mesh import Mesh
with Mesh("all", 1, sys.argv[1]) as member:
    print(member.port, flush=True)
    time.sleep(30)
"""
ASK = """
import json, sys
from gpuval_workloads.gang.host.mesh import Mesh, MeshPeer
with Mesh("all", 0, sys.argv[1]) as member:
    print(json.dumps(vars(member.ask([MeshPeer(1, sys.argv[2], int(sys.argv[3]), 9000)], 8)[1])))
"""


def in_namespace(name, code, *arguments):
    command = ["ip", "netns", "exec", name, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(NODE)}, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE
    )


@pytest.fixture
def network():
    """Two hosts with an MTU of 9,000, and between them a switch with another."""
    if os.geteuid() or not shutil.which("ip"):
        lacking(f"{SYS_ADMIN.format(to='to make network namespaces')}, with iproute2")
    name, running = f"gpuval{os.getpid()}", []

    def lay(mtu):
        script = SETUP.format(name=name, mtu=mtu)
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            pytest.skip(f"no network namespaces here: {done.stderr.strip()[:100]}")

        def ask(one, other):
            listening = in_namespace(f"{name}-2", LISTEN, other)
            running.append(listening)
            port = listening.stdout.readline().strip()
            return json.loads(in_namespace(f"{name}-1", ASK, one, other, port).communicate(timeout=30)[0])

        return ask

    yield lay
    for process in running:
        process.kill()
        process.communicate()
    for end in ("1", "2", "switch"):
        subprocess.run(["ip", "netns", "del", f"{name}-{end}"], capture_output=True, timeout=30, check=False)


@pytest.mark.parametrize(("mtu", "told"), [(9000, 9000), (1500, 1500), (4200, 4200)])
def test_packets_that_a_switch_drops_silently(network, mtu, told):
    answer = network(mtu)("10.99.0.1", "10.99.0.2")
    assert (answer["state"], answer["path_mtu_bytes"]) == ("ok", told)


def test_packets_of_ipv6_that_a_switch_drops(network):
    answer = network(1500)("fd99::1", "fd99::2")
    assert (answer["state"], answer["path_mtu_bytes"]) == ("ok", 1500)
