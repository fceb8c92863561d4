"""What a customer may read of a text: names converted whole, nothing internal, versions left alone."""

import base64
import json
import time
from urllib.parse import quote

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import any_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.scan import InternalDataScan, ScanTargets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.sensitive import Sensitive, jumps
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.planted_secrets import forms, plant

SECRET = "S3cret+value/with=signs"
KNOWN = InternalData(
    names={"node-1": "atl-0001", "node-10": "atl-0010", "node-2": "node-3", "node-3": "node-2",
           "10.9.8.7": "by-address", "node0": "atl-0000", "localhost": "atl-9999"},
    aliases={"gpu-host-17": "atl-0010"},
    secrets=frozenset({SECRET}),
    addresses=frozenset({"203.0.113.9", "2001:db8::17"}),
    macs=frozenset({"02:fc:00:00:00:01"}),
    hosts=frozenset({"jump.corp.example"}),
    users=frozenset({"alice"}),
    folders={"/srv/alice/gpuval": "project"},
    run_id="run-7",
)  # fmt: skip

TEXTS = {
    "a name": ("on node-1 now", "on atl-0001 now"),
    "a longer name": ("node-10 node-1", "atl-0010 atl-0001"),
    "an unknown longer name": ("node-100 node-1a", "node-100 node-1a"),
    "within a word": ("spare-node-1 node-1-spare", "spare-node-1 node-1-spare"),
    "with punctuation": ("(node-1), node-1: node-1.", "(atl-0001), atl-0001: atl-0001."),
    "in a path": ("/x/node-1/facts.log", "/x/atl-0001/facts.log"),
    "as a file": ("node-1.log", "atl-0001.log"),
    "with a domain": ("node-1.rack.corp.local answers", "atl-0001 answers"),
    "upper case": ("NODE-1 Node-1", "atl-0001 atl-0001"),
    "exchanged": ("node-2 and node-3", "node-3 and node-2"),
    "a container": ("gpuval-run-7-node-1-training", "gpuval-run-7-atl-0001-training"),
    "another name": ("gpu-host-17", "atl-0010"),
    "a node of NUMA": ("NUMA node0 CPU(s): 0-31, node0 is up, /devices/system/node/node0/cpulist",
                       "NUMA node0 CPU(s): 0-31, atl-0000 is up, /devices/system/node/node0/cpulist"),
    "a common word": ("http://localhost:8000", "http://localhost:8000"),
    "named by address": ("to 10.9.8.7:22", "to by-address:22"),
    "private": ("10.1.2.3 and 10.1.2.3, 192.168.0.1/24", "address-1 and address-1, address-2/24"),
    "the fleet's": ("203.0.113.9 is not 203.0.113.90", "address-1 is not 203.0.113.90"),
    "with a port": ("10.1.2.3:22 10.1.2.4.", "address-1:22 address-2."),
    "public, loopback": ("8.8.8.8 127.0.0.1 0.0.0.0", "8.8.8.8 127.0.0.1 0.0.0.0"),
    "driver": ("driver 580.159.04.1", "driver 580.159.04.1"),
    "version": ("version 10.2.89.1, v10.2.89.1, x==10.2.89.1, libcublas.so.10.2.89.1",
                "version 10.2.89.1, v10.2.89.1, x==10.2.89.1, libcublas.so.10.2.89.1"),
    "no version": ("server version 10.2.89.1:443", "server version address-1:443"),
    "words that end like those of versions": (
        "nameserver 10.5.0.2, NFS server 10.5.0.3, --server=10.5.0.2, receiver: 10.5.0.3, observer 10.5.0.2",
        "nameserver address-1, NFS server address-2, --server=address-1, receiver: address-2, observer address-1",
    ),
    "a machine with a driver": ("driver 10.2.89.1, build 10.2.89.2, build: 10.2.89.1",
                                "driver address-1, build address-2, build: address-1"),
    "a version of a driver": ("driver=10.2.89.1 driver version: 10.2.89.1 build = 10.2.89.1 driver_version 10.2.89.1",
                              None),
    "five numbers": ("10.2.89.1.5", "10.2.89.1.5"),
    "four numbers too large": ("10.300.1.2", "10.300.1.2"),
    "cloud host name": ("ip-10-0-3-4.ec2", "address-1.ec2"),
    "link local": ("fe80::1%eth0 [fd00::12]:22", "address-1 [address-2]:22"),
    "the fleet's, IPv6": ("2001:db8:0:0::17 2001:db8::18", "address-1 2001:db8::18"),
    "IPv6 before a colon": (
        "fd12:3456::9: refused, fd12:3456::9:22222, fd12:3456::9:Connection refused, 2001:db8::17: x 2001:db8::17:443",
        "address-1: refused, address-1:22222, address-1:Connection refused, address-2: x address-2:443",
    ),
    "all of IPv6 with a port": ("fd00:1:2:3:4:5:6:7:8080 fd00:1:2:3:4:5:6:7:", "address-1:8080 address-1:"),
    "no IPv6": ("::1 std::cout 12:34:56 0000:9d:00.0 2026-11-22T00:04:02.910Z",
                "::1 std::cout 12:34:56 0000:9d:00.0 2026-11-22T00:04:02.910Z"),
    "mapped": ("::ffff:10.0.0.1", "::ffff:address-1"),
    "hardware": ("02:FC:00:00:00:01 02-fc-00-00-00-01 02fc.0000.0001 enx02fc00000001", "mac-1 mac-1 mac-1 enxmac-1"),
    "a date is no hardware": ("26-11-22-00-13-44", "26-11-22-00-13-44"),
    "InfiniBand": ("506b:4b03:00ab:cdef", "mac-1"),
    "machines": ("ssh -J alice@jump.corp.example", "ssh -J user@host-1"),
    "folders": ("/srv/alice/gpuval/results /srv/alice/gpuval2 /home/bob/x",
                "project/results /srv/user/gpuval2 /home/user/x"),
    "a signed URL": ("https://s3/x?X-Amz-Signature=abcdef0123456789 and abcdef0123456789", "https://s3/x?*** and ***"),
    "a token": ("Authorization: Bearer abcdefghij", "Authorization: ***"),
    "no secret": ("146,353 tokens/s", "146,353 tokens/s"),
    "URL-encoded": ("x=10%2E0%2E0%2E9", "x=address-1"),
    "URL-encoded beside a stray %": ("GET /x?h=203%2E0%2E113%2E9&p=50% ok", "GET *** ok"),
    "URL-encoded, nothing to hide": ("GET /x%20y?p=50% ok", "GET /x%20y?p=50% ok"),
    "parts of a signature": ("X-Amz-Credential=AKIDEXAMPLE/20261122/us-east-1/s3 AKIDEXAMPLE on 20261122 us-east-1",
                             "X-Amz-Credential=***/20261122/us-east-1/s3 *** on 20261122 us-east-1"),
    "serials stay": ("serial 1654124006711 GPU-95348102-fa79-3ec1-69c0-7f15f7776434", None),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts(case):
    text, wanted = TEXTS[case]
    assert InternalDataConverter(KNOWN).text(text) == (text if wanted is None else wanted)


@pytest.mark.parametrize("before", range(4))
def test_a_secret_is_found_in_every_form(before):
    secret = plant("key")
    converter = InternalDataConverter(InternalData(names={}, secrets=frozenset({secret})))
    scan = InternalDataScan(ScanTargets(secrets={secret}), ())
    for form in (
        secret,
        quote(secret, safe=""),
        quote(quote(secret, safe=""), safe=""),
        base64.b64encode(b"x" * before + secret.encode() + b"yy").decode(),
        base64.urlsafe_b64encode(b"x" * before + secret.encode()).decode(),
    ):
        text = f"careless: {form} said"
        assert list(scan.text(text)), form
        clean = converter.text(text)
        assert not any(one in clean.encode() for one in forms(secret)), form
        assert not list(scan.text(clean)), clean
        assert clean.startswith("careless: ") and clean.endswith(" said")


def test_a_secret_with_quotes_is_found_in_json():
    converter = InternalDataConverter(InternalData(names={}, secrets=frozenset({'pa"ss\\wörd-1'})))
    scan = InternalDataScan(ScanTargets(secrets={'pa"ss\\wörd-1'}), ())
    for form in (json.dumps('pa"ss\\wörd-1'), json.dumps('pa"ss\\wörd-1', ensure_ascii=False)):
        assert list(scan.text(form)) == ["a secret"]
        assert converter.text(form) == '"***"'


def test_an_address_and_a_name_in_base64_are_hidden():
    converter = InternalDataConverter(KNOWN)
    for text in ("203.0.113.9", "node-10"):
        for before in range(3):
            encoded = base64.b64encode(b"x" * before + text.encode() + b" and").decode()
            assert converter.text(f"a {encoded} b") == "a *** b"


def test_the_last_look_finds_what_was_left():
    scan = InternalDataScan(
        ScanTargets({*KNOWN.names, *KNOWN.aliases}, set(KNOWN.secrets), set(KNOWN.addresses)), KNOWN.names.values()
    )
    found = {
        text: list(scan.text(text))
        for text in (f"x {SECRET}", "at 203.0.113.9", "at 2001:db8::17: no", "on node-1 now", quote(SECRET, safe=""))
    }
    assert found == {
        f"x {SECRET}": ["a secret"],
        "at 203.0.113.9": ["the address of a node"],
        "at 2001:db8::17: no": ["the address of a node"],
        "on node-1 now": ["the name of a worker"],
        quote(SECRET, safe=""): ["a secret, URL-encoded"],
    }
    assert not list(scan.text("NUMA node0"))
    assert not list(scan.text("node-2 and node-3 are ids too, spare-node-1 is another"))
    assert scan.within == {"node-1": 2}


NAMES = st.lists(st.from_regex(r"[a-z]{2,4}-[0-9]{1,3}", fullmatch=True), min_size=1, max_size=8, unique=True)


@given(NAMES, st.data())
def test_names_are_converted_whole_and_once(names, data):
    known = {name: f"ID{number:04}" for number, name in enumerate(names)}
    words = data.draw(
        st.lists(st.one_of(st.sampled_from(names), st.from_regex(r"[a-z]{2,4}-[0-9]{1,4}", fullmatch=True)))
    )
    converter = InternalDataConverter(InternalData(names=known))
    assert converter.text(" ".join(words)) == " ".join(known.get(word, word) for word in words)


@given(st.text(max_size=200))
def test_what_was_converted_is_left_alone(text):
    converter = InternalDataConverter(
        InternalData(names={"node-1": "ATL1"}, secrets=frozenset({SECRET}), addresses=frozenset({"203.0.113.9"}))
    )
    once = converter.text(text)
    assert converter.text(once) == once


@given(st.ip_addresses(v=4), st.sampled_from(" ,;:/[]()=\"'@\n"), st.sampled_from(" ,;/]()\"'\n"))
def test_every_private_address_of_the_fleet_is_hidden(address, before, after):
    text = str(address)
    converter = InternalDataConverter(InternalData(names={}, addresses=frozenset({text})))
    done = converter.text(f"x{before}{text}{after}y")
    assert (text in done) == (address.is_loopback or address.is_unspecified or address.is_multicast)


@given(st.lists(st.text(alphabet="ab-1", min_size=1, max_size=6), max_size=10), st.text(alphabet="ab-1 ", max_size=30))
def test_the_tree_of_words_finds_the_longest_as_a_list_would(words, text):
    import re

    plain = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)"
    assert re.findall(any_of(words), text) == re.findall(plain, text)


