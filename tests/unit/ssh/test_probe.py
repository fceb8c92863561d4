"""Trust in host keys, and what a failure of ssh means."""

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import findings as ssh_findings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import openssh
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.findings import Policy, ProbeFinding, Where
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.known_hosts import HostKeyError, lookup, parse, parse_key

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINJJw9zF6wJaUKPrt0/ZLCJlAGwDCVN59/46FWV1gT0p"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
AT = Where("node-1", "192.0.2.11", 2222, "ubuntu")


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "ssh -v -p 2222 ubuntu@192.0.2.11"),
        ({"identityfile": ("~/.ssh/id_rsa", "~/.ssh/id_ed25519")}, "ssh -v -p 2222 ubuntu@192.0.2.11"),
        ({"identityfile": ("~/.ssh/site",)}, "ssh -v -p 2222 -i ~/.ssh/site ubuntu@192.0.2.11"),
        ({"identityfile": ("~/my keys/a",)}, "ssh -v -p 2222 -i ~/'my keys/a' ubuntu@192.0.2.11"),
        ({"identityfile": ("/srv/key",), "proxyjump": ("ops@jump",)},
         "ssh -v -p 2222 -i /srv/key -J ops@jump ubuntu@192.0.2.11"),
        ({"proxyjump": ("none",)}, "ssh -v -p 2222 ubuntu@192.0.2.11"),
    ],
)  # fmt: skip
def test_a_command_to_try_by_hand_has_the_key_and_the_jump_host(settings, command):
    at = replace(AT, settings=settings)
    assert at.login("-v") == command
    finding = ssh_findings.of_ssh_output("kex_exchange: strange\n", at, 4)
    assert command in finding.remedy or at.login() in finding.remedy


SHOWN = parse_key(KEY)


def known(text, file="pins"):
    return lookup(parse(text, Path(file)), AT.host, AT.port)


def line(key):
    return f"{AT.name} {key}\n"


@pytest.mark.parametrize(
    ("policy", "state", "pinned", "new"),
    [
        (Policy(), "reachable", True, True),
        (Policy(accept_new=False), "unknown_host_key", False, False),
        (Policy(pinned=known(line(KEY))), "reachable", False, False),
        (Policy(pinned=known(line(OTHER))), "wrong_host_key", False, False),
        (Policy(pinned=known(line(OTHER)), own=known(line(KEY))), "wrong_host_key", False, False),
        (Policy(own=known(line(KEY)), accept_new=False), "reachable", True, False),
        (Policy(own=known(line(OTHER))), "wrong_host_key", False, False),
        (Policy(plain=known(line(KEY)), accept_new=False), "reachable", True, False),
        (Policy(plain=known(line(OTHER))), "reachable", True, True),
        (Policy(plain=known(line(OTHER)), accept_new=False), "unknown_host_key", False, False),
        (Policy(own=known(f"@revoked * {KEY}\n" + line(KEY))), "wrong_host_key", False, False),
        (Policy(declared=(KEY,), accept_new=False, pinned=known(line(OTHER))), "reachable", True, False),
        (Policy(declared=(SHOWN.fingerprint,), accept_new=False), "reachable", True, False),
        (Policy(declared=(OTHER,), pinned=known(line(KEY))), "wrong_host_key", False, False),
        (Policy(declared=(parse_key(OTHER).fingerprint, KEY)), "reachable", True, False),
        (Policy(declared=(KEY,), own=known(f"@revoked * {KEY}\n")), "wrong_host_key", False, False),
    ],
)
def test_trust(policy, state, pinned, new):
    finding = ssh_findings.trust(SHOWN, policy, AT)
    assert (finding.state, bool(finding.pins), finding.new) == (state, pinned, new)
    assert finding.fingerprint == SHOWN.fingerprint
    if state == "reachable":
        assert all(pin == ("[192.0.2.11]:2222", "", SHOWN) for pin in finding.pins)
    else:
        assert SHOWN.fingerprint in finding.message and finding.remedy


