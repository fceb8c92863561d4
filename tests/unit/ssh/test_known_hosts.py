"""known_hosts files are read as OpenSSH reads them: ssh-keygen itself is asked where it can say."""

import dataclasses
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import known_hosts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.findings import Where
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.known_hosts import (
    HostKeyError,
    Pins,
    kex_file,
    pin_file,
    ssh_arguments,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.prober import Prober, SshTarget

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINJJw9zF6wJaUKPrt0/ZLCJlAGwDCVN59/46FWV1gT0p"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def look(text, host, port=22, alias=""):
    entries = known_hosts.parse(text, Path("kh"))
    return known_hosts.lookup(entries, host, port, alias)


def finds(text, host, port=22):
    return bool(look(text, host, port).keys)


@pytest.mark.parametrize(
    ("field", "host", "port", "found"),
    [
        ("node-1", "node-1", 22, True),
        ("node-1", "NODE-1", 22, True),
        ("node-1", "node-10", 22, False),
        ("node-1", "node-1", 2222, False),
        ("[node-1]:2222", "node-1", 2222, True),
        ("[node-1]:2222", "node-1", 22, False),
        ("*.example.org", "a.example.org", 22, True),
        ("*.example.org,!b.example.org", "b.example.org", 22, False),
        ("!b.example.org,*.example.org", "b.example.org", 22, False),
        ("node-?", "node-7", 22, True),
        ("a,192.0.2.7", "192.0.2.7", 22, True),
        ("[192.0.2.*]:2222", "192.0.2.7", 2222, True),
        ("[a-c]", "b", 22, False),
    ],
)
@needs_openssh
def test_hosts_match_as_in_openssh(tmp_path, field, host, port, found):
    text = f"# a comment\n\n{field} {KEY} words\n"
    assert finds(text, host, port) is found
    (tmp_path / "kh").write_text(text)
    name = known_hosts.host_id(host, port)
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(tmp_path / "kh")], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode == 0) is found


@needs_openssh
def test_hashed_names_are_found(tmp_path):
    file = tmp_path / "kh"
    file.write_text(f"node-1 {KEY}\n[node-1]:2222 {OTHER}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True, timeout=60)
    text = file.read_text()
    assert "node-1" not in text
    assert [str(entry.key) for entry in look(text, "node-1").keys] == [KEY]
    assert [str(entry.key) for entry in look(text, "node-1", 2222).keys] == [OTHER]
    assert not finds(text, "node-2")


def test_markers_aliases_and_damaged_lines():
    text = (
        f"@cert-authority *.example.org {KEY}\n@revoked * {OTHER}\n@unknown x {KEY}\nx ssh-ed25519 AAAA\nx\n"
        f"x ssh-rsa {KEY.split()[1]}\nplain {KEY}\n"
    )
    known = look(text, "a.example.org")
    assert [entry.line for entry in known.authorities] == [1]
    assert [entry.place for entry in known.revoked] == ["kh:2"]
    assert not known.keys and known
    assert not look(text, "x").keys
    assert look(text, "192.0.2.1", 2222, alias="Plain").keys[0].line == 7


def test_a_plain_name_holds_for_another_port_only_without_an_own_entry(tmp_path):
    own = tmp_path / "known_hosts"
    at = Where("n", "n", 2222, "ubuntu", settings={"userknownhostsfile": (str(own),)})
    prober = Prober(Pins(tmp_path / "pins"), 4, accept_new=True)
    own.write_text(f"n {KEY}\n")
    policy = prober._policy(at, SshTarget("n"))
    assert [str(entry.key) for entry in policy.plain.keys] == [KEY] and not policy.own
    assert not prober._policy(dataclasses.replace(at, port=22), SshTarget("n")).plain
    prober = Prober(Pins(tmp_path / "pins"), 4, accept_new=True)
    own.write_text(f"n {KEY}\n[n]:2222 {OTHER}\n")
    policy = prober._policy(at, SshTarget("n"))
    assert [str(entry.key) for entry in policy.own.keys] == [OTHER] and not policy.plain


@needs_openssh
def test_fingerprints_are_those_of_openssh(tmp_path):
    (tmp_path / "k.pub").write_text(KEY + "\n")
    told = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "k.pub")], check=True, capture_output=True, text=True, timeout=60
    )
    assert known_hosts.parse_key(KEY + " comment").fingerprint == told.stdout.split()[1]


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 !!!", f"ssh-rsa {KEY.split()[1]}", KEY.split()[1]])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(HostKeyError, match="not a public key"):
        known_hosts.parse_key(text)


def test_pins_are_private_and_are_added_once(tmp_path):
    pins = Pins(tmp_path / "known_hosts" / "site")
    assert pins.entries() == []
    key, other = known_hosts.parse_key(KEY), known_hosts.parse_key(OTHER)
    assert pins.add([("n", "", key), ("n", "", key), ("ca", known_hosts.CA, other)]) == 2
    assert pins.add([("n", "", key)]) == 0
    assert pins.path.read_text() == f"n {KEY}\n@cert-authority ca {OTHER}\n"
    assert pins.path.stat().st_mode & 0o777 == 0o600
    pins.path.chmod(0o644)
    pins.make()
    assert pins.path.stat().st_mode & 0o777 == 0o600
    assert pins.add([("n", "", other)], replaced=["n"]) == 1
    assert pins.path.read_text() == f"@cert-authority ca {OTHER}\nn {OTHER}\n"


def test_many_writers_lose_nothing(tmp_path):
    key = known_hosts.parse_key(KEY)
    threads = [
        threading.Thread(target=Pins(tmp_path / "pins").add, args=([(f"n{number}", "", key)],)) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(Pins(tmp_path / "pins").entries()) == 20


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (["inventories/baremetal"], "baremetal"),
        (["inventories/baremetal/hosts.yml"], "baremetal"),
        (["inventories/site/nodes.csv"], "site_nodes.csv"),
        (["other/rack 7"], "other_rack_7"),
        (["/srv/prod/hosts"], "srv_prod"),
        (["inventories/a", "inventories/b"], "a+b"),
        (["../elsewhere/.."], "inventory"),
    ],
)
def test_an_inventory_has_a_name_of_its_own(tmp_path, monkeypatch, sources, name):
    monkeypatch.chdir(tmp_path)
    made = known_hosts.inventory_name(sources, tmp_path)
    if name != "inventory":
        assert made == name
    assert made and "/" not in made and not made.startswith(".")


def test_lists_and_long_names_stay_apart(tmp_path):
    def name(source):
        return known_hosts.inventory_name([source], tmp_path)

    assert name("a,b,") != name("a,c,")
    long = "/srv/" + "x" * 200
    assert name(long + "1") != name(long + "2")
    assert len(name(long)) < 120


def test_arguments_put_trust_first_and_keep_what_the_operator_set(tmp_path):
    pins = pin_file(tmp_path / "state 100%", ["inventories/x"])
    own = "-C -o ControlMaster=auto"
    assert ssh_arguments(pins, own) == f"-o StrictHostKeyChecking=yes {own}"
    Pins(pins).make()
    kex_file(pins).write_text("-o KexAlgorithms=^curve25519-sha256\n")
    made = ssh_arguments(pins, own)
    assert made.startswith("-o StrictHostKeyChecking=yes -o 'UserKnownHostsFile=\"")
    assert "state 100%%" in made and "GlobalKnownHostsFile=none" in made
    assert made.endswith(f"-o 'KexAlgorithms=^curve25519-sha256' {own}")