HOSTILE = {
    "percent": "a" * 500_000 + "%41",
    "dots": "node-1" + ".a" * 200_000,
    "numbers": "1." * 300_000,
    "colons": ":" * 500_000,
    "hex": "aa:" * 200_000,
    "homes": "/home/" * 100_000,
    "names": "node-1" * 100_000,
    "base64": "QUJD" * 150_000,
    "signatures": "".join(f"X-Amz-Signature={number:064x}\n" for number in range(6000)),
    "encoded": "%" + "25" * 250_000 + "41",
    "tokens": "token=" * 100_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_texts_cost_no_more_than_their_length(case):
    began = time.process_time()
    InternalDataConverter(KNOWN).text(HOSTILE[case])
    assert time.process_time() - began < 8, "of a processor; it is below 1, and by backtracking minutes"


def test_machines_that_ssh_jumps_over():
    assert jumps("-J a@one:22,two") == [("a", "one"), ("", "two")]
    assert jumps("-o ProxyJump=b@[fd00::1]:2222 -o ControlMaster=auto") == [("b", "fd00::1")]
    assert jumps("-o ProxyCommand='ssh -q -W %h:%p -i /x/key c@three'") == [("c", "three")]
    assert jumps("-C -o ServerAliveInterval=15") == []


def test_what_the_inventory_tells():
    sensitive = Sensitive()
    sensitive.add_variables(
        "node-1",
        {
            "ansible_host": "10.0.0.1",
            "ansible_ssh_common_args": "-J carol@bastion.corp",
            "ansible_user": "carol",
            "ansible_become_password": "sudo-pass-word",
            "gpuval_environment": {"MY_TOKEN": "environment-token", "NCCL_DEBUG": "INFO"},
        },
    )
    sensitive.add_variables("node-2", {"ansible_host": "gpu2.corp"})
    assert (sensitive.addresses, sensitive.hosts, sensitive.users) == ({"10.0.0.1"}, {"bastion.corp"}, {"carol"})
    assert sensitive.secrets == {"sudo-pass-word", "environment-token"}
    known = sensitive.of_run({"node-2": "ID"}, (), "run-1")
    assert (known.aliases, known.hosts) == ({"gpu2.corp": "ID"}, {"bastion.corp"})


def test_a_host_outside_the_run_gets_a_placeholder_by_any_name_of_it():
    sensitive = Sensitive()
    sensitive.add_variables("node-1", {"ansible_host": "gpu1.corp"})
    sensitive.add_variables("newcomer", {"ansible_host": "gpu9.corp"})
    known = sensitive.of_run({"node-1": "ID"}, (), "run-1")
    assert (known.aliases, known.hosts) == ({"gpu1.corp": "ID"}, {"gpu9.corp"})
    assert InternalDataConverter(known).text("gpu1.corp asked gpu9.corp") == "ID asked host-1"
