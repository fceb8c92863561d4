"""Every way a node can be away is caused for real, and the probe names it; a changed host key is refused by all."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import prober as ssh_prober
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.known_hosts import Pins
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.openssh import LoginSecrets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.prober import pin

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT, Fleet
from tests.kit.needs import needs_programs, needs_root
from tests.kit.ports import free_port
from tests.kit.processes import all_pids, read
from tests.kit.ssh import USER, Blackhole, Listener, Sshd, new_key


@pytest.fixture(scope="module", autouse=True)
def server():
    needs_programs({"sshd": "openssh-server"})


class Site(Fleet):
    """An inventory of SSH nodes, without the settings that a run needs."""

    @property
    def variables(self):
        return {
            "gpuval_results_dir": str(self.results),
            "gpuval_state_dir": str(self.root / "state"),
            "gpuval_node_dir": str(self.root / "node" / "{{ inventory_hostname }}"),
            "ansible_python_interpreter": sys.executable,
            # a connection that outlives its play would be used again without a look at the host key
            "ansible_ssh_args": "-o ControlMaster=no",
            **self.settings,
        }

    @property
    def environment(self):
        kept = {name: os.environ[name] for name in ("SSH_AUTH_SOCK",) if name in os.environ}
        return {**super().environment, **kept}

    def probe(self, *arguments, **options):
        return self.play("gpuval.fleet.probe", "-e", "probe_required=false", *arguments, seconds=180, **options)

    def findings(self, *arguments, **options):
        """What the action returns."""
        self.more_environment = {"ANSIBLE_CALLBACKS_ENABLED": "result", "GPUVAL_TESTS_RESULT": "Probe the nodes"}
        done = self.probe(*arguments, **options)
        (result,) = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
        self.more_environment = {}
        return result

    @property
    def pins(self):
        (file,) = [path for path in (self.root / "state/known_hosts").iterdir() if not path.name.startswith(".")]
        return file

    def close(self):
        for playing in self._playing:
            playing.kill()


@pytest.fixture
def started():
    """Servers that are stopped at the end, whatever happens."""
    servers = []
    yield lambda server: servers.append(server) or server
    for server in servers:
        server.stop()


@pytest.fixture
def new_site(tmp_path):
    sites = []

    def make(nodes, **settings):
        sites.append(Site(tmp_path / f"site{len(sites)}", nodes=nodes, settings=settings))
        sites[-1].root.mkdir()
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def ssh_processes(needle):
    return [read(pid, "cmdline") for pid in all_pids() if needle.encode() in read(pid, "cmdline")]


def states(result):
    return {name: finding["state"] for name, finding in result["nodes"].items()}


def test_a_local_host_that_comes_first_says_nothing_of_the_others(new_site):
    away = {"ansible_host": "127.0.0.1", "ansible_port": free_port()}
    site = new_site({"controller": {"ansible_connection": "local"}, "node": away}, gpuval_probe_timeout_seconds=10)
    assert states(site.findings()) == {"controller": "reachable", "node": "refused"}
    assert states(site.findings("--connection=local")) == {"controller": "reachable", "node": "reachable"}


def test_each_way_to_be_away_has_its_name_and_costs_the_others_nothing(new_site, started, tmp_path):
    good = started(Sshd(tmp_path / "good"))
    dead, silent = started(Blackhole()), started(Listener())
    web, closing = started(Listener(b"HTTP/1.1 400 Bad Request\r\n\r\n")), started(Listener(close=True))
    new_key(tmp_path / "stranger")
    here = good.variables
    site = new_site(
        {
            **{f"good-{number}": here for number in range(9)},
            "dead": {**here, "ansible_port": dead.port},
            "refused": {**here, "ansible_port": free_port()},
            "silent": {**here, "ansible_port": silent.port},
            "web": {**here, "ansible_port": web.port},
            "closing": {**here, "ansible_port": closing.port},
            "no-name": {**here, "ansible_host": "no-such-node.invalid"},
            "denied": {**here, "ansible_ssh_private_key_file": str(tmp_path / "stranger")},
            "local": {"ansible_connection": "local"},
        },
        gpuval_probe_timeout_seconds=10,
    )
    result = site.findings()
    assert states(result) == {
        **{f"good-{number}": "reachable" for number in range(9)},
        "dead": "timeout",
        "refused": "refused",
        "silent": "hung",
        "web": "no_ssh",
        "closing": "refused",
        "no-name": "unknown_name",
        "denied": "login_denied",
        "local": "reachable",
    }
    for name, finding in result["nodes"].items():
        assert finding["message"], name
        assert bool(finding["remedy"]) == (finding["state"] != "reachable"), name
    assert "Permission denied" in result["nodes"]["denied"]["message"]
    assert set(result["away"]) == {"dead", "refused", "silent", "web", "closing", "no-name", "denied"}


def test_one_dead_node_of_ten_costs_the_connect_timeout_once(new_site, started, tmp_path):
    good, dead, limit = started(Sshd(tmp_path / "good")), started(Blackhole()), 8
    nodes = {f"good-{number}": good.variables for number in range(9)}
    declared = {**nodes, "dead": {**good.variables, "ansible_port": dead.port}}
    result = new_site(declared, gpuval_probe_timeout_seconds=limit).findings()
    assert states(result) == {**dict.fromkeys(nodes, "reachable"), "dead": "timeout"}
    assert limit - 0.1 < result["nodes"]["dead"]["seconds"] < 2 * limit
    assert result["seconds"] < 2 * limit
    assert max(result["nodes"][name]["seconds"] for name in nodes) < limit


def test_many_nodes_at_once_leave_nothing(new_site, started, tmp_path):
    good = started(Sshd(tmp_path / "good"))
    site = new_site({f"node-{number:03}": good.variables for number in range(40)})
    assert set(states(site.findings()).values()) == {"reachable"}
    assert not [line for line in ssh_processes(str(good.port)) if line.startswith(b"ssh\0")]
    deadline = time.monotonic() + 60
    while (sessions := re.findall(rf":{good.port:04X} \S+ 01 ", Path("/proc/net/tcp").read_text())) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert not sessions


def test_the_first_key_is_pinned_and_another_one_is_refused_by_probe_and_ansible(new_site, started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    site = new_site({"node-1": node.variables})
    done = site.probe()
    assert done.code == 0 and node.fingerprint() in done.told and "first time" in done.told
    assert site.pins.stat().st_mode & 0o777 == 0o600
    assert site.pins.read_text() == f"[127.0.0.1]:{node.port} {node.host_key()}\n"
    again = site.probe()
    assert "first time" not in again.told and again.recap("node-1")["changed"] == 0

    ping = site.root / "ping.yml"
    ping.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.import_role: {name: gpuval.fleet.gpuval}\n    - ansible.builtin.ping:\n"
    )
    assert site.play(str(ping)).code == 0
    old = node.fingerprint()
    node.change_host_key()
    finding = site.findings()["nodes"]["node-1"]
    assert finding["state"] == "wrong_host_key"
    for told in (old, node.fingerprint(), f"{site.pins}:1"):
        assert told in finding["message"]
    refused = site.play(str(ping))
    assert refused.code != 0 and "IDENTIFICATION HAS CHANGED" in refused.told and refused.recap("node-1")["unreachable"]
    # nothing that the operator sets turns the check off
    off = site.play(
        str(ping),
        nodes={"node-1": {**node.variables, "ansible_ssh_common_args": LAX, "ansible_host_key_checking": False}},
    )
    assert off.code != 0 and "IDENTIFICATION HAS CHANGED" in off.told

    command = finding["remedy"].partition("ssh-keygen -R")[2]
    subprocess.run(f"ssh-keygen -R {command}", shell=True, check=True, capture_output=True, timeout=60)
    assert site.findings()["nodes"]["node-1"]["state"] == "reachable"
    assert site.play(str(ping)).code == 0


#: What ssh-add ends with where no agent answers.
NO_AGENT = 2
LAX = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


def test_first_contact_can_be_forbidden_and_own_known_hosts_are_used(new_site, started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    site = new_site({"node-1": node.variables}, gpuval_accept_new_host_keys=False)
    finding = site.findings()["nodes"]["node-1"]
    assert (finding["state"], finding["fingerprint"]) == ("unknown_host_key", node.fingerprint())
    assert site.pins.read_text() == ""
    known = tmp_path / "known_hosts"
    own = {"ansible_ssh_common_args": f"-o UserKnownHostsFile={known}"}
    known.write_text(f"[127.0.0.1]:{node.port} {node.host_key()}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True, timeout=60)
    assert "127.0.0.1" not in known.read_text()
    assert states(site.findings(nodes={"node-1": {**node.variables, **own}})) == {"node-1": "reachable"}
    assert node.host_key() in site.pins.read_text()
    # what the operator knows is not overruled by a first contact
    other = new_site({"node-1": {**node.variables, **own}})
    node.change_host_key()
    finding = other.findings()["nodes"]["node-1"]
    assert finding["state"] == "wrong_host_key" and f"{known}:1" in finding["message"]


@pytest.mark.parametrize("declared", ["key", "fingerprint", "fingerprint of another key"])
def test_a_declared_host_key_is_the_only_one_accepted(new_site, started, tmp_path, declared):
    node = started(Sshd(tmp_path / "node", kinds=("ed25519", "rsa")))
    kind = "rsa" if "another" in declared else "ed25519"
    value = node.host_key() if declared == "key" else node.fingerprint(kind)
    site = new_site({"node-1": {**node.variables, "gpuval_host_keys": [value]}}, gpuval_accept_new_host_keys=False)
    assert states(site.findings()) == {"node-1": "reachable"}
    assert site.pins.read_text() == f"[127.0.0.1]:{node.port} {node.host_key(kind)}\n"
    node.change_host_key()
    finding = site.findings()["nodes"]["node-1"]
    assert finding["state"] == "wrong_host_key" and "inventory declares" in finding["message"]


def test_through_a_jump_host(new_site, started, tmp_path):
    jump, node = started(Sshd(tmp_path / "jump")), started(Sshd(tmp_path / "node"))
    dead = started(Blackhole())
    config = tmp_path / "ssh_config"
    known = tmp_path / "jump_known"
    known.write_text(f"[127.0.0.1]:{jump.port} {jump.host_key()}\n")
    config.write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.port}\n User {USER}\n IdentityFile {jump.user_key}\n"
        f" UserKnownHostsFile {known}\nHost behind\n HostName 127.0.0.1\n Port {node.port}\n ProxyJump jump\n"
    )
    through = {
        "ansible_user": USER,
        "ansible_ssh_private_key_file": str(node.user_key),
        "ansible_ssh_common_args": f"-F {config}",
    }
    by_variable = {**node.variables, "ansible_ssh_common_args": f"-F {config} -o ProxyJump=jump"}
    new_key(tmp_path / "stranger")
    site = new_site(
        {
            "behind": through,
            "by-variable": by_variable,
            "refused": {**by_variable, "ansible_port": free_port()},
            "dead": {**by_variable, "ansible_port": dead.port},
            "denied": {**by_variable, "ansible_ssh_private_key_file": str(tmp_path / "stranger")},
            "no-jump": {**node.variables, "ansible_ssh_common_args": f"-F {config} -J nowhere.invalid"},
        },
        gpuval_probe_timeout_seconds=4,  # two logins and the banner of the second have to come within it
    )
    result = site.findings()
    found = states(result)
    assert found.pop("dead") in ("timeout", "hung"), "which of the two limits ends it is a matter of the machine's load"
    assert found == {
        "behind": "reachable",
        "by-variable": "reachable",
        "refused": "refused",
        "denied": "login_denied",
        "no-jump": "jump_host",
    }, result
    assert site.pins.read_text() == f"[127.0.0.1]:{node.port} {node.host_key()}\n"
    assert not ssh_processes(str(config))
    node.change_host_key()
    finding = site.findings()["nodes"]["behind"]
    assert finding["state"] == "wrong_host_key" and f"{site.pins}:1" in finding["message"]


def test_a_login_with_a_key_of_the_agent(new_site, started, tmp_path, monkeypatch):
    node = started(Sshd(tmp_path / "node"))
    agent = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        while subprocess.run(["ssh-add", "-l"], check=False, capture_output=True, timeout=60).returncode == NO_AGENT:
            assert process.poll() is None  # the socket is there before it listens
            time.sleep(0.05)
        subprocess.run(["ssh-add", "-q", str(node.user_key)], check=True, timeout=60)
        variables = {name: value for name, value in node.variables.items() if "key_file" not in name}
        site = new_site({"node-1": variables})
        assert states(site.findings()) == {"node-1": "reachable"}
        subprocess.run(["ssh-add", "-q", "-D"], check=True, timeout=60, capture_output=True)
        assert probed(node, tmp_path, "-o", "AddKeysToAgent=yes").state == "reachable"
        listed = subprocess.run(["ssh-add", "-l"], check=False, capture_output=True, text=True, timeout=60)
        assert "no identities" in listed.stdout, "a probe leaves no key with the operator's agent"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("passphrase", "state", "told"),
    [
        ("correct horse", "reachable", ""),
        ("", "login_denied", "ansible_ssh_private_key_passphrase"),
        ("wrong", "login_denied", "ansible_ssh_private_key_passphrase"),
    ],
)
def test_a_login_with_a_key_in_a_variable_and_its_passphrase(new_site, started, tmp_path, passphrase, state, told):
    node = started(Sshd(tmp_path / "node"))
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "correct horse", "-f", str(node.user_key)]
    subprocess.run(change, check=True, capture_output=True, timeout=60)
    variables = {name: value for name, value in node.variables.items() if "key_file" not in name}
    variables |= {
        "ansible_ssh_private_key": node.user_key.read_text(),
        "ansible_ssh_private_key_passphrase": passphrase,
    }
    site = new_site({"node-1": variables})
    finding = site.findings()["nodes"]["node-1"]
    assert finding["state"] == state and told in finding["remedy"], finding
    assert bool(finding["remedy"]) == (state != "reachable")
    new_key(tmp_path / "stranger")
    stranger = {**variables, "ansible_ssh_private_key": (tmp_path / "stranger").read_text()}
    finding = site.findings(nodes={"node-1": {**stranger, "ansible_ssh_private_key_passphrase": ""}})["nodes"]["node-1"]
    assert finding["state"] == "login_denied" and "was refused" in finding["message"]


@pytest.fixture
def server_of_passwords(started, tmp_path):
    """Starts an sshd for which the user of the tests has the password "correct horse"."""
    needs_root("to give sshd an /etc/shadow of its own")
    told = subprocess.run(["openssl", "passwd", "-6", "correct horse"], check=True, capture_output=True, text=True)
    (tmp_path / "shadow").write_text(f"{USER}:{told.stdout.strip()}:20000:0:99999:7:::\n")
    within = ("unshare", "-m", "sh", "-c", f'mount --bind {tmp_path}/shadow /etc/shadow && exec "$@"', "sh")
    lines = ["PasswordAuthentication yes", "PermitRootLogin yes"]

    def make(*more):
        return started(Sshd(tmp_path / "node", lines=[*lines, *more], within=within))

    return make


@pytest.mark.parametrize(
    ("password", "line", "state", "told"),
    [
        ("correct horse", "PubkeyAuthentication no", "reachable", ""),
        ("wrong", "PubkeyAuthentication no", "login_denied", "password and keys were refused"),
        ("correct horse", "AuthenticationMethods password,publickey", "login_denied", "password alone is not enough"),
    ],
)
def test_a_login_with_a_password(new_site, server_of_passwords, password, line, state, told):
    node = server_of_passwords(line)
    variables = {name: value for name, value in node.variables.items() if "key_file" not in name}
    site = new_site({"node-1": {**variables, "ansible_password": password}})
    finding = site.findings()["nodes"]["node-1"]
    assert finding["state"] == state and told in finding["message"], finding
    assert node.host_key() in site.pins.read_text()


def test_a_password_is_shown_to_no_host_with_another_key(new_site, server_of_passwords):
    node = server_of_passwords("PubkeyAuthentication no")
    variables = {name: value for name, value in node.variables.items() if "key_file" not in name}
    site = new_site({"node-1": {**variables, "ansible_password": "correct horse"}})
    assert states(site.findings()) == {"node-1": "reachable"}
    assert "Accepted password" in (node.folder / "log").read_text()
    node.change_host_key()
    (node.folder / "log").write_text("")
    assert states(site.findings()) == {"node-1": "wrong_host_key"}
    assert "password" not in (node.folder / "log").read_text()


def test_a_jump_host_is_not_given_the_password_of_a_node(started, tmp_path):
    jump, node = started(Sshd(tmp_path / "jump")), started(Sshd(tmp_path / "node"))
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.port}\n User {USER}\n IdentityFile {jump.user_key}\n"
        f" StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\nHost node\n HostName 127.0.0.1\n"
        f" Port {node.port}\n ProxyJump jump\n"
    )
    secrets = LoginSecrets(password="of the node")
    target = ssh_prober.SshTarget("node-1", host="node", options=("-F", str(config)), secrets=secrets)
    finding = ssh_prober.Prober(Pins(tmp_path / "pins"), 10, accept_new=True).probe(target)
    assert finding.state == "reachable" and "the login was not tried" in finding.message and finding.pins, finding


def test_a_key_file_that_others_may_read_is_denied_with_its_remedy(new_site, started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    node.user_key.chmod(0o644)
    finding = new_site({"node-1": node.variables}).findings()["nodes"]["node-1"]
    assert finding["state"] == "login_denied" and finding["remedy"].endswith(f"chmod 600 {node.user_key}")


def test_a_host_that_only_a_certificate_proves(new_site, started, tmp_path):
    node = Sshd(tmp_path / "node")
    started(node).stop()
    authority = tmp_path / "authority"
    new_key(authority)
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "node", "-h", "-n", "127.0.0.1"]
    subprocess.run([*sign, f"{node.folder}/host_ed25519.pub"], check=True, timeout=60)
    node.lines = [f"HostCertificate {node.folder}/host_ed25519-cert.pub"]
    node.start()
    known = tmp_path / "known_hosts"
    known.write_text(f"@cert-authority [127.0.0.1]:* {Path(f'{authority}.pub').read_text()}")
    variables = {**node.variables, "ansible_ssh_common_args": f"-o UserKnownHostsFile={known}"}
    site = new_site({"node-1": variables}, gpuval_accept_new_host_keys=False)
    assert states(site.findings()) == {"node-1": "reachable"}
    assert site.pins.read_text().startswith(f"@cert-authority [127.0.0.1]:{node.port} ")
    new_key(tmp_path / "other")
    known.write_text(f"@cert-authority [127.0.0.1]:* {(tmp_path / 'other.pub').read_text()}")
    fresh = new_site({"node-1": variables})
    assert fresh.findings()["nodes"]["node-1"]["state"] in ("unknown_host_key", "wrong_host_key")


def probed(node, folder, *options):
    """The finding for a node with these options of Ansible's, and its key pinned."""
    target = ssh_prober.SshTarget(
        "node-1",
        host="127.0.0.1",
        options=(
            *(*options, "-F", "none", "-o", f"Port={node.port}", "-o", f"User={USER}"),
            *("-o", f'IdentityFile="{node.user_key}"', "-o", "UserKnownHostsFile=/dev/null"),
        ),
    )
    pins = Pins(folder / "pins")
    finding = ssh_prober.Prober(pins, 10, accept_new=True).probe(target)
    pin(pins, {"node-1": finding})
    return finding


