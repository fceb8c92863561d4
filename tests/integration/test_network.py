"""The role network on machines of their own: real interfaces, real faults, and all of it put back."""

import csv
import functools
import json

import pytest

from tests.kit.container_fleet import NODE_DIR, ContainerFleet, Node
from tests.kit.fleet import until

PORT = 29500
NODES = ["one", "two", "three"]
#: A veth pair is a cable with both ends in one machine: up with both ends up, without carrier when one end is down.
CABLE = "ip link add fabric0 type veth peer name fabric1; ip link set fabric0 up; ip link set fabric1 up"
SNAPSHOT = """
ip -json -details address show | sed -E 's/"(valid|preferred)_life_time":[0-9]+//g'
ip -json -details route show; ip -6 -json -details route show
cat /proc/sys/net/ipv4/tcp_fin_timeout /proc/sys/net/ipv4/tcp_rmem
sha256sum /etc/hosts; ls -l /etc/hosts | cut -c1-20; ls /etc/security/limits.d; find /var/lib/gpuval 2>/dev/null || true
"""
DECLARED = {
    "network_interfaces": [
        {
            "name": "fabric0",
            "mtu": 9000,
            "addresses": ["10.77.{{ number }}.1/24"],
            "routes": [
                {"to": "10.78.0.0/16", "via": "10.77.{{ number }}.254"},
                {"to": "10.79.0.0/16", "via": "10.77.{{ number }}.253", "metric": 50},
            ],
        }
    ],
    "network_sysctls": {"net.ipv4.tcp_fin_timeout": 33, "net.ipv4.tcp_rmem": "4096 131072 7000000"},
    "network_limits": [{"item": "memlock", "value": "unlimited"}],
    "network_hosts_entries": True,
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    users = {"three": {"user": "ops", "sudo": "free"}}
    machines = [
        Node(name, net_admin=True, variables={"number": number}, **users.get(name, {}))
        for number, name in enumerate(NODES, 1)
    ]
    with ContainerFleet(tmp_path_factory.mktemp("network"), machines) as fleet:
        for name in NODES:
            shell(fleet, name, "mount -o remount,rw /proc/sys")
        yield fleet


@pytest.fixture
def cabled(fleet):
    """All nodes with a cable of their own, of which nothing is left afterwards."""
    for name in NODES:
        shell(fleet, name, f"ip link del fabric0 2>/dev/null; {CABLE}")
    yield fleet
    for name in NODES:
        shell(fleet, name, "ip link del fabric0 2>/dev/null || true")


def shell(fleet, node, script):
    return fleet.bed.execute(node, "sh", "-c", script)


def network(fleet, *arguments, **settings):
    extra = ["-e", json.dumps(settings)] if settings else []
    return fleet.play("gpuval.fleet.network", *extra, *arguments)


def serve(fleet, node, port, *arguments):
    """A service of the node's own, which listens when this returns."""
    command = " ".join(["nohup python3 -m http.server", str(port), *arguments, ">/dev/null 2>&1 &"])
    shell(fleet, node, f"{command} until ss -ltn | grep -q ':{port} '; do sleep 0.1; done")


def matrix(fleet):
    return json.loads((fleet.results / "network/matrix.json").read_text())


def found(fleet, level="fail"):
    return {(entry["kind"], *entry["nodes"]) for entry in matrix(fleet)["findings"] if entry["level"] == level}


def test_without_settings_nothing_is_changed_and_every_link_is_measured(fleet):
    assert fleet.play("gpuval.fleet.probe").code == 0, "the keys are pinned before: that is a change"
    before = {name: shell(fleet, name, SNAPSHOT) for name in NODES}
    done = network(fleet)
    assert done.code == 0, str(done)
    assert [done.recap(name)["changed"] for name in NODES] == [0, 0, 0]
    assert "3 of 3 node(s) answered, 6 of 6 link(s) work" in done.told
    assert {name: shell(fleet, name, SNAPSHOT) for name in NODES} == before
    links = matrix(fleet)["links"]
    assert {(link["from"], link["to"]) for link in links} == {(a, b) for a in NODES for b in NODES if a != b}
    for link in links:
        assert 0 < link["tcp_minimum_seconds"] <= link["tcp_median_seconds"] < 10
        assert link["path_mtu_bytes"] == link["mtu_bytes"] == 1500
        assert link["ping_received"] == link["ping_sent"] == 3
    assert found(fleet) == set()
    with (fleet.results / "network/matrix.csv").open() as stream:
        assert [(row["from"], row["to"]) for row in csv.DictReader(stream)] == [(x["from"], x["to"]) for x in links]


def test_what_is_declared_is_made_once_and_put_back_to_the_last_byte(cabled):
    before = {name: shell(cabled, name, SNAPSHOT) for name in NODES}
    # a route that is replaced, and must come back
    shell(cabled, "one", "ip address add 10.66.0.1/24 dev fabric1; ip route add 10.78.0.0/16 via 10.66.0.9")
    before["one"] = shell(cabled, "one", SNAPSHOT)

    tried = network(cabled, "--check", "--diff", "--tags", "network_apply", **DECLARED)
    assert tried.code == 0, str(tried)
    assert "+fabric0 mtu: 9000" in tried.output
    assert tried.recap("one")["changed"] == 1
    assert {name: shell(cabled, name, SNAPSHOT) for name in NODES} == before

    done = network(cabled, "--tags", "network_apply", **DECLARED)
    assert done.code == 0, str(done)
    assert done.recap("one")["changed"] == 1
    shown = shell(
        cabled, "one", "ip address show fabric0; ip route; cat /etc/hosts /etc/security/limits.d/99-gpuval.conf"
    )
    for wanted in (
        "mtu 9000",
        "inet 10.77.1.1/24 brd 10.77.1.255",
        "10.78.0.0/16 via 10.77.1.254 dev fabric0",
        "10.79.0.0/16 via 10.77.1.253 dev fabric0 metric 50",
        f"{cabled.bed.address('two')} two",
        "* - memlock unlimited",
    ):
        assert wanted in shown
    assert shell(cabled, "one", "cat /proc/sys/net/ipv4/tcp_fin_timeout").strip() == "33"
    assert shell(cabled, "one", "stat -c %a /var/lib/gpuval/network /var/lib/gpuval/network/undo.json").split() == [
        "700",
        "600",
    ]

    again = network(cabled, "--tags", "network_apply", **DECLARED)
    assert again.code == 0, str(again)
    assert [again.recap(name)["changed"] for name in NODES] == [0, 0, 0]

    # the first value is the one to go back to, whatever was declared in between
    other = {
        "network_interfaces": [{"name": "fabric0", "mtu": 4000}],
        "network_sysctls": {"net.ipv4.tcp_fin_timeout": 44},
    }
    assert network(cabled, "--tags", "network_apply", **other).code == 0
    back = network(cabled, "--tags", "network_apply", network_state="restored")
    assert back.code == 0, str(back)
    assert {name: shell(cabled, name, SNAPSHOT) for name in NODES} == before


def test_clean_of_all_runs_puts_back_what_the_network_was(cabled):
    before = shell(cabled, "one", SNAPSHOT)
    assert network(cabled, "--limit", "one", "--tags", "network_apply", **DECLARED).code == 0
    assert shell(cabled, "one", SNAPSHOT) != before
    done = cabled.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
    assert done.code == 0, str(done)
    assert shell(cabled, "one", SNAPSHOT) == before


def test_changes_that_cut_off_new_connections_are_rolled_back(cabled):
    """The open connection works on, so that only a new one shows that the node cannot be reached any more."""
    before = shell(cabled, "one", SNAPSHOT)
    rule = "INPUT -p tcp --syn --dport 22 -j DROP"
    # as a change would do that breaks the network: at the moment when the first change is written down
    cutting = f"until [ -s {NODE_DIR}/network/undo.json ]; do :; done; iptables -I {rule}"
    shell(cabled, "one", f"nohup sh -c '{cutting}' >/dev/null 2>&1 &")
    try:
        done = network(cabled, "--limit", "one", "--tags", "network_apply", **DECLARED)
        assert done.code != 0
        assert done.recap("one")["failed"] == 1, str(done)
        assert "could not be confirmed over a new connection, and the node rolls them back within 60 s" in done.told
        until(lambda: shell(cabled, "one", SNAPSHOT) == before, "the node rolls the changes back", 180)
    finally:
        shell(cabled, "one", f"iptables -D {rule}")


def test_what_someone_else_changed_since_is_left_alone_and_reported(cabled):
    settings = {"network_sysctls": {"net.ipv4.tcp_fin_timeout": 33, "net.core.somaxconn": 1234}}
    was = shell(cabled, "one", "cat /proc/sys/net/core/somaxconn")
    assert network(cabled, "--limit", "one", "--tags", "network_apply", **settings).code == 0
    shell(cabled, "one", "echo 55 > /proc/sys/net/ipv4/tcp_fin_timeout")
    done = network(cabled, "-v", "--limit", "one", "--tags", "network_apply", network_state="restored")
    assert done.code == 0
    assert "now 55, which gpuval did not set" in done.told, str(done)
    assert shell(cabled, "one", "cat /proc/sys/net/ipv4/tcp_fin_timeout") == "55\n"
    assert shell(cabled, "one", "cat /proc/sys/net/core/somaxconn") == was
    shell(cabled, "one", "echo 60 > /proc/sys/net/ipv4/tcp_fin_timeout")
    assert shell(cabled, "one", f"ls {NODE_DIR} 2>/dev/null || true") == ""


def has_flapped(fleet, name):
    lines = [line for line in shell(fleet, "one", "cat /tmp/monitor").splitlines() if f": {name}" in line]
    return any("UP" not in line for line in lines) and "LOWER_UP" in lines[-1]


def test_interfaces_of_a_pattern_go_down_and_up_once_and_keep_their_routes(cabled):
    flap = {"network_interfaces": [{"pattern": "fabric*", "count": 2, "flap": True, "mtu": 2000}]}
    # a hundred monitored lines would do less than one monitor
    shell(cabled, "one", "ip address add 10.66.0.1/24 dev fabric0; ip route add 10.67.0.0/16 via 10.66.0.9")
    before = shell(cabled, "one", SNAPSHOT)
    shell(cabled, "one", "nohup ip monitor link > /tmp/monitor 2>&1 & sleep 0.3")
    done = network(cabled, "--limit", "one", "--tags", "network_apply", **flap)
    assert done.code == 0, str(done)
    for name in ("fabric0", "fabric1"):
        until(functools.partial(has_flapped, cabled, name), f"the monitor has seen {name} go down and up")
    shell(cabled, "one", "pkill -x ip; rm /tmp/monitor")
    assert "10.67.0.0/16 via 10.66.0.9" in shell(cabled, "one", "ip route")
    again = network(cabled, "--limit", "one", "--tags", "network_apply", **flap)
    assert again.recap("one")["changed"] == 0, str(again)
    assert network(cabled, "--limit", "one", "--tags", "network_apply", network_state="restored").code == 0
    assert shell(cabled, "one", SNAPSHOT) == before


def test_interfaces_that_stay_down_are_named_and_nothing_is_left_changed(cabled):
    shell(cabled, "two", "ip link set fabric1 down")
    before = shell(cabled, "two", SNAPSHOT)
    declared = {**DECLARED, "network_link_seconds": 1, "network_interfaces": [
        {"pattern": "fabric0", "mtu": 9000, "flap": True}, {"pattern": "gaudi*", "count": 0}]}  # fmt: skip
    done = network(cabled, "--tags", "network_apply", **declared)
    assert done.code != 0
    assert "1 of 1 interface(s) did not come up: fabric0 has no carrier" in done.told
    assert "the changes were rolled back" in done.told
    assert [done.recap(name)["failed"] for name in NODES] == [0, 1, 0], str(done)
    assert shell(cabled, "two", SNAPSHOT) == before
    assert network(cabled, "--tags", "network_apply", network_state="restored").code == 0


def test_the_management_connection_is_not_touched(fleet):
    before = shell(fleet, "one", SNAPSHOT)
    refused = {
        "mtu": {"network_interfaces": [{"name": "eth0", "mtu": 1400}]},
        "flap": {"network_interfaces": [{"pattern": "eth*", "flap": True}]},
    }
    for settings in refused.values():
        done = network(fleet, "--limit", "one,three", "--tags", "network_apply", **settings)
        assert [done.recap(name)["failed"] for name in ("one", "three")] == [1, 1], str(done)
        # sudo takes SSH_CONNECTION out of the environment; it is found all the same
        refusal = f"eth0, which carries the management connection (SSH from {fleet.bed.gateway}"
        assert done.told.count(refusal) >= 2, str(done)
    shell(fleet, "one", CABLE)
    gateway = fleet.bed.gateway
    away = {
        "network_interfaces": [{"name": "fabric0", "addresses": ["10.77.1.1/24"], "routes": [{"to": f"{gateway}/32"}]}]
    }
    done = network(fleet, "--limit", "one", "--tags", "network_apply", **away)
    assert done.code != 0
    assert "would lead the way to the controller" in done.told, str(done)
    shell(fleet, "one", "ip link del fabric0")
    assert shell(fleet, "one", SNAPSHOT) == before


def test_a_port_that_a_firewall_drops_a_node_that_is_off_and_a_slow_one_are_named(fleet):
    # an own service is as good as a listener
    serve(fleet, "one", PORT)
    try:
        done = network(fleet, "--tags", "network_probe", network_ports=[PORT, PORT + 1])
        assert done.code == 0, str(done)
        assert {port for link in matrix(fleet)["links"] for port in link["ports"].values()} == {"open"}
    finally:
        shell(fleet, "one", f"pkill -f '[h]ttp.server {PORT}'")
    # all have asked: the listeners are gone at once, long before their time is over
    for name in NODES:
        shell(
            fleet, name, f"for n in $(seq 200); do ss -ltn | grep -q ':{PORT + 1} ' || exit 0; sleep 0.1; done; exit 1"
        )

    rule = f"INPUT -p tcp --dport {PORT} -j DROP"
    shell(fleet, "two", f"iptables -I {rule}")
    try:
        done = network(fleet, "--tags", "network_probe", network_ports=[PORT])
        assert done.code != 0
        assert "two: port 29500: 2 of 2 node(s) cannot connect (timeout 2x)" in done.told, str(done)
        assert found(fleet) == {("port", "two")}
        assert [done.recap(name)["failed"] for name in NODES] == [0, 1, 0], str(done)
    finally:
        shell(fleet, "two", f"iptables -D {rule}")

    shell(fleet, "three", "tc qdisc add dev eth0 root tbf rate 4mbit burst 5000 latency 2s")
    try:
        for _ in range(3):  # a stall of this machine makes links between the other two odd too, though not each time
            done = network(fleet, "--tags", "network_probe", network_bulk_bytes=2_000_000)
            assert done.code == 0, str(done)
            assert ("bandwidth", "three") in found(fleet, "warn"), str(done)
            others = [nodes for _kind, *nodes in found(fleet, "warn") if "three" not in nodes]
            if not others:
                break
        assert not others, str(done)
    finally:
        shell(fleet, "three", "tc qdisc del dev eth0 root")

    fleet.bed.stop("three")
    try:
        done = network(fleet, "--tags", "network_probe", network_ports=[PORT], network_listen_seconds=600)
        assert done.code != 0
        assert found(fleet) == {("silent", "three")}
        assert "three measured nothing" in done.told and "0 of 2 node(s) reach it" in done.told
        assert done.recap("one")["failed"] == done.recap("two")["failed"] == 0
    finally:
        fleet.bed.start("three")
        fleet.bed.wait(["three"])
        shell(fleet, "three", "mount -o remount,rw /proc/sys")
    # the listeners of the other two wait in vain for the third; clean ends them
    assert shell(fleet, "one", f"ss -ltn | grep -c ':{PORT} ' || true").strip() == "1"
    assert fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true").code == 0
    assert shell(fleet, "one", f"ss -ltn | grep -c ':{PORT} ' || true").strip() == "0"
    assert shell(fleet, "one", f"ls {NODE_DIR} 2>/dev/null || true") == ""


def test_packets_that_do_not_get_through_whole_are_named(fleet):
    # the other side of the cable takes less than this node believes
    before = shell(fleet, "one", SNAPSHOT)
    shell(fleet, "two", "iptables -I INPUT -p icmp -m length --length 1401:65535 -j DROP")
    try:
        done = network(fleet, "--tags", "network_probe")
        assert done.code != 0
        assert found(fleet) == {("mtu", "two")}
        assert "packets of 1500 bytes do not pass unfragmented, at most 1400" in done.told, str(done)
    finally:
        shell(fleet, "two", "iptables -F INPUT")
    assert shell(fleet, "one", SNAPSHOT) == before


def test_services_are_measured_and_those_that_are_away_are_named(fleet):
    shell(fleet, "one", "mkdir -p /tmp/www; head -c 3000000 /dev/zero > /tmp/www/file")
    serve(fleet, "one", 8080, "--directory /tmp/www")
    address = fleet.bed.address("one")
    endpoints = [
        {"name": "files", "url": f"http://{address}:8080/file?signature=planted-secret"},
        {"name": "registry", "address": f"{address}:5000"},
        {"name": "hub", "url": "https://hub.invalid/"},
    ]
    try:
        done = network(
            fleet, "-vvv", "--tags", "network_probe", network_endpoints=endpoints, network_endpoint_bytes=1_000_000
        )
    finally:
        shell(fleet, "one", "pkill -f '[h]ttp.server 8080'; rm -r /tmp/www")
    assert done.code != 0
    assert found(fleet) == {("endpoint", *NODES)}
    measured = {(entry["node"], entry["endpoint"]): entry for entry in matrix(fleet)["endpoints"]}
    for name in NODES:
        assert measured[name, "files"]["state"] == "ok" and measured[name, "files"]["status"] == 200
        assert measured[name, "files"]["received_bytes"] == 1_000_000
        assert measured[name, "files"]["bytes_per_second"] > 0
        assert measured[name, "registry"]["state"] == "tcp"
        assert "is not known to the node" in measured[name, "hub"]["message"]
    assert "planted-secret" not in done.output
    assert "planted-secret" not in (fleet.results / "network/matrix.json").read_text()


def test_who_is_not_root_learns_what_needs_root(fleet):
    declared = {**DECLARED, "ansible_become": False, "network_interfaces": []}
    shell(
        fleet,
        "one",
        "useradd -m -p '*' plain; mkdir -p ~plain/.ssh; cp ~root/.ssh/authorized_keys ~plain/.ssh/; "
        "chown -R plain ~plain/.ssh",
    )
    done = network(
        fleet,
        "--limit",
        "one",
        "--tags",
        "network_apply",
        "-e",
        "ansible_user=plain",
        "-e",
        "gpuval_node_dir=",
        **declared,
    )
    shell(fleet, "one", "userdel -r plain 2>/dev/null || true")
    assert done.code != 0
    assert "needs root: net.ipv4.tcp_fin_timeout: 60 -> 33" in done.told, str(done)
    assert "ansible_become: true" in done.told


def test_prepare_brings_the_network_up_where_it_is_declared_and_only_there(fleet):
    done = fleet.play("gpuval.fleet.prepare", "--limit", "one")
    assert done.code == 0, str(done)
    assert "Bring the network" not in done.told and "Ask the others" not in done.told
    declared = json.dumps({"network_sysctls": {"net.ipv4.tcp_fin_timeout": 31}})
    done = fleet.play("gpuval.fleet.prepare", "--limit", "one,two", "-e", declared)
    assert done.code == 0, str(done)
    assert "2 of 2 link(s) work" in done.told
    assert shell(fleet, "two", "cat /proc/sys/net/ipv4/tcp_fin_timeout") == "31\n"
    assert fleet.play("gpuval.fleet.clean").code == 0
    assert shell(fleet, "two", "cat /proc/sys/net/ipv4/tcp_fin_timeout") == "60\n"
