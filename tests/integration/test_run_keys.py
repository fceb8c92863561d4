"""The keys of a run on machines of their own: they open the run's sshd to the run's nodes, and nothing to others."""

import json

import pytest

from tests.kit.builders import make_run
from tests.kit.container_fleet import ContainerFleet, Node, TestbedError

RUN = "run-keys"
NAMES = ("one", "two")
INSIDE = "/opt/gpuval/ssh"
FILES = {
    "authorized_keys",
    "gpuval.json",
    "id_ed25519",
    "id_ed25519.pub",
    "known_hosts",
    "ssh_config",
    "ssh_host_ed25519_key",
    "ssh_host_ed25519_key.pub",
    "sshd_config",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with ContainerFleet(tmp_path_factory.mktemp("keys"), [Node(name) for name in (*NAMES, "stranger")]) as fleet:
        fleet.run_nodes = {name: fleet.nodes[name] for name in NAMES}
        run = make_run(NAMES, stages=["facts"], sku="cpu", run_id=RUN, folder=RUN, bucket="gpuval")
        (fleet.results / RUN).mkdir(parents=True)
        (fleet.results / RUN / "run.json").write_text(json.dumps(run))
        (fleet.results / "latest").symlink_to(RUN)
        yield fleet


def folder(fleet, node):
    return f"{fleet.node_directory(node)}/ssh"


def placed(fleet, node):
    return fleet.bed.execute(node, "sh", "-c", f"ls -A {folder(fleet, node)} 2>/dev/null || true").split()


def login(fleet, node, to, *options, command="hostname"):
    return fleet.bed.execute(node, "ssh", "-F", f"{INSIDE}/ssh_config", *options, to, command).strip()


def refused(fleet, node, to, *options):
    with pytest.raises(TestbedError) as raised:
        login(fleet, node, to, *options)
    return str(raised.value)


def test_check_mode_makes_nothing(fleet):
    done = fleet.play("gpuval.fleet.keys", "--check", nodes=fleet.run_nodes)
    assert done.code == 0, done
    assert not any(placed(fleet, node) for node in NAMES)
    assert not (fleet.results / RUN / ".state/ssh").exists()


def test_keys_are_placed_once_and_are_private(fleet):
    done = fleet.play("gpuval.fleet.keys", "-vvv", nodes=fleet.run_nodes)
    assert done.code == 0, done
    for node in NAMES:
        assert done.recap(node)["changed"] >= 1
        assert set(placed(fleet, node)) == FILES
        modes = fleet.bed.execute(node, "sh", "-c", f"stat -c %a {folder(fleet, node)} {folder(fleet, node)}/*").split()
        assert modes == ["700"] + ["600"] * len(FILES)
        assert folder(fleet, node) not in fleet.bed.execute(node, "sh", "-c", "cat ~/.ssh/authorized_keys || true")
    secret = (fleet.results / RUN / ".state/ssh/id_ed25519").read_text().splitlines()[2]
    assert secret in fleet.bed.execute("one", "cat", f"{folder(fleet, 'one')}/id_ed25519")
    assert secret not in done.output
    again = fleet.play("gpuval.fleet.keys", nodes=fleet.run_nodes)
    assert [again.recap(node)["changed"] for node in NAMES] == [0, 0], again
    fleet.bed.execute("one", "sh", "-c", f"chmod 644 {folder(fleet, 'one')}/id_ed25519")
    mended = fleet.play("gpuval.fleet.keys", nodes=fleet.run_nodes)
    assert [mended.recap(node)["changed"] for node in NAMES] == [1, 0], mended
    assert fleet.bed.execute("one", "stat", "-c", "%a", f"{folder(fleet, 'one')}/id_ed25519").strip() == "600"


def test_the_nodes_of_the_run_log_in_both_ways_and_no_other_does(fleet):
    # sshd detaches before it listens
    listens = f"ss -ltn | grep -q \":$(sed -n 's/^Port //p' {INSIDE}/sshd_config) \""
    serve = f"mkdir -p /run/sshd; /usr/sbin/sshd -f {INSIDE}/sshd_config && until {listens}; do sleep 0.1; done"
    for node in NAMES:
        fleet.bed.execute(node, "sh", "-c", f"mkdir -p /opt/gpuval && ln -sfn {folder(fleet, node)} {INSIDE}")
    # as in a container whose root is not the owner of the folder
    fleet.bed.execute("two", "chown", "-R", "1234:1234", folder(fleet, "two"))
    for node in NAMES:
        fleet.bed.execute(node, "sh", "-c", serve)
    try:
        names = {node: fleet.bed.execute(node, "hostname").strip() for node in NAMES}
        assert login(fleet, "one", "two") == names["two"]
        assert login(fleet, "two", "one") == names["one"]
        assert login(fleet, "one", "one") == names["one"]

        # the same key from a machine that is not of the run
        for name in ("id_ed25519", "known_hosts", "ssh_config"):
            text = fleet.bed.execute("one", "cat", f"{folder(fleet, 'one')}/{name}")
            fleet.bed.execute(
                "stranger", "sh", "-c", f"umask 077; mkdir -p {INSIDE}; cat > {INSIDE}/{name}", input=text
            )
        assert "Permission denied" in refused(fleet, "stranger", "two")
        # another key from a machine of the run
        fleet.bed.execute("one", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/other")
        fleet.bed.execute(
            "one", "sh", "-c", f"sed s,{INSIDE}/id_ed25519,/root/other, {INSIDE}/ssh_config > /root/config"
        )
        assert "Permission denied" in refused(fleet, "one", "two", "-F", "/root/config")
        # a host key that is not the pinned one
        fleet.bed.execute(
            "one",
            "sh",
            "-c",
            f"key=$(cut -d' ' -f1,2 /root/other.pub); awk -v key=\"$key\" '{{print $1, key}}' {INSIDE}/known_hosts"
            " > /root/hosts",
        )
        told = refused(fleet, "one", "two", "-o", "UserKnownHostsFile=/root/hosts")
        assert "IDENTIFICATION HAS CHANGED" in told
        # the key opens a session, not the node's network
        assert "prohibited" in refused(fleet, "one", "two", "-W", "127.0.0.1:22")
        # and no account of the node
        assert "Permission denied" in refused(
            fleet,
            "one",
            "two",
            "-p",
            "22",
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            "UserKnownHostsFile=/root/kh",
        )
    finally:
        for node in NAMES:
            fleet.bed.execute(node, "sh", "-c", f"pkill -f '[s]shd -f {INSIDE}' || true")
        fleet.bed.execute("two", "sh", "-c", f"chown -R root:root {folder(fleet, 'two')}")


def test_clean_removes_the_keys_from_nodes_and_controller(fleet):
    done = fleet.play("gpuval.fleet.clean", nodes=fleet.run_nodes)
    assert done.code == 0, done
    assert not (fleet.results / RUN / ".state/ssh").exists()
    for node in NAMES:
        assert not fleet.left_on(node)
