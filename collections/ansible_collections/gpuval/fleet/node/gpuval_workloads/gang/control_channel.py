"""The control channel between the nodes (members) of a gang: all begin together, and end if a member is lost.

Every member keeps one TCP connection to the leader and sends a heartbeat with the progress of its ranks once a second;
the leader answers. A missing heartbeat, a closed connection or a member's error ends the gang, and the leader sends
the reason to all. A member that loses the leader ends by itself. Messages are JSON, one per line. A greeting is
signed with the gang's token (HMAC), so that what it contains, the key of the member's SSH server, can be trusted.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import errno
import hashlib
import hmac
import json
import resource
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuval_node.network.routes import is_ip

from ..common.result import WorkloadResult
from ..common.stall import Beat, StallJudge
from .members import Gang, GangMember
from .threads import LoopThread

BEAT_SECONDS = 1.0
#: Seconds that the leader waits after a failure to find the first cause: other members fail within moments.
GRACE_SECONDS = 5.0
QUIET_BEATS = 4
RETRY_SECONDS = 1.0
#: Seconds of one attempt to connect to the leader. A host that is up answers or refuses within this time.
CONNECT_SECONDS = 10.0
#: Seconds between the leader's checks for ended stages of members that have not joined.
LOOK_SECONDS = 10.0
#: Seconds between a member's lines on what it waits for.
WAITING_SECONDS = 30.0
CLOSED_ERRORS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
#: Seconds for the others to receive the leader's last message: closing a connection with unread input may discard it.
LAST_WORD_SECONDS = 5.0
#: Kinds of a member's failure: it knows the cause, it failed as a consequence, all members fail for the same reason.
CAUSE, EFFECT, SHARED = range(3)
#: Value of ``node`` in a member's report of its end: the reporting member itself is at fault.
OWN = ""
MAX_LINE = 1 << 20
#: Maximum bytes of one member's greeting; the leader sends all greetings to all.
MAX_BROUGHT = 64 << 10
#: Open files that the leader needs beside its connections to members.
OTHER_FILES = 256

#: Function that returns the heartbeats of a member's ranks and the states of their processes, by local rank.
Beats = Callable[[], Mapping[int, tuple[Beat, str]]]
#: Function that returns one of the given nodes whose stage has ended without success, and its message; takes seconds.
FindEnded = Callable[[Sequence[str]], "tuple[str, str] | None"]


@dataclass(frozen=True)
class ChannelLimits:
    """Time limits in seconds: until all have joined, for a member without a heartbeat, for a rank without progress, and
    for a leader that sends no packet back (its host is off, or the network is closed)."""

    join_seconds: float = 300.0
    silence_seconds: float = 20.0
    stall_seconds: float = 60.0
    closed_seconds: float = 90.0


@dataclass(frozen=True)
class GangStop:
    """Why the gang ended before its work was done; ``node``: the member at fault, None if unknown. ``lost``: the member
    no longer answers; otherwise it has reported a failure."""

    node: str | None
    message: str
    lost: bool = False


class Beginning:
    """Finds members whose ranks do not start although those of others have: without a heartbeat no rank can stall."""

    def __init__(self, slots: Sequence[int], limit_seconds: float) -> None:
        self._slots, self._limit = slots, limit_seconds
        self._count, self._waited = 0, 0.0

    def look(self, begun: Sequence[int], seconds: float) -> list[int]:
        """Return the indices of late members: other members have started, and no rank has for the time limit.
        ``begun``: number of started ranks of each member; ``seconds`` since the previous call."""
        self._waited = self._waited + seconds if sum(begun) == self._count else 0.0
        self._count = sum(begun)
        late = [index for index, (count, slots) in enumerate(zip(begun, self._slots)) if count < slots]
        return late if self._waited >= self._limit and len(late) < len(self._slots) else []


class ControlChannel:
    """A member's end of the control channel. Enter it, ``join``, work, ``end``. ``bring``: JSON data for all members in
    this member's greeting. ``on_stop`` is called once, from another thread, when another member ends the gang early, or
    a rank stalls."""

    def __init__(
        self,
        gang: Gang,
        token: str,
        limits: ChannelLimits,
        beats: Beats,
        on_stop: Callable[[GangStop], None],
        bring: Any = None,
        find_ended: FindEnded = lambda _nodes: None,
    ) -> None:
        self._gang, self._token, self._limits = gang, token.encode(), limits
        self._beats, self._on_stop, self._bring, self._find_ended = beats, on_stop, bring, find_ended
        self.stopped: GangStop | None = None
        self._ended: dict[int, dict[str, Any]] = {}
        self._broken: list[tuple[int, float, GangStop]] = []
        self._brought: dict[int, Any] = {}
        self._heard: dict[int, float] = {}
        self._theirs: dict[int, dict[int, tuple[Beat, str]]] = {}
        self._arrived: dict[str, dict[int, str]] = {}
        self._words: dict[str, list[str]] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._joined, self._over, self._left = threading.Event(), threading.Event(), threading.Event()
        self._max_line = MAX_LINE + MAX_BROUGHT * len(gang.members)
        self._thread = LoopThread("gang control channel")
        self._loop = self._thread.loop

    def __enter__(self) -> ControlChannel:
        self._thread.start(self._lead() if self._gang.is_leader else self._follow())
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self.stopped or self._over.is_set():
            self._thread.join(2 * LAST_WORD_SECONDS)
        self._thread.cancel(5)

    def join(self) -> list[Any]:
        """Wait until all members have joined; return the data of their greetings, in order. Raises ``StoppedError``."""
        self._joined.wait(self._limits.join_seconds + 2 * self._limits.silence_seconds)
        if self.stopped:
            raise StoppedError(self.stopped)
        if not self._joined.is_set():
            raise StoppedError(GangStop(None, f"the gang did not come together within {self._limits.join_seconds:g} s"))
        return [self._brought[index] for index in range(len(self._gang.members))]

    def arrive(self, name: str, word: str = "") -> None:
        """Report that this member has reached the meeting point ``name``; its ``word`` is sent to all."""
        if not self._loop.is_closed():
            self._run(self._report({"kind": "arrived", "name": name, "word": word}))

    def met(self, name: str) -> list[str] | None:
        """Return the words of all members, in order, once all are at the meeting point, else None. Raises
        ``StoppedError``."""
        if self.stopped:
            raise StoppedError(self.stopped)
        return self._words.get(name)

    def end(self, message: str | None, seconds: float, *, weight: int = EFFECT, node: str | None = OWN) -> None:
        """Report that this member is done (None) or failed, and wait until all are done, for at most ``seconds``.
        ``weight``: CAUSE if the failure is no consequence of another member's, SHARED if all members end for the same
        reason. ``node``: the member at fault if it is another. Raises ``StoppedError`` if the gang ended for another
        reason."""
        if not self._loop.is_closed():
            self._run(self._report({"kind": "end", "message": message, "weight": weight, "node": node}))
        if not self._over.wait(seconds) and message is None and self._gang.is_leader and not self.stopped:
            sent = self._run(self._send_last({"kind": "over"}))
            with suppress(concurrent.futures.TimeoutError):  # a late member must not count the leader as lost
                sent.result(2 * LAST_WORD_SECONDS)
        if self.stopped and self.stopped.node != self._gang.own.node:
            raise StoppedError(self.stopped)

    def _run(self, work: Coroutine) -> concurrent.futures.Future:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # The leader.

    async def _lead(self) -> None:
        self._brought[0] = self._bring
        address, port = self._gang.leader.address, self._gang.control_port
        listen_address = address if is_ip(address) else None  # a host's own name may mean its loopback interface
        begun = time.monotonic()
        try:
            count = len(self._gang.members)
            _allow_files(count + OTHER_FILES)
            server = await asyncio.start_server(
                self._receive, listen_address, port, limit=MAX_LINE + MAX_BROUGHT, backlog=max(100, count)
            )
        except OSError as error:
            self._end_with(GangStop(self._gang.own.node, f"port {port} of {address} cannot be used: {error.strerror}"))
            return
        async with server:
            waiting, looking = Waiting(show), self._loop.create_task(self._look_for_ended())
            while len(self._brought) < len(self._gang.members) and not self.stopped and not self._broken:
                waiting.say(f"waiting for {_names(self._missing())} to join")
                if time.monotonic() - begun > self._limits.join_seconds:
                    why = (
                        f" did not join within {self._limits.join_seconds:g} s: check that the stage started there, and"
                        f" that port {port} of {address} is reachable from there"
                    )
                    self._end_with(_stop_for(self._missing(), why))
                await asyncio.sleep(0.1)
            looking.cancel()
            if not self.stopped and not self._broken:
                brought = [self._brought[index] for index in range(len(self._gang.members))]
                await self._send_all({"kind": "go", "brought": _packed(brought)})
                self._joined.set()
            await self._watch()

    def _missing(self) -> list[GangMember]:
        return [member for index, member in enumerate(self._gang.members) if index not in self._brought]

    async def _look_for_ended(self) -> None:
        """End the gang when a member that has not joined cannot do so any more."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            nodes = [member.node for member in self._missing()]
            ended = await self._loop.run_in_executor(None, self._find_ended, nodes)
            for member in self._missing():
                if ended and member.node == ended[0]:
                    self._end_with(_stop_for([member], f" ended before it joined: {ended[1]}"))

    async def _watch(self) -> None:
        watch, last_look = StallJudge(self._limits.stall_seconds), time.monotonic()
        beginning = Beginning([member.slots for member in self._gang.members], self._limits.stall_seconds)
        while True:
            if self.stopped:
                await self._send_last({"kind": "stop", **vars(self.stopped)})
                return
            have_all_ended = len(self._ended) == len(self._gang.members)
            if have_all_ended and not self._broken:
                await self._send_last({"kind": "over"})
                return
            if have_all_ended:
                self._end_with(self._culprit(time.monotonic()))
                continue
            await asyncio.sleep(BEAT_SECONDS)
            await self._send_all({"kind": "beat"})
            now = time.monotonic()
            seconds, last_look = min(now - last_look, 2 * BEAT_SECONDS), now
            for index, heard in self._heard.items():
                if index not in self._ended and now - heard > self._limits.silence_seconds:
                    silence = f" was lost: no heartbeat for {now - heard:.0f} s"
                    self._end_with(_stop_for([self._gang.members[index]], silence, lost=True))
            if self._broken and now - self._broken[0][1] >= GRACE_SECONDS:
                self._end_with(self._culprit(now))
            elif not self.stopped and not self._ended:
                self._look(watch, beginning, seconds)

    def _culprit(self, now: float) -> GangStop:
        """Return why the gang ends when members failed within moments: by the first that was lost or knows the cause,
        else a silent one, else the first. ``now``: monotonic seconds."""
        weight, _, stop = min(self._broken, key=lambda broken: broken[:2])
        silent = [
            i for i, heard in self._heard.items() if i not in self._ended and now - heard > QUIET_BEATS * BEAT_SECONDS
        ]
        if weight == EFFECT and silent:
            words = " was lost: no heartbeat since the others failed"
            return _stop_for([self._gang.members[silent[0]]], words, lost=True)
        return stop

    def _look(self, watch: StallJudge, beginning: Beginning, seconds: float) -> None:
        beats = dict(self._beats())  # the leader's ranks are the first
        begun = [len(self._theirs.get(index, ())) for index in range(len(self._gang.members))]
        late = beginning.look([len(beats), *begun[1:]], seconds)
        if late:
            why = (
                f": ranks have not begun there, {self._limits.stall_seconds:g} s after the last one elsewhere did: "
                "check that they can start there (SSH with launcher deepspeed), that Python's packages are readable, "
                f"that the scratch directory has free space, and that port {self._gang.port} of "
                f"{self._gang.leader.address} is reachable from there"
            )
            self._end_with(_stop_for([self._gang.members[index] for index in late], why))
            return
        for index, node_beats in self._theirs.items():
            first_rank = self._gang.first_rank(index)
            beats.update({first_rank + local_rank: beat for local_rank, beat in node_beats.items()})
        stall = watch.look(beats, seconds)
        if stall:
            rank, words = stall
            index, local_rank = self._gang.owner(rank)
            words = f": rank {rank} (process {local_rank} of the node) {words}"
            self._end_with(_stop_for([self._gang.members[index]], words))

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = None
        try:
            nonce = secrets.token_hex(16)
            await _send(writer, {"kind": "nonce", "nonce": nonce})
            index, bring = self._check_greeting(await _read(reader, self._limits.silence_seconds), nonce)
            self._writers[index], self._heard[index], self._brought[index] = writer, time.monotonic(), bring
            while True:
                message = await _read(reader, None)
                self._heard[index] = time.monotonic()
                await self._process(index, message)
        except _BrokenError as error:
            if index is not None and index not in self._ended and not self._over.is_set():
                stop = _stop_for([self._gang.members[index]], f" was lost: {error}", lost=True)
                self._broken.append((CAUSE, time.monotonic(), stop))
        except asyncio.CancelledError:
            pass  # this member is leaving; asyncio of Python 3.11 would print it
        finally:
            writer.close()
            if index is not None:
                self._writers.pop(index, None)

    def _check_greeting(self, message: Mapping[str, Any], nonce: str) -> tuple[int, Any]:
        index, bring = message.get("index"), message.get("bring")
        if (
            isinstance(index, int)
            and index not in self._brought
            and 0 < index < len(self._gang.members)
            and hmac.compare_digest(self._sign(nonce, index, bring), str(message.get("signature")))
        ):
            return index, bring
        raise _BrokenError("the greeting is not from a member of the gang")

    async def _process(self, index: int, message: Mapping[str, Any]) -> None:
        """On the leader, process a message of the member at ``index``, also one of its own (0)."""
        if message["kind"] == "beat":
            self._theirs[index] = {
                int(local_rank): (Beat(**beat), state) for local_rank, beat, state in message["beats"]
            }
        elif message["kind"] == "arrived":
            name = str(message["name"])
            arrived = self._arrived.setdefault(name, {})
            arrived[index] = str(message["word"])
            if len(arrived) == len(self._gang.members):  # once all have arrived, send their words to all
                words = [word for _, word in sorted(arrived.items())]
                await self._send_all({"kind": "met", "name": name, "words": _packed(words)})
                self._words[name] = words
        elif message["kind"] == "end":
            self._add_end(index, message)

    def _add_end(self, index: int, message: Mapping[str, Any]) -> None:
        if self._ended.get(index, {}).get("message") is not None:
            return  # the first failure counts: a signal may end the member that reports it
        self._ended[index] = dict(message)
        if message["message"] is None:
            return
        weight, text, member = message.get("weight"), str(message["message"]), None
        if weight != SHARED:
            sender, node = self._gang.members[index], message.get("node")
            named = (candidate for candidate in self._gang.members if candidate.node == node)
            member = sender if node == OWN else next(named, None)
            text = f"{_name(member or sender)}: {text}"
        stop = GangStop(member.node if member else None, text)
        self._broken.append((weight if weight in (CAUSE, SHARED) else EFFECT, time.monotonic(), stop))

    async def _send_all(self, message: Mapping[str, Any]) -> None:
        line = _line(message)

        async def send(writer: asyncio.StreamWriter) -> None:
            with suppress(_BrokenError, asyncio.TimeoutError):  # a member that does not receive will be lost soon
                await asyncio.wait_for(_write(writer, line), BEAT_SECONDS * 5)

        await asyncio.gather(*map(send, list(self._writers.values())))

    async def _send_last(self, message: Mapping[str, Any]) -> None:
        """Send the leader's last message, and wait until the members have received it and closed their connections."""
        await self._send_all(message)
        self._over.set()
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while self._writers and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for writer in self._writers.values():
            writer.transport.abort()

    # The other members.

    async def _follow(self) -> None:
        begun = answered = time.monotonic()
        leader, limits, waiting = self._gang.leader, self._limits, Waiting(show)
        while True:
            try:
                opening = asyncio.open_connection(leader.address, self._gang.control_port, limit=self._max_line)
                reader, writer = await asyncio.wait_for(opening, min(CONNECT_SECONDS, limits.join_seconds))
                break
            except (OSError, asyncio.TimeoutError) as error:
                # No packet came back, not even a refusal. An unknown name is of a pod that is still to start.
                is_silent = isinstance(error, asyncio.TimeoutError)
                now = time.monotonic()
                answered = answered if is_silent or getattr(error, "errno", None) in CLOSED_ERRORS else now
                reason = "no answer" if is_silent else getattr(error, "strerror", None) or str(error)
                why = f", the leader, is unreachable at port {self._gang.control_port}: {reason}"
                if now - answered > limits.closed_seconds:
                    why += f" for {now - answered:.0f} s: check firewalls and network policies between the two nodes"
                if now - begun > limits.join_seconds or now - answered > limits.closed_seconds:
                    self._end_with(_stop_for([leader], why))
                    return
                waiting.say(f"waiting to join: {_name(leader)}{why}")
                await asyncio.sleep(RETRY_SECONDS)
        self._writers[0] = writer
        try:
            nonce = (await _read(reader, self._limits.silence_seconds))["nonce"]
            signature = self._sign(nonce, self._gang.index, self._bring)
            hello = {"kind": "hello", "index": self._gang.index, "bring": self._bring, "signature": signature}
            await _send(writer, hello)
            beating = self._loop.create_task(self._beat(writer))
            is_last = False
            while not is_last:
                patience = 0.0 if self._joined.is_set() else self._limits.join_seconds
                is_last = self._take(await _read(reader, patience + self._limits.silence_seconds))
            beating.cancel()
        except _BrokenError as error:
            if not self._over.is_set():
                self._end_with(_stop_for([leader], f", the leader, was lost: {error}", lost=True))
        finally:
            writer.close()

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            beats = [[local_rank, vars(beat), state] for local_rank, (beat, state) in self._beats().items()]
            with suppress(_BrokenError):  # the reader notices it, too
                await _send(writer, {"kind": "beat", "beats": beats})
            await asyncio.sleep(BEAT_SECONDS)

    def _take(self, message: Mapping[str, Any]) -> bool:
        """Process a message of the leader; return whether it was the last."""
        if message["kind"] == "go":
            self._brought = dict(enumerate(_unpacked(message["brought"], self._max_line)))
            self._joined.set()
        elif message["kind"] == "stop":
            self._end_with(GangStop(message["node"], str(message["message"]), bool(message.get("lost"))))
        elif message["kind"] == "met":
            self._words[str(message["name"])] = [str(word) for word in _unpacked(message["words"], self._max_line)]
        elif message["kind"] == "over":
            self._over.set()
        return message["kind"] in ("stop", "over")

    # All members.

    async def _report(self, message: Mapping[str, Any]) -> None:
        """Bring a message to the leader."""
        if self._gang.is_leader:
            await self._process(0, message)
        elif 0 in self._writers:
            with suppress(_BrokenError):  # the reader notices it, too
                await _send(self._writers[0], message)

    def _end_with(self, stop: GangStop) -> None:
        if self.stopped is None:
            self.stopped = stop
            self._joined.set()
            if not self._gang.is_leader:
                self._over.set()
            if not self._left.is_set():
                self._on_stop(stop)

    def _sign(self, nonce: str, index: int, bring: Any) -> str:
        signed = json.dumps([nonce, index, bring], sort_keys=True).encode()
        return hmac.new(self._token, signed, hashlib.sha256).hexdigest()