def test_a_changed_key_names_place_both_fingerprints_and_the_command():
    policy = Policy(pinned=known(f"# one\n{line(OTHER)}", "/state/known_hosts/my site"))
    finding = ssh_findings.trust(SHOWN, policy, AT)
    assert "/state/known_hosts/my site:2" in finding.message
    assert parse_key(OTHER).fingerprint in finding.message
    assert "ssh-keygen -R '[192.0.2.11]:2222' -f '/state/known_hosts/my site'" in finding.remedy


def test_a_certificate_authority_is_asked_only_where_no_key_is_known():
    authority = known(f"@cert-authority * {OTHER}\n")
    assert Policy(own=authority).by_authority
    assert not Policy(own=authority, declared=(KEY,)).by_authority
    assert not Policy(own=known(f"@cert-authority * {OTHER}\n{line(KEY)}")).by_authority
    assert not Policy().by_authority


def test_known_types_are_asked_for_first():
    assert Policy(pinned=known(line(KEY)), own=known(line(OTHER))).kinds == ["ssh-ed25519"]
    assert Policy(declared=("SHA256:x", KEY)).kinds == ["ssh-ed25519"]
    assert Policy().kinds == []


def test_declared_keys_are_checked():
    assert ssh_findings.check_declared([f"  {KEY}  comment", SHOWN.fingerprint + "="]) == (KEY, SHOWN.fingerprint)
    for wrong in ("SHA256:short", "MD5:aa:bb", "ssh-ed25519 xyz"):
        with pytest.raises(HostKeyError):
            ssh_findings.check_declared([wrong])


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "refused"),
        (TimeoutError(), "timeout"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "timeout"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no_route"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no_route"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "unknown_name"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "ssh_error"),
    ],
)
def test_what_a_socket_says(error, state):
    finding = ssh_findings.of_socket_error(error, AT, 4)
    assert finding.state == state
    assert AT.host in finding.message and finding.remedy


@pytest.mark.parametrize(
    ("stderr", "proxy", "state"),
    [
        ("ubuntu@192.0.2.11: Permission denied (publickey).\n", "", "login_denied"),
        (
            '"System is booting up. Unprivileged users are not permitted to log in yet."\nConnection closed by x\n',
            "",
            "booting",
        ),
        ("ssh: connect to host 192.0.2.11 port 22: Connection refused\n", "", "refused"),
        ("ssh: connect to host 192.0.2.11 port 22: Connection timed out\n", "", "timeout"),
        ("ssh: connect to host 192.0.2.11 port 22: No route to host\n", "", "no_route"),
        ("ssh: Could not resolve hostname x: Name or service not known\n", "", "unknown_name"),
        ("Connection timed out during banner exchange\nConnection to 192.0.2.11 port 22 timed out\n", "", "hung"),
        (
            "Connection timed out during banner exchange\nConnection to UNKNOWN port 65535 timed out\n",
            "jump",
            "timeout",
        ),
        (
            (
                "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
                "Connection closed by UNKNOWN port 65535\n"
            ),
            "jump",
            "refused",
        ),
        (
            "ubuntu@jump: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535\n",
            "jump",
            "jump_host",
        ),
        (
            (
                "No ED25519 host key is known for jump and you have requested strict checking.\n"
                "Host key verification failed.\nConnection closed by UNKNOWN port 65535\n"
            ),
            "jump",
            "jump_host",
        ),
        ("Host key verification failed.\n", "", "unknown_host_key"),
        ("no matching host key type found. Their offer: ssh-dss\n", "", "ssh_error"),
        ("", "", "ssh_error"),
    ],
)
def test_what_openssh_says(stderr, proxy, state):
    finding = ssh_findings.of_ssh_output(stderr, Where("node-1", "192.0.2.11", 22, "ubuntu", proxy=proxy), 4)
    assert finding.state == state
    assert finding.message and finding.remedy
    assert "UNKNOWN port" not in finding.message


