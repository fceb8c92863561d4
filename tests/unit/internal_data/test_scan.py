"""The last scan knows by itself what must not be in a delivery, and finds it in each encoding that is redacted."""

import ast
import base64
import json
import re
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from ansible.errors import AnsibleUndefinedVariable
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import SecretRedactor
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import clean_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data import scan
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.scan import (
    InternalDataScan,
    ScanTargets,
    read_targets,
)
from hypothesis import given
from hypothesis import strategies as st

RUN = {"nodes": {"node-1": {}, "node-2": {}}}


def test_it_shares_no_code_with_what_it_checks():
    tree = ast.parse(Path(scan.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level}
    assert imported == {"ordinary_names"}


class Variables(dict):
    """As Ansible's: a template without a value fails when it is read."""

    def __getitem__(self, name):
        if name == "broken_token":
            raise AnsibleUndefinedVariable("no value")
        return super().__getitem__(name)


def test_targets_are_read_from_inventory_settings_and_run():
    inventory = {
        "node-1": Variables(
            ansible_host="203.0.113.9",
            ansible_become_pass="sudo-pass-word",
            broken_token="{{ nothing }}",
            gpuval_environment={
                "MY_TOKEN": "environment-token",
                "NCCL_DEBUG": "INFO",
                "DB": {"password": "deep-one"},
            },
            gpuval_secrets={"HUB": "hub-value", "HUB_USERNAME": "a-user-name"},
            ansible_ssh_private_key_file="/home/me/.ssh/id_rsa",
            site_monkey="not-a-secret",
        ),
        "node-2": Variables(ansible_host="gpu2.corp"),
    }
    settings = {"s3_secret_key": "customer-key", "store": {"access_key": "store-access", "bucket": "a-bucket-name"}}
    targets = read_targets(RUN, inventory, settings, {"HF_TOKEN": "hub-token-1", "HOME": "/home/me"})
    assert targets.names == {"node-1", "node-2", "gpu2.corp"}
    assert targets.addresses == {"203.0.113.9"}
    assert targets.secrets == {
        *("sudo-pass-word", "environment-token", "deep-one", "hub-value"),
        *("customer-key", "store-access", "hub-token-1"),
    }


def test_loopback_is_no_address_of_a_node_and_a_claimed_worker_is_still_a_worker():
    targets = ScanTargets({"node-1"}, set(), {"127.0.0.1", "10.0.0.9"}, claimed={"node-1", "gpu-host"})
    found = {
        text: list(InternalDataScan(targets, {"id-1"}).text(text))
        for text in ("127.0.0.1", "10.0.0.9", "node-1", "gpu-host")
    }
    assert found == {
        "127.0.0.1": [],
        "10.0.0.9": ["the address of a node"],
        "node-1": ["the name of a worker"],
        "gpu-host": [],
    }


def lower_hex(text):
    return re.sub("%[0-9A-F]{2}", lambda found: found.group().lower(), text)


def in_base64(encode, offset):
    return lambda secret: encode(b"u:x"[:offset] + secret.encode() + b" tail").decode()


ENCODINGS = {
    "plain": str,
    "quoted": quote,
    "quoted whole": lambda secret: quote(secret, safe=""),
    "quoted for forms": quote_plus,
    "quoted in lower case": lambda secret: lower_hex(quote(secret, safe="")),
    "quoted twice": lambda secret: quote(quote(secret, safe=""), safe=""),
    "JSON": lambda secret: json.dumps({"a": secret}),
    "hex": lambda secret: secret.encode().hex(),
    "hex in upper case": lambda secret: secret.encode().hex().upper(),
    "JSON in UTF-8": lambda secret: json.dumps([secret], ensure_ascii=False),
    **{f"base64 at {offset}": in_base64(base64.b64encode, offset) for offset in range(4)},
    **{f"base64 for URLs at {offset}": in_base64(base64.urlsafe_b64encode, offset) for offset in range(4)},
}
SECRETS = st.text(st.sampled_from("abcXYZ019+/=_-~.:;!\"'\\%&#@ ü€"), min_size=8, max_size=40).filter(
    lambda secret: len(secret.strip()) >= 8 and secret == secret.strip()
)


@pytest.mark.parametrize("name", ENCODINGS)
@given(secret=SECRETS)
def test_a_secret_in_any_encoding_is_hidden_and_would_be_found(name, secret):
    encoded = ENCODINGS[name](secret)
    text = f"careless: {encoded} end"
    known = InternalDataScan(ScanTargets(secrets={secret}), ())
    assert name == "quoted for forms" or list(known.text(text))
    assert encoded not in SecretRedactor([secret])(text)
    shown = InternalDataConverter(InternalData(names={}, secrets=frozenset({secret}))).text(text)
    assert not list(known.text(shown))


@given(secret=SECRETS, cut=st.integers(1, 7), escape=st.sampled_from(["\x1b[31m", "\x1b]0;t\x07", "\x00", "\u200b"]))
def test_a_secret_that_escapes_interrupt_is_hidden(secret, cut, escape):
    shown = SecretRedactor([secret])(f"careless: {secret[:cut]}{escape}{secret[cut:]} end")
    assert secret not in clean_text(shown)