class StoppedError(Exception):
    """The gang ended early; ``stop`` says why."""

    def __init__(self, stop: GangStop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class _BrokenError(Exception):
    """The other side closed the connection, or sent an invalid message."""


class Waiting:
    """Shows now and then what a member waits for: silence for minutes looks like a hang."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show, self._next = show, time.monotonic() + WAITING_SECONDS

    def say(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next += WAITING_SECONDS
            self._show(text)


def show(text: str) -> None:
    """Print this member's progress, and write it to the result file for the runner."""
    with suppress(OSError):
        WorkloadResult().report(text)


def _name(member: GangMember) -> str:
    return f"{member.node} ({member.address})"


def _stop_for(members: Sequence[GangMember], words: str, *, lost: bool = False) -> GangStop:
    """Return why a gang ends: the members' names and ``words``. A single member is at fault; of several, none alone."""
    return GangStop(members[0].node if len(members) == 1 else None, _names(members) + words, lost)


def _names(members: Sequence[GangMember]) -> str:
    return ", ".join(map(_name, members[:10])) + (" ..." if len(members) > 10 else "")


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _packed(brought: Any) -> str:
    """Return the data of all members, which are much alike, as compressed Base64 text."""
    return base64.b64encode(zlib.compress(json.dumps(brought).encode())).decode()


def _unpacked(text: Any, max_bytes: int) -> Any:
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text), max_bytes)
        return json.loads(data)  # JSON that was cut at the limit is invalid
    except (TypeError, ValueError, zlib.error) as error:
        raise _BrokenError(f"a member's data is invalid: {error}") from None


def _allow_files(files: int) -> None:
    """Raise this process's limit of open files as far as allowed: each member's connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    await _write(writer, _line(message))


async def _write(writer: asyncio.StreamWriter, line: bytes) -> None:
    try:
        writer.write(line)
        await writer.drain()
    except (OSError, RuntimeError) as error:
        raise _BrokenError(str(error) or type(error).__name__) from None


async def _read(reader: asyncio.StreamReader, seconds: float | None) -> dict[str, Any]:
    try:
        line = await asyncio.wait_for(reader.readline(), seconds)
        message = json.loads(line) if line else None
    except asyncio.TimeoutError:
        raise _BrokenError(f"no message for {seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise _BrokenError(str(error) or type(error).__name__) from None
    if message is None:
        raise _BrokenError("the connection was closed")
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise _BrokenError("it sent an invalid message")
    return message
