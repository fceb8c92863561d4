"""One streaming chat request to an OpenAI-compatible server: its prompt, and what its events say."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Optional

MAX_ERROR_CHARACTERS = 300
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

#: Host and port.
Endpoint = tuple[str, int]


class RequestError(Exception):
    """The request is not work done; the message says why in a few words."""


@dataclass(frozen=True)
class CompletionAnswer:
    """A complete answer. Times in seconds; ``gaps`` lie between content chunks."""

    text: str
    ttft: Optional[float]
    gaps: tuple[float, ...]
    generated_tokens: int
    prompt_tokens: Optional[int]
    has_usage: bool


@dataclass
class Stream:
    """Reads server-sent events line by line; the clock is the caller's."""

    started: float
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    usage: Optional[Mapping] = None
    is_finished: bool = False
    is_done: bool = False

    def feed(self, line: bytes, now: float) -> None:
        """Take in one line. Raises ``RequestError`` for what is no event of a chat stream, and for an error event."""
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
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
            if piece:
                self.texts.append(piece)
                self.times.append(now)
            if choice.get("finish_reason"):
                self.is_finished = True

    def answer(self) -> CompletionAnswer:
        """Return the answer. Raises ``RequestError`` when the stream was cut or brought no token."""
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
    """Send one chat request and read its stream to the end, in `timeout` seconds at most. Raises ``RequestError``."""
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
    """Return the prompt of request `index`, of roughly `tokens` tokens (how many exactly is the tokenizer's to say).

    It begins with the index, so that a server's prefix cache cannot answer for the work.
    """
    count = max(1, round(tokens / TOKENS_PER_WORD) - 3)
    start = index * 37 % len(_WORDS)
    words = [_WORDS[(start + offset) % len(_WORDS)] for offset in range(count)]
    return f"Note {index}. Continue: {' '.join(words)}"
