"""Sends streaming chat requests to an OpenAI-compatible server, one or many, and measures the answers.

Each of a set number of threads sends a request, waits for the complete answer, and repeats; a tally counts the results.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Optional

from ..common.laps import ThinnedSample, percentile

MAX_ERROR_CHARACTERS = 300
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
SAMPLE_SIZE = 100_000
KEPT_ERRORS = 50
TOKENS_PER_WORD = 1.4  # English prose with the tokenizers of present models, punctuation included

_TEXT = """
The harbour lies quiet before the first ferry leaves. A crane turns slowly above the quay, and the night watch
counts containers by the light of a lamp. Each box has a number, each number a line in a book, and each line the
name of someone who is waiting. When the tide comes in the pilot boards the largest ship, asks for the draught and
the wind, and takes her out between the buoys. None on the bridge speaks more than is needed. Far out the water
changes its colour; the engine finds its rhythm, and the coast becomes a thin grey stroke. The captain writes the
hour and the course. In the galley the cook peels potatoes and listens to the weather report: a low pressure area
moves north, gusts are expected towards evening, visibility is good. By noon the sun stands high, paint is scraped,
ropes are spliced, and a young sailor learns to tell the flags apart. He asks why the sea is never the same twice.
The boatswain laughs, points at the log book and says that it is always the same sea, but that someone has to look
at it every hour and write down what he saw.
"""
_WORDS = _TEXT.split()

#: Host and TCP port of a server.
Endpoint = tuple[str, int]


class RequestError(Exception):
    """A request that failed; the message says why in a few words."""


@dataclass(frozen=True)
class CompletionAnswer:
    """A complete answer. Times are in seconds; ``ttft`` is to the first token, ``gaps`` are between content chunks."""

    text: str
    ttft: Optional[float]
    gaps: tuple[float, ...]
    generated_tokens: int
    prompt_tokens: Optional[int]
    has_usage: bool


@dataclass
class Stream:
    """Reads the server-sent events of one answer line by line; the caller gives the times."""

    started: float
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    usage: Optional[Mapping] = None
    is_finished: bool = False
    is_done: bool = False

    def feed(self, line: bytes, now: float) -> None:
        """Read one line. Raises ``RequestError`` for an error event, or a line that is no event of a chat stream."""
        text = line.decode("utf-8", "replace").strip()
        if not text or text.startswith(":"):
            return
        name, _, value = text.partition(":")
        if name in ("event", "id", "retry"):
            return
        if name != "data":
            raise RequestError(f"malformed event: {text[:MAX_ERROR_CHARACTERS]!r}")
        value = value.strip()
        if value == "[DONE]":
            self.is_done = True
            return
        event = None
        with suppress(ValueError):
            event = json.loads(value)
        if not isinstance(event, dict):
            raise RequestError(f"malformed event: {value[:MAX_ERROR_CHARACTERS]!r}")
        if event.get("error"):
            raise RequestError(f"error event: {json.dumps(event['error'])[:MAX_ERROR_CHARACTERS]}")
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        try:
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
                if piece:
                    self.texts.append("" + piece)  # raises TypeError for anything but text
                    self.times.append(now)
                self.is_finished = self.is_finished or bool(choice.get("finish_reason"))
        except (AttributeError, TypeError):
            raise RequestError(f"malformed event: {value[:MAX_ERROR_CHARACTERS]!r}") from None

    def answer(self) -> CompletionAnswer:
        """Return the complete answer. Raises ``RequestError`` when the stream was cut off or had no token."""
        if not (self.is_done or self.is_finished):
            raise RequestError(f"stream cut after {len(self.texts)} chunks: neither finish_reason nor [DONE]")
        usage = self.usage or {}
        has_usage = isinstance(usage.get("completion_tokens"), int)
        tokens = usage["completion_tokens"] if has_usage else len(self.texts)
        if tokens < 1:
            raise RequestError("empty answer")
        return CompletionAnswer(
            text="".join(self.texts),
            ttft=self.times[0] - self.started if self.times else None,
            gaps=tuple(later - earlier for earlier, later in zip(self.times, self.times[1:])),
            generated_tokens=tokens,
            prompt_tokens=usage.get("prompt_tokens"),
            has_usage=has_usage,
        )


def ask(endpoint: Endpoint, body: Mapping, timeout: float) -> CompletionAnswer:
    """Send one chat request and read its stream to the end, within `timeout` seconds. Raises ``RequestError``."""
    started = time.monotonic()
    deadline = started + timeout
    connection = http.client.HTTPConnection(*endpoint, timeout=timeout)
    try:
        connection.connect()
        sock = connection.sock
        payload = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        connection.request("POST", "/v1/chat/completions", payload, headers)
        with connection.getresponse() as response:
            if response.status != 200:
                text = response.read(4096).decode("utf-8", "replace")
                raise RequestError(f"HTTP {response.status}: {' '.join(text.split())[:MAX_ERROR_CHARACTERS]}")
            stream = Stream(started)
            while not stream.is_done:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise RequestError(f"no complete answer within {timeout:g} s")
                if sock.fileno() >= 0:
                    sock.settimeout(remaining)
                line = response.readline(1 << 20)
                if not line:
                    break
                stream.feed(line, time.monotonic())
            return stream.answer()
    except socket.timeout as error:
        raise RequestError(f"no complete answer within {timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"connection failed: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def get(endpoint: Endpoint, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Return status and body of a GET. Raises ``OSError`` or ``http.client.HTTPException``."""
    connection = http.client.HTTPConnection(*endpoint, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    finally:
        connection.close()


def prompt(index: int, tokens: int) -> str:
    """Return the prompt of request `index`, of roughly `tokens` tokens; the index begins it, so that a server's prefix
    cache cannot save the work."""
    count = max(1, round(tokens / TOKENS_PER_WORD) - 3)
    start = index * 37 % len(_WORDS)
    words = [_WORDS[(start + offset) % len(_WORDS)] for offset in range(count)]
    return f"Note {index}. Continue: {' '.join(words)}"


class Tally:
    """Counts the requests of a measurement; thread-safe. A failed request adds to no other figure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done = 0
        self.failed = 0
        self.abandoned = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.with_usage = 0
        self.ttft = ThinnedSample(SAMPLE_SIZE)
        self.gaps = ThinnedSample(SAMPLE_SIZE)
        self._errors: Counter[str] = Counter()

    def add_answer(self, answer: CompletionAnswer) -> None:
        with self._lock:
            self.done += 1
            self.generated_tokens += answer.generated_tokens
            self.prompt_tokens += answer.prompt_tokens or 0
            self.with_usage += answer.has_usage
            if answer.ttft is not None:
                self.ttft.extend((answer.ttft,))
            self.gaps.extend(answer.gaps)

    def add_failure(self, reason: str) -> None:
        with self._lock:
            self.failed += 1
            if reason in self._errors or len(self._errors) < KEPT_ERRORS:
                self._errors[reason] += 1

    def token_source(self) -> str:
        if self.with_usage == self.done:
            return "usage reported by the server"
        return "content chunks" if self.with_usage == 0 else "usage where the server reported it, else content chunks"

    def most_frequent_error(self) -> str | None:
        with self._lock:
            return self._errors.most_common(1)[0][0] if self._errors else None

    def metrics(self, seconds: float) -> list[tuple[str, float, str]]:
        """Return name, value and unit of the figures, for a measurement of `seconds`; unmeasured ones are left out."""
        with self._lock:
            figures: list[tuple[str, float | None, str]] = [
                ("inference_running_seconds", seconds, "seconds"),
                ("inference_requests_done_count", self.done, "count"),
                ("inference_requests_failed_count", self.failed, "count"),
                ("inference_requests_abandoned_count", self.abandoned, "count"),
                ("inference_prompt_tokens_count", self.prompt_tokens if self.with_usage else None, "count"),
                ("inference_generated_tokens_count", self.generated_tokens, "count"),
                ("inference_ttft_p50_seconds", _percentile(self.ttft, 50), "seconds"),
                ("inference_ttft_p99_seconds", _percentile(self.ttft, 99), "seconds"),
                ("inference_itl_p50_seconds", _percentile(self.gaps, 50), "seconds"),
                ("inference_itl_p99_seconds", _percentile(self.gaps, 99), "seconds"),
            ]
            if seconds > 0:
                figures.append(("inference_tokens_per_second", self.generated_tokens / seconds, "tokens/s"))
                figures.append(("inference_requests_per_second", self.done / seconds, "requests/s"))
        return [(name, value, unit) for name, value, unit in figures if value is not None]


def _percentile(sample: ThinnedSample, percent: float) -> float | None:
    return percentile(sample.kept, percent) if sample.kept else None


class RequestLoad:
    """Runs so many `threads` that call `ask` with 1, 2, 3, ... until stopped or `limit` requests were sent."""

    def __init__(self, ask: Callable[[int], CompletionAnswer], tally: Tally, threads: int, limit: int | None) -> None:
        self._ask = ask
        self._tally = tally
        self._limit = limit
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {index}", daemon=True) for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, seconds: float) -> None:
        """Send no new requests; requests that do not end within `seconds` count as abandoned alone."""
        self._stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._closed = True
        self._tally.abandoned += sum(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            number = next(self._numbers)
            if self._limit is not None and number > self._limit:
                return
            try:
                answer = self._ask(number)
            except RequestError as error:
                print(f"request {number} failed: {error}", flush=True)
                self._count(self._tally.add_failure, str(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._count(self._tally.add_answer, answer)
                pause = FIRST_PAUSE_SECONDS

    def _count(self, add: Callable, value: CompletionAnswer | str) -> None:
        with self._lock:
            if not self._closed:
                add(value)
