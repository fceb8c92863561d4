"""The line between members, over real sockets on the loopback interface: each member has a thread of its own."""

import asyncio
import contextlib
import errno
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import exchange
from gpuval_workloads.gang import control_channel
from gpuval_workloads.gang.control_channel import (
    CAUSE,
    EFFECT,
    SHARED,
    Beginning,
    ChannelLimits,
    ControlChannel,
    GangStop,
    StoppedError,
)
from gpuval_workloads.gang.members import Gang, GangMember

from tests.kit.gang_channel import TOKEN, Party, gang, until
from tests.kit.ports import free_port

#: None of them passes in a test where all is well, however late a thread gets its turn.
PATIENT = ChannelLimits(join_seconds=30, silence_seconds=20, stall_seconds=20)
STALLED = ChannelLimits(join_seconds=30, silence_seconds=20, stall_seconds=2)
# Shorter limits in tests pass while a member is awaited that never comes; those that come are threads of this process.


@pytest.fixture
def parties():
    port, made = free_port(), []

    def make(index, limits=PATIENT, **more):
        party = Party(port, index, limits, **more)
        party.line.__enter__()
        made.append(party)
        return party

    yield make
    for party in made:
        party.line.__exit__()


def at_once(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [waiting.result(60) for waiting in [pool.submit(call) for call in calls]]


def joined(parties, count=3, limits=PATIENT):
    made = [parties(index, limits, count=count) for index in reversed(range(count))][::-1]
    assert at_once(*(party.line.join for party in made)) == [[{"brings": i} for i in range(count)]] * count
    return made


def test_all_come_together_and_end_together(parties):
    made = joined(parties)
    at_once(*(lambda party=party: party.line.end(None, 10) for party in made))
    assert [party.stops for party in made] == [[], [], []]


def test_one_that_does_not_come_is_named_to_all(parties):
    limits = ChannelLimits(join_seconds=4, silence_seconds=3)
    made = [parties(0, limits), parties(2, limits)]
    for party in made:
        with pytest.raises(StoppedError, match=r"node-2 \(127\.0\.0\.2\) did not join within 4 s") as raised:
            party.line.join()
        assert raised.value.stop.node == "node-2"


@pytest.mark.parametrize("how", ["no-answer", "unreachable", "refused"])
def test_a_leader_that_cannot_be_reached_is_named_long_before_the_last_member_may_join(parties, monkeypatch, how):
    """Dropped packets and a route that is missing are a closed network; a port that refuses will be opened."""

    async def connect(*_arguments, **_options):
        if how == "no-answer":
            await asyncio.sleep(60)
        raise OSError(errno.EHOSTUNREACH, "No route to host") if how == "unreachable" else ConnectionRefusedError()

    monkeypatch.setattr(control_channel.asyncio, "open_connection", connect)
    monkeypatch.setattr(control_channel, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(control_channel, "RETRY_SECONDS", 0.1)
    limits = ChannelLimits(join_seconds=2.5 if how == "refused" else 60, silence_seconds=3, closed_seconds=1)
    began, member = time.monotonic(), parties(1, limits)
    with pytest.raises(StoppedError, match="the leader, is unreachable at port") as raised:
        member.line.join()
    assert raised.value.stop.node == "node-1"
    assert ("check firewalls and network policies" in str(raised.value)) == (how != "refused")
    assert time.monotonic() - began < 30


def test_a_member_that_has_ended_is_not_waited_for(parties, monkeypatch):
    """It cannot join any more, and the leader reads so in its record."""
    monkeypatch.setattr(control_channel, "LOOK_SECONDS", 0.2)
    limits, asked = ChannelLimits(join_seconds=60, silence_seconds=3), []

    def find_ended(nodes):
        asked.append(nodes)
        return ("node-2", "the leader is unreachable") if nodes == ["node-2"] else None

    made = [parties(0, limits, find_ended=find_ended), parties(2, limits)]
    began = time.monotonic()
    for party in made:
        with pytest.raises(
            StoppedError, match=r"^node-2 .* ended before it joined: the leader is unreachable$"
        ) as raised:
            party.line.join()
        assert raised.value.stop.node == "node-2"
    assert time.monotonic() - began < 30
    assert asked[-1] == ["node-2"]


@pytest.mark.parametrize(
    ("indices", "text"),
    [((0, 1), "waiting for node-3 (127.0.0.3) to join"),
     ((1,), "waiting to join: node-1 (127.0.0.1), the leader, is unreachable at port")],
)  # fmt: skip
def test_who_is_waited_for_is_printed_and_is_the_progress_of_the_stage(
    parties, monkeypatch, capfd, tmp_path, indices, text
):
    result = tmp_path / "result.json"
    monkeypatch.setenv("GPUVAL_RESULT_FILE", str(result))
    monkeypatch.setattr(control_channel, "WAITING_SECONDS", 0.3)
    for index in indices:
        parties(index, ChannelLimits(join_seconds=60, silence_seconds=3))
    printed = []
    until(lambda: printed.append(capfd.readouterr().out) or text in "".join(printed))
    until(lambda: result.exists() and text in json.loads(result.read_text())["message"])
    shown = json.loads(result.read_text())
    assert shown["state"] == "running" and shown["message"].startswith(exchange.WAITING)


def test_who_has_another_token_may_not_join(parties):
    limits = ChannelLimits(join_seconds=4, silence_seconds=3)
    leader, stranger = parties(0, limits, count=2), parties(1, limits, count=2, token="guessed")
    with pytest.raises(StoppedError, match="node-2"):
        leader.line.join()
    with pytest.raises(StoppedError):
        stranger.line.join()


def test_garbage_at_the_port_disturbs_no_other(parties):
    leader = parties(0, count=2)
    deadline = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(("127.0.0.1", leader.line._gang.control_port), timeout=20) as noise:
                noise.sendall(b"GET / HTTP/1.0\r\n\r\n" + json.dumps([1]).encode() + b"\n")
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    other = parties(1, count=2)
    at_once(leader.line.join, other.line.join)
    at_once(lambda: leader.line.end(None, 5), lambda: other.line.end(None, 5))


def test_a_member_that_is_killed_is_named_not_those_that_lost_it(parties):
    made = joined(parties)

    def effect():
        with pytest.raises(StoppedError, match=r"node-3 .*was killed") as raised:
            made[1].line.end("connection closed by peer", 15)
        return raised.value.stop.node

    def cause():
        time.sleep(1)
        made[2].line.end("rank 2 was killed by SIGKILL", 15, weight=CAUSE)

    def bystander():
        until(lambda: made[0].stops)
        return made[0].stops[0].node

    assert at_once(effect, cause, bystander) == ["node-3", None, "node-3"]


def test_a_connection_that_breaks_off_is_a_member_that_is_lost(parties):
    made = joined(parties)
    made[1].line.__exit__()
    until(lambda: made[0].stops and made[2].stops)
    assert {party.stops[0].node for party in (made[0], made[2])} == {"node-2"}
    assert "was lost" in made[2].stops[0].message


def test_a_leader_that_is_lost_is_named_by_the_others(parties):
    made = joined(parties)
    made[0].line.__exit__()
    until(lambda: made[1].stops and made[2].stops)
    assert {party.stops[0].node for party in made[1:]} == {"node-1"}


def test_a_rank_that_stands_still_while_others_wait_is_named(parties):
    made = joined(parties, limits=STALLED)
    made[2].is_still = True
    time.sleep(1.2)
    made[0].is_still = made[1].is_still = True  # they wait for it
    until(lambda: all(party.stops for party in made))
    assert {party.stops[0].node for party in made} == {"node-3"}
    assert "rank 2" in made[0].stops[0].message and "no progress" in made[0].stops[0].message


def test_a_port_in_use_is_reported(parties):
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        stops = []
        with (
            ControlChannel(gang(port, 0), TOKEN, PATIENT, dict, stops.append) as line,
            pytest.raises(StoppedError, match="cannot be used"),
        ):
            line.join()
        assert isinstance(stops[0], GangStop)


@pytest.mark.parametrize("message", [None, "exit code 1"])
def test_a_leader_that_leaves_at_once_is_no_lost_one(parties, message):
    """The others are behind: what it says last and the end of the connection reach them together."""
    made = joined(parties)

    def leader():
        try:
            made[0].line.end(message, 15, weight=CAUSE)
        finally:
            made[0].line.__exit__()

    def follower(party):
        is_behind = threading.Event()

        def beats():
            if is_behind.is_set():
                time.sleep(2.5)
            return Party.beats(party)

        party.line._beats = beats
        is_behind.set()
        if message is None:
            return party.line.end(None, 15)
        with pytest.raises(StoppedError) as raised:
            party.line.end(None, 15)
        return raised.value.stop.node

    told = at_once(leader, lambda: follower(made[1]), lambda: follower(made[2]))
    assert told[1:] == ([None, None] if message is None else ["node-1", "node-1"])
    for party in made[1:]:
        assert not any("lost" in stop.message for stop in party.stops), party.stops


def test_where_all_end_by_the_same_word_no_node_is_named(parties):
    made = joined(parties)

    def end(party):
        with pytest.raises(StoppedError) as raised:
            party.line.end("no answer", 90, weight=SHARED)
        return raised.value.stop

    began = time.monotonic()
    assert at_once(*(lambda party=party: end(party) for party in made)) == [GangStop(None, "no answer")] * 3
    assert time.monotonic() - began < 45, "no member is left to be waited for"


def test_a_cause_counts_more_than_what_all_say(parties):
    made = joined(parties)

    def end(party, weight):
        try:
            party.line.end("its own words", 15, weight=weight)
        except StoppedError as error:
            return error.stop.node
        return None

    told = at_once(*(lambda party=party, weight=weight: end(party, weight) for party, weight in zip(made, (2, 0, 2))))
    assert told == ["node-2", None, "node-2"]


def test_who_did_not_come_is_named_also_by_who_hears_it_last(parties):
    limits = ChannelLimits(join_seconds=4, silence_seconds=3)
    leader, other = parties(0, limits), parties(2, limits)

    def leave():
        with pytest.raises(StoppedError):
            leader.line.join()
        leader.line.__exit__()

    def hear():
        with pytest.raises(StoppedError) as raised:
            other.line.join()
        return raised.value.stop.node

    assert at_once(leave, hear) == [None, "node-2"]


def ended(made, *ends):
    """How each member ends, at once: (message, weight, node) each; whom the gang names, by what each member hears."""

    def end(party, message, weight, node):
        with contextlib.suppress(StoppedError):
            party.line.end(message, 15, weight=weight, node=node)
        return party.line.stopped

    stops = at_once(*(lambda one=one, how=how: end(one, *how) for one, how in zip(made, ends)))
    assert len({stop.node for stop in stops}) == 1
    return stops[0]


def test_who_knows_of_another_names_it(parties):
    nan = ("the loss is not finite, first on rank 2", CAUSE, "node-3")
    stop = ended(joined(parties), nan, nan, nan)
    assert stop == GangStop("node-3", f"node-3 (127.0.0.3): {nan[0]}")


def test_who_is_ended_from_outside_accuses_no_node_and_neither_do_those_that_lost_it(parties):
    stop = ended(
        joined(parties), ("connection closed by peer", EFFECT, ""), ("its time limit", CAUSE, None), ("", 1, "")
    )
    assert stop == GangStop(None, "node-2 (127.0.0.2): its time limit")


def test_of_a_member_that_fails_and_is_then_ended_from_outside_the_failure_counts(parties):
    made = joined(parties)
    made[1].line.end("rank 1 broke off", 0, weight=EFFECT)
    stop = ended(made, (None, EFFECT, ""), ("its time limit", CAUSE, None), (None, EFFECT, ""))
    assert stop == GangStop("node-2", "node-2 (127.0.0.2): rank 1 broke off")


def test_whom_no_node_knows_is_no_node(parties):
    assert ended(joined(parties), ("x", EFFECT, ""), ("x", CAUSE, "stranger"), ("x", EFFECT, "")).node is None


def test_a_member_that_ends_while_others_are_awaited_ends_the_gang(parties):
    limits = ChannelLimits(join_seconds=60, silence_seconds=3)
    leader, other = parties(0, limits), parties(2, limits)
    until(lambda: 2 in leader.line._brought)
    began = time.monotonic()
    with contextlib.suppress(StoppedError):
        other.line.end("its time limit", 15, weight=CAUSE, node=None)
    with pytest.raises(StoppedError, match="its time limit"):
        leader.line.join()
    assert time.monotonic() - began < 40


def test_ranks_that_never_begin_are_named(parties):
    made = [parties(index, STALLED) for index in (2, 1, 0)][::-1]
    made[2].line._beats = dict
    at_once(*(party.line.join for party in made))
    until(lambda: all(party.stops for party in made))
    assert {party.stops[0].node for party in made} == {"node-3"}
    assert "node-3 (127.0.0.3): ranks have not begun there, 2 s after" in made[1].stops[0].message


@pytest.mark.parametrize(
    ("begun", "late"),
    [
        ([[8, 8, 0]] * 6, [2]),
        ([[8, 7, 7]] * 6, [1, 2]),
        ([[8, 8, 8]] * 9, []),
        ([[0, 0, 0]] * 9, []),  # nobody has begun: nccl-tests may be at work
        ([[8, 0, 7]] * 5 + [[8, 0, 8]] * 5, []),  # the others still begin
        ([[7, 7, 7]] * 9, []),
    ],
)
def test_members_are_late_when_nothing_new_begins_while_others_have(begun, late):
    beginning = Beginning([8, 8, 8], 5.0)
    assert [beginning.look(counts, 1.0) for counts in begun][-1] == late


def test_a_leader_that_is_done_leaves_no_late_member(parties):
    made = joined(parties, limits=replace(PATIENT, silence_seconds=3))
    at_once(lambda: made[0].line.end(None, 1), lambda: made[1].line.end(None, 15))
    made[0].line.__exit__()
    time.sleep(1)
    made[2].line.end(None, 1)
    assert [party.stops for party in made] == [[], [], []]


def test_a_leader_with_a_name_is_found_at_any_of_its_addresses():
    """Many a host calls itself 127.0.1.1; the others know it by another address."""
    port, together = free_port(), ThreadPoolExecutor(2)
    others = GangMember("node-2", "127.0.0.2", 1)
    lines = [
        ControlChannel(
            Gang("all", (GangMember("node-1", address, 1), others), index, port, 3022),
            TOKEN,
            PATIENT,
            dict,
            lambda _: None,
        )
        for index, address in ((0, "localhost"), (1, "127.0.0.9"))
    ]
    with lines[0], lines[1], together:
        list(together.map(ControlChannel.join, lines))
        list(together.map(lambda line: line.end(None, 5), lines))
    assert [line.stopped for line in lines] == [None, None]
