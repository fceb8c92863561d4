"""Keys of a run: made once, closed to others, and OpenSSH takes the files as they are."""

import shutil
import subprocess
import threading
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps.run_ssh_keys import run_ssh_keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import run_keys
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.run_keys import RunKeys, RunKeysError

ADDRESSES = {"a": ["192.0.2.1"], "b": ["192.0.2.2", "2001:db8::2"]}


@pytest.fixture
def keys(tmp_path):
    return RunKeys(tmp_path / "run" / ".state" / "ssh")


def made(keys, node="a", port=3022):
    with keys.locked():
        return run_keys.node_files("run-1", node, keys, ADDRESSES, port)


def test_the_pair_is_the_runs_and_host_keys_are_the_nodes(keys):
    a, b = made(keys, "a"), made(keys, "b")
    assert a["id_ed25519"] == b["id_ed25519"] and a["authorized_keys"] == b["authorized_keys"]
    assert a["ssh_host_ed25519_key"] != b["ssh_host_ed25519_key"] != a["id_ed25519"]
    assert a == made(keys, "a")
    for name, node in (("ssh_host_ed25519_key", "a"), ("ssh_host_ed25519_key", "b")):
        public = made(keys, node)[f"{name}.pub"].split()[1]
        assert f"{public}\n" in a["known_hosts"]


def test_only_the_nodes_of_the_run_may_come(keys):
    (line,) = made(keys)["authorized_keys"].splitlines()
    options, kind, _ = line.split(" ", 2)
    assert options == 'restrict,from="192.0.2.1,192.0.2.2,2001:db8::2"'
    assert kind == "ssh-ed25519"


def test_known_hosts_name_each_node_with_its_port(keys):
    names = [line.split()[0] for line in made(keys, port=3022)["known_hosts"].splitlines()]
    assert names == ["[a]:3022,[192.0.2.1]:3022", "[b]:3022,[192.0.2.2]:3022,[2001:db8::2]:3022"]


def test_what_lies_on_the_controller_is_closed_to_others_and_goes(keys):
    made(keys)
    assert keys.folder.stat().st_mode & 0o777 == 0o700
    secrets = [path for path in keys.folder.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(secrets) == 6
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    assert keys.remove() and not keys.folder.exists() and not keys.remove()


def test_nodes_served_at_once_get_the_same_pair(keys):
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(made(keys)["id_ed25519"])) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 12 and len(set(seen)) == 1


def test_a_node_has_exactly_the_files_and_keeps_the_old_ones_if_it_cannot(tmp_path):
    step = SimpleNamespace(check_mode=False), str(tmp_path / "base"), "run-1", "a"
    answer = run_ssh_keys(*step, {"id": "1", "known_hosts": "x"})
    folder = tmp_path / "base" / "run-1" / "a" / "ssh"
    assert answer == {"changed": True, "directory": str(folder), "files": ["id", "known_hosts"]}
    (folder / "other").touch()
    (folder / "id").chmod(0o644)
    assert run_ssh_keys(*step, {"id": "1", "known_hosts": "x"})["files"] == ["id", "other"]
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"id": 0o600, "known_hosts": 0o600}
    (folder / "id.new").mkdir()  # where the file is written first
    with pytest.raises(NodeError):
        run_ssh_keys(*step, {"id.new": "1", "id": "2", "known_hosts": "y"})
    assert (folder / "id").read_text() == "1"
    assert (folder / "known_hosts").read_text() == "x"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs the OpenSSH client")
def test_openssh_takes_the_files(keys, tmp_path):
    for name, text in made(keys).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        done = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(tmp_path / name)], check=True, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.split()[1] == (tmp_path / f"{name}.pub").read_text().split()[1]
    command = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), "b"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    for line in ("hostname 192.0.2.2", "port 3022", "stricthostkeychecking true", "identitiesonly yes"):
        assert line in told
    found = ["ssh-keygen", "-F", "[2001:db8::2]:3022", "-f", str(tmp_path / "known_hosts")]
    assert subprocess.run(found, capture_output=True, timeout=60, check=False).returncode == 0


def test_names_are_looked_up_and_what_has_no_address_is_named(keys):
    assert "127.0.0.1" in run_keys.resolve({"a": ["localhost"], "b": ["192.0.2.2"]})["a"]
    with pytest.raises(RunKeysError, match=r"b has no address .*no-such\.invalid.* ssh_keys_addresses"):
        run_keys.resolve({"a": ["192.0.2.1"], "b": ["no-such.invalid"]})
    with keys.locked():
        assert keys.resolved({"a": ["192.0.2.1"]}) == {"a": ["192.0.2.1"]}
        assert keys.resolved({"a": ["192.0.2.9"]}) == {"a": ["192.0.2.9"]}


def test_a_slow_name_service_is_asked_for_all_names_at_one_time(monkeypatch):
    """Else the names of a large fleet would not be known within the deadline."""
    together = threading.Barrier(100, timeout=20)

    def look_up(name, _port, **_options):
        together.wait()
        return [(0, 0, 0, "", (f"192.0.2.{name[4:]}", 0))]

    monkeypatch.setattr(run_keys.socket, "getaddrinfo", look_up)
    found = run_keys.resolve({f"gpu-{number}": [f"gpu-{number}"] for number in range(100)})
    assert found == {f"gpu-{number}": [f"192.0.2.{number}"] for number in range(100)}
