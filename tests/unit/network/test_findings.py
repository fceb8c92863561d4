"""What a fleet's answers say: who is odd, how, and that nothing odd is made up."""

import csv
import dataclasses
import io
import itertools

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.network import endpoints, peers
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network import matrix
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network.answers import (
    NO_FIGURES,
    Answers,
    RejectedAnswerError,
    take_in,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network.findings import Fleet, find
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.network_matrix import read_fleet

GOOD = peers.LinkAnswer(
    state="open",
    address="10.0.0.1",
    tcp_minimum_seconds=0.0001,
    tcp_median_seconds=0.0002,
    mtu_bytes=9000,
    path_mtu_bytes=9000,
    size_tried=True,
    large_packet_seconds=0.0003,
    ping_sent=3,
    ping_received=3,
    bytes_per_second=1e9,
    ports={"29500": "open"},
)
NODES = ["a", "b", "c", "d", "e"]


def interface(carrier, mtu, addresses, driver=None):
    return {
        "state": "up",
        "carrier": carrier,
        "mtu": mtu,
        "addresses": addresses,
        "driver": driver,
        "physical": True,
    }


def service(state="ok", **figures):
    return {**NO_FIGURES, "state": state, **figures}


def fleet(change=lambda one, two, asked: asked, nodes=NODES, **given):
    answers = {
        one: Answers(
            peers={two: change(one, two, GOOD) for two in nodes if two != one},
            interfaces={"ib0": interface(True, 9000, [f"10.0.0.{place}/24"], "mlx5_core")},
        )
        for place, one in enumerate(nodes, 1)
    }
    return Fleet(**{"answers": answers, "zones": {}, "ports": (29500,), **given})


def with_(**values):
    """Links that `when(one, two)` holds for are otherwise."""
    when = values.pop("when")
    return lambda one, two, asked: dataclasses.replace(asked, **values) if when(one, two) else asked


def told(findings):
    return [(finding.level, finding.kind, finding.nodes) for finding in findings]


def test_a_good_fleet_has_no_findings():
    assert find(fleet()) == []
    assert find(fleet(nodes=["a"])) == []
    assert find(fleet(nodes=["a", "b"])) == []


@pytest.mark.parametrize(
    ("values", "level", "kind", "words"),
    [
        ({"state": "timeout"}, "fail", "reach", "4 of 4 node(s) do not reach it"),
        ({"ports": {"29500": "timeout"}}, "fail", "port", "port 29500: 4 of 4 node(s) cannot connect (timeout 4x)"),
        ({"ports": {}}, "fail", "port", "not tried"),
        ({"ports": {"29500": "other_node"}}, "fail", "port", "other_node"),
        ({"path_mtu_bytes": 1500}, "fail", "mtu", "packets of 9000 bytes do not pass unfragmented, at most 1500"),
        ({"path_mtu_bytes": None}, "fail", "mtu", "9000"),
        ({"tcp_minimum_seconds": 0.05}, "warn", "latency", "slow with 4 of 4, a TCP handshake: 50 ms, usual is 0.1 ms"),
        ({"large_packet_seconds": 0.3}, "warn", "large_packets", "300 ms"),
        ({"bytes_per_second": 1e7}, "warn", "bandwidth", "10 MB/s, usual is 1 GB/s"),
    ],
)
def test_a_bad_node_is_named_and_a_bad_link_is(values, level, kind, words):
    (node,) = find(fleet(with_(when=lambda one, two: two == "c", **values)))
    assert (node.level, node.kind, node.nodes) == (level, kind, ("c",))
    assert words in node.message
    assert node.remedy
    (link,) = find(fleet(with_(when=lambda one, two: {one, two} == {"a", "d"}, **values)))
    assert (link.level, link.kind, link.nodes) == (level, kind, ("a", "d"))
    assert link.message.startswith("a <-> d: ")
    (way,) = find(fleet(with_(when=lambda one, two: (one, two) == ("d", "a"), **values)))
    assert way.message.startswith("d -> a: ") and way.message.endswith("the other direction is fine")


def test_refused_is_there():
    assert not find(fleet(with_(when=lambda *_: True, state="closed")))


def test_what_was_not_measured_is_no_finding_but_what_was_not_reported_is():
    blank = with_(
        when=lambda *_: True, size_tried=False, path_mtu_bytes=None, large_packet_seconds=None, bytes_per_second=None
    )
    assert not find(fleet(blank))


def test_a_node_without_answers_is_named_with_what_its_peers_say():
    def gone(change, reason):
        whole = fleet(change)
        return dataclasses.replace(whole, answers={**whole.answers, "b": Answers(reason=reason)})

    (off,) = find(gone(with_(when=lambda one, two: two == "b", state="timeout"), "no route"))
    assert off.nodes == ("b",) and "no route; 0 of 4 node(s) reach it" in off.message
    (up,) = find(gone(lambda one, two, asked: asked, "login denied"))
    assert "4 of 4 node(s) reach it" in up.message and "check SSH" in up.remedy


def test_a_node_that_had_no_time_for_its_peers_is_named():
    (late,) = find(fleet(lambda one, two, asked: peers.LinkAnswer() if one == "b" and two in "ad" else asked))
    assert (late.level, late.nodes) == ("fail", ("b",))
    assert "b: 2 of 4 node(s) were not measured in time: a, d" in late.message
    assert "network_probe_seconds" in late.remedy


@pytest.mark.parametrize(
    ("unmeasured", "late"), [("d", []), ("ad", [("warn", "b: 1 of 4 node(s) were not measured in time: a")])]
)
def test_dead_peers_that_took_the_time_fail_no_other_node(unmeasured, late):
    answers = fleet(lambda one, two, asked: peers.LinkAnswer() if one == "b" and two in unmeasured else asked).answers
    answers = {**answers, "d": Answers(reason="no SSH")}
    dead, *others = (one for one in find(Fleet(answers, {}, (29500,))) if one.kind == "silent")
    assert (dead.level, dead.nodes) == ("fail", ("d",))
    assert [(one.level, one.message) for one in others] == late


def test_when_no_node_reaches_anybody_it_is_not_a_node():
    (finding,) = find(fleet(with_(when=lambda *_: True, state="timeout")))
    assert finding.nodes == tuple(NODES)
    assert "20 of 20 links fail (timeout 20x)" in finding.message


def test_zones_that_are_far_apart_are_not_slow():
    zones = {name: "near" if name in "ab" else "far" for name in NODES}
    far = with_(when=lambda one, two: zones[one] != zones[two], tcp_minimum_seconds=0.02, large_packet_seconds=0.02)
    assert find(fleet(far, zones=zones)) == []
    assert find(fleet(far)), "without zones that is odd"


def test_a_slow_node_of_three_is_the_odd_one():
    slow = with_(when=lambda one, two: "c" in (one, two), tcp_minimum_seconds=0.04)
    assert told(find(fleet(slow, nodes=["a", "b", "c"]))) == [("warn", "latency", ("c",))]


def test_noise_below_a_fast_network_is_no_finding():
    noisy = itertools.cycle([0.0001, 0.0004, 0.0012, 0.0019])
    assert not find(fleet(lambda one, two, asked: dataclasses.replace(asked, tcp_minimum_seconds=next(noisy))))


def test_interfaces_unlike_the_others_and_addresses_given_twice():
    whole = fleet()
    answers = dict(whole.answers)
    odd = interface(False, 1500, ["10.0.0.1/24", "fe80::1/64", "not an address"])
    answers["e"] = dataclasses.replace(answers["e"], interfaces={"ib0": odd, "docker0": odd})
    found = find(dataclasses.replace(whole, answers=answers))
    assert told(found) == [("fail", "address", ("a", "e")), ("warn", "unlike", ("e",)), ("warn", "unlike", ("e",))]
    assert "e: ib0 has MTU 1500, 9000 on 4 of 5" in [finding.message for finding in found]
    assert "e: ib0 has state without carrier, up on 4 of 5" in [finding.message for finding in found]


def claiming(name, *addresses, **given):
    whole = fleet(**given)
    taken = tuple(f"{address}/24" for address in addresses)
    liar = dataclasses.replace(whole.answers[name], interfaces={"ib0": interface(True, 9000, taken)})
    return find(dataclasses.replace(whole, answers={**whole.answers, name: liar}))


def test_who_claims_the_addresses_of_others_fails_alone():
    found = claiming("e", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert {finding.failed for finding in found} == {("e",)} and len(found) == 3
    (one,) = claiming("e", "10.0.0.1", owners={"10.0.0.1": "a"})
    assert (one.nodes, one.failed) == (("a", "e"), ("e",)), "a is reached there"
    (one,) = claiming("e", "10.0.0.1")
    assert one.failed == ("a", "e"), "either may be right, and both say so"


def test_what_one_node_alone_says_of_another_fails_the_one_that_says_it():
    lying = with_(when=lambda one, two: one == "e" and two in "ab", state="timeout")
    found = find(fleet(lying))
    assert {finding.failed for finding in found} == {("e",)} and len(found) == 2
    (both,) = find(fleet(with_(when=lambda one, two: {one, two} == {"a", "d"}, state="timeout")))
    assert both.failed == ("a", "d")


def test_services():
    whole = fleet()

    def measured(**by_node):
        answers = {
            name: dataclasses.replace(
                entry,
                services={"hub": by_node.get(name, service(tcp_seconds=0.001, bytes_per_second=1e8))},
            )
            for name, entry in whole.answers.items()
        }
        return find(dataclasses.replace(whole, answers=answers))

    assert measured() == []
    bad = service(state="tls", message="hub: certificate refused")
    (one,) = measured(b=bad)
    assert one.nodes == ("b",) and "b (1 of 5) do not reach it: hub: certificate refused" in one.message
    (every,) = measured(**dict.fromkeys(NODES, bad))
    assert "no node reaches it" in every.message
    assert told(measured(c=service(tcp_seconds=0.1, bytes_per_second=1e6))) == [("warn", "endpoint", ("c",))] * 2


def test_a_port_that_could_not_be_listened_on_is_not_the_firewall():
    whole = fleet(with_(when=lambda one, two: two == "c", ports={"29500": "closed"}))
    answers = {
        **whole.answers,
        "c": dataclasses.replace(whole.answers["c"], not_listening={29500: "Permission denied"}),
    }
    (finding,) = find(dataclasses.replace(whole, answers=answers))
    assert "cannot listen there: Permission denied" in finding.message


def answer(**changes):
    """What node `a` answers of `b` and of the service `hub`."""
    peer = vars(dataclasses.replace(GOOD, address="10.0.0.2", large_packet_seconds=0.2, ports={"22": "open"}))
    service = endpoints.probe(endpoints.parse({"name": "hub", "address": "no-such-host.invalid:1"}), 1, 0.1)
    interface = {"state": "up", "carrier": True, "mtu": 9000, "addresses": [], "driver": None, "physical": True}
    return {
        "node": "a",
        "peers": {"b": peer},
        "endpoints": {"hub": service},
        "interfaces": {"ib0": interface},
        **changes,
    }


def peer_with(**changes):
    return answer(peers={"b": {**answer()["peers"]["b"], **changes}})


def test_what_a_node_measured_is_accepted():
    taken = take_in(peer_with(message="x\x1b[31m\ny"), "a", ["b"], ["hub"], {"22": "a\nb", "80": "in_use"})
    asked = taken.peers["b"]
    assert (asked.message, asked.ping_sent, asked.large_packet_seconds, asked.ports) == ("x y", 3, 0.2, {"22": "open"})
    assert taken.services["hub"]["state"] == "name"
    assert taken.not_listening == {22: "a b"}


@pytest.mark.parametrize(
    ("facts", "listening"),
    [
        ("nothing", {}),
        (answer(peers={}), {}),
        (answer(endpoints={}), {}),
        (answer(node="b"), {}),
        (answer(interfaces=[]), {}),
        (answer(interfaces={f"if{number}": {} for number in range(1000)}), {}),
        (answer(extra=1), {}),
        (peer_with(ports={"²": "open"}), {}),
        (peer_with(ports={"22": "wide open"}), {}),
        (peer_with(state="<script>"), {}),
        (peer_with(tcp_minimum_seconds=float("nan")), {}),
        (peer_with(tcp_median_seconds=-1), {}),
        (peer_with(mtu_bytes=True), {}),
        (peer_with(ping_sent=[1]), {}),
        (peer_with(size_tried=1), {}),
        (peer_with(message="x" * 5_000_000), {}),
        (answer(), {"²": "why"}),
        (answer(), ["22"]),
        (answer(), {"22": {}}),
    ],
)
def test_an_answer_of_another_form_is_rejected(facts, listening):
    with pytest.raises(RejectedAnswerError) as error:
        take_in(facts, "a", ["b"], ["hub"], listening)
    assert len(str(error.value)) <= 300


def test_a_rejected_answer_is_a_finding_of_its_node_alone(tmp_path):
    peers = {"a": [{"name": "b", "address": "10.0.0.2"}], "b": [{"name": "a", "address": "10.0.0.1"}]}
    plan = {"peers": peers, "zones": {}, "uncovered": []}
    facts = {"a": peer_with(ports={"²": "open"}), "b": {**answer(node="b"), "peers": {"a": answer()["peers"]["b"]}}}
    variables = {name: {"network_probed": {"measured": fact}} for name, fact in facts.items()}
    whole = read_fleet(plan, [], ["hub"], variables)
    assert whole.answers["a"].is_rejected and whole.answers["b"].peers["a"].reached
    assert told(find(whole))[0] == ("fail", "answer", ("a",))
    entry = matrix.document(whole, [], run_id=None, uncovered=[])["nodes"]["a"]
    assert not entry["answered"] and entry["reason"] == whole.answers["a"].reason
    assert not [finding for finding in find(whole) if "b" in finding.nodes and finding.kind != "endpoint"]


def test_the_matrix_as_documents_and_lines(tmp_path):
    whole = fleet(with_(when=lambda one, two: two == "c", state="timeout"))
    findings = find(whole)
    document = matrix.document(whole, findings, run_id="run-1", uncovered=[("x", "y")])
    assert document["schema"] == "gpuval.network-matrix/1"
    assert len(document["links"]) == 20 and document["findings"][0]["nodes"] == ["c"]
    rows = list(csv.DictReader(io.StringIO(matrix.table(whole))))
    assert len(rows) == 20 and rows[0]["ports"] == "29500=open"
    assert {(row["from"], row["to"]) for row in rows if row["state"] == "timeout"} == {(n, "c") for n in "abde"}
    matrix.write(tmp_path, document, matrix.table(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matrix.csv", "matrix.json"]
    head, finding, where = matrix.lines(whole, findings, [tmp_path])
    assert head.startswith("network: 5 of 5 node(s) answered, 16 of 20 link(s) work; TCP handshake 0.1 ms")
    assert finding.startswith("- FAIL c: 4 of 4 node(s) do not reach it")
    assert str(tmp_path) in where