def test_a_quiet_ssh_says_which_key_it_saw_all_the_same(started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    assert probed(node, tmp_path, "-q").fingerprint == node.fingerprint()
    node.change_host_key()
    assert probed(node, tmp_path, "-q").state == "wrong_host_key"


def test_a_key_that_a_command_of_the_operator_knows_does_not_replace_the_pinned_one(started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    assert probed(node, tmp_path).state == "reachable"
    node.change_host_key()
    known = tmp_path / "known"
    known.write_text(f"#!/bin/sh\necho '[127.0.0.1]:{node.port} {node.host_key()}'\n")
    known.chmod(0o755)
    assert probed(node, tmp_path, "-o", f"KnownHostsCommand={known}").state == "wrong_host_key"


def test_the_key_of_a_certificate_by_an_unknown_authority_is_pinned(started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    node.stop()
    new_key(tmp_path / "authority")
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "authority"), "-I", "node", "-h", "-n", "127.0.0.1"]
    subprocess.run([*sign, f"{node.folder}/host_ed25519.pub"], check=True, timeout=60)
    node.lines = [f"HostCertificate {node.folder}/host_ed25519-cert.pub"]
    node.start()
    finding = probed(node, tmp_path)
    assert (finding.state, finding.fingerprint, finding.new) == ("reachable", node.fingerprint(), True)
    assert probed(node, tmp_path).new is False


@pytest.mark.parametrize(("number", "is_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_an_ended_probe_leaves_no_ssh(new_site, started, tmp_path, number, is_group):
    node = started(Sshd(tmp_path / "node", lines=["ForceCommand sleep 600"]))
    site = new_site({f"node-{count}": node.variables for count in range(3)})
    site.home.mkdir(parents=True, exist_ok=True)
    inventory = site.root / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": site.nodes, "vars": site.variables}}))
    playing = subprocess.Popen(
        [*PROGRAM, "gpuval.fleet.probe", "-i", str(inventory)],
        env={**site.environment, "ANSIBLE_CALLBACKS_ENABLED": "gpuval.fleet.acceptance"},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def logins():
        return [line for line in ssh_processes(f"Port={node.port}") if line.endswith(b"\0true\0")]

    def wait_for(count):
        deadline = time.monotonic() + 60
        while len(logins()) != count and time.monotonic() < deadline:
            time.sleep(0.1)
        return logins()

    try:
        assert len(wait_for(3)) == 3
        (os.killpg if is_group else os.kill)(playing.pid, number)
        assert playing.wait(60) == 99
        assert not wait_for(0)
    finally:
        playing.kill()
        playing.wait()


def test_a_broken_ssh_config_and_a_missing_client_are_reported(new_site, started, tmp_path):
    node = started(Sshd(tmp_path / "node"))
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n NoSuchOption yes\n")
    site = new_site(
        {
            "config": {**node.variables, "ansible_ssh_common_args": f"-F {config}"},
            "client": {**node.variables, "ansible_ssh_executable": "/no/such/ssh"},
        }
    )
    nodes = site.findings()["nodes"]
    assert nodes["config"]["state"] == nodes["client"]["state"] == "ssh_error"
    assert "nosuchoption" in nodes["config"]["message"].lower()
    assert "install the OpenSSH client" in nodes["client"]["remedy"]


@pytest.mark.parametrize(
    ("greeting", "close", "state", "told"),
    [
        (b"SSH-2.0-x\r\n", False, "hung", "completes no key exchange"),
        (b"SSH-2.0-x debug1: Server host key: ssh-ed25519 SHA256:x\r\n", False, "hung", "completes no key exchange"),
        (b"SSH-2.0-x\r\n", True, "refused", "closed the connection"),
        (b"SSH-2.0-x\r\n" + b"\xff" * 400, False, "no_ssh", "authentication code incorrect"),
        (b"220 mail\r\n", False, "no_ssh", "220 mail"),
    ],
)
def test_a_server_that_only_begins_as_sshd_does(started, tmp_path, monkeypatch, greeting, close, state, told):
    monkeypatch.setattr(ssh_prober, "COMMAND_SECONDS", 1)
    port = started(Listener(greeting, close=close)).port
    target = ssh_prober.SshTarget("node-1", host="127.0.0.1", options=("-F", "none", "-o", f"Port={port}"))
    finding = ssh_prober.Prober(Pins(tmp_path / "pins"), 1, accept_new=True).probe(target)
    assert finding.state == state and told in finding.message, finding
    assert not finding.pins and not finding.fingerprint


@pytest.mark.parametrize(
    ("forced", "state", "seconds"), [("sleep 600", "hung", 2), ("echo go away; exit 3", "login_denied", 60)]
)
def test_a_login_that_leads_nowhere(started, tmp_path, monkeypatch, forced, state, seconds):
    """Ansible would wait for such a node, and hold up its tasks on all others."""
    monkeypatch.setattr(ssh_prober, "COMMAND_SECONDS", seconds)
    node = started(Sshd(tmp_path / "node", lines=[f"ForceCommand {forced}"]))
    options = ("-F", "none", "-o", f"Port={node.port}", "-o", f'IdentityFile="{node.user_key}"', "-o", f"User={USER}")
    prober = ssh_prober.Prober(Pins(tmp_path / "pins"), 4, accept_new=True)
    finding = prober.probe_all([ssh_prober.SshTarget("node-1", host="127.0.0.1", options=options)])["node-1"]
    assert finding.state == state
    assert finding.new and finding.pins  # it is the node all the same, and the next contact must be with it
    if state == "login_denied":
        assert "status 3" in finding.message and "go away" in finding.message
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("gpuval-", "Thread-probe"))]
    assert not ssh_processes(str(node.port))