def test_a_login_that_failed_for_a_key_file_says_so():
    stderr = "no such identity: /k: No such file or directory\nu@h: Permission denied (publickey).\n"
    finding = ssh_findings.of_ssh_output(stderr, AT, 4)
    assert finding.state == "login_denied"
    assert "/k: No such file" in finding.message and "Permission denied" in finding.message


@pytest.mark.parametrize(
    ("name", "text", "mode", "said"),
    [
        ("absent", None, 0, "no such file {}: give the file of the private key"),
        ("id.pub", KEY, 0o644, "{} is the public key: give the private key, without .pub"),
        ("id", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o644, "others may read {}, so ssh ignores it: chmod 600 {}"),
        ("id", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600, "check ansible_user, that the key"),
    ],
)
def test_a_login_that_was_denied_for_its_key_file_has_the_remedy_of_the_file(tmp_path, name, text, mode, said):
    path = tmp_path / name
    if text:
        path.write_text(text)
        path.chmod(mode)
    at = replace(AT, settings={"identityfile": (str(path),)})
    finding = ssh_findings.of_ssh_output("u@h: Permission denied (publickey).\n", at, 4)
    assert finding.state == "login_denied"
    assert finding.remedy.startswith(said.format(path, path))


def test_a_key_file_that_cannot_be_read_to_its_end_or_has_no_home_is_named_at_once(tmp_path):
    """To open a FIFO blocks, and a home of an unknown user is no path."""
    os.mkfifo(tmp_path / "pipe")
    assert ssh_findings.key_file_problem(str(tmp_path / "pipe")) == ""
    name = "~no-such-user/id"
    assert ssh_findings.key_file_problem(name) == f"no such file {name}: give the file of the private key"
    assert openssh.ssh_options({"private_key_file": name}.get) == ("-o", f'IdentityFile="{name}"')


def test_an_ssh_that_ended_is_not_waited_for_while_another_session_holds_its_output():
    """With -v, the master that ControlPersist of a jump host starts keeps ssh's stderr open."""
    end = openssh.run_ssh(["sh", "-c", "echo out; echo err >&2; setsid sleep 8 & exit 3"], 5)
    assert (end.code, end.stdout, end.stderr) == (3, "out\n", "err\n")


def test_effective_settings():
    settings = ssh_findings.effective(
        "hostname 192.0.2.11\nport 2222\nuser a b\nidentityfile ~/.ssh/a\nidentityfile ~/.ssh/b\n"
        'userknownhostsfile "/a b/kh" /c\nproxycommand none\nproxyjump jump\n'
    )
    at = ssh_findings.where("n", settings)
    assert (at.host, at.port, at.user, at.proxy, at.name) == ("192.0.2.11", 2222, "a b", "jump", "[192.0.2.11]:2222")
    assert settings["identityfile"] == ("~/.ssh/a", "~/.ssh/b")
    assert ssh_findings.key_files(settings, "userknownhostsfile") == [Path("/a b/kh"), Path("/c")]


def test_the_summary_groups_and_stays_short():
    findings = {f"n{number:03}": ProbeFinding("timeout", f"n{number} did not answer", "look") for number in range(50)}
    findings["ok"] = ProbeFinding("reachable", "")
    findings["new"] = ProbeFinding("reachable", "", fingerprint="SHA256:x", new=True)
    lines = ssh_findings.summary(findings, 4.21, Path("/pins"))
    assert lines[0] == "probe: 2 of 52 node(s) reachable, 4.2 s"
    assert "timeout (50): n000, " in lines[1] and lines[1].endswith(" and 38 more")
    assert any("pinned in /pins" in text for text in lines) and len(lines) < 8


def test_what_a_node_says_cannot_write_on_the_terminal():
    finding = ssh_findings.no_ssh(AT, b"\x1b[2Jevil\r\nx")
    assert "\x1b" not in finding.message and "\n" not in finding.document()["message"]
