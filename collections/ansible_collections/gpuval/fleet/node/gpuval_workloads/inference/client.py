"""One streaming chat request to an OpenAI-compatible server, and what its events say."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

MAX_ERROR_CHARACTERS = 300


class RequestError(Exception):
    """The request is not work done; the message says why in a few words."""


@dataclass(frozen=True)
class InferenceEndpoint:
    host: str
    port: int


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
        try:
            event = json.loads(value)
        except ValueError as error:
            raise RequestError(f"malformed event: {value[:MAX_ERROR_CHARACTERS]!r}") from error
        if not isinstance(event, dict):
            raise RequestError(f"malformed event: {value[:MAX_ERROR_CHARACTERS]!r}")
        if event.get("error"):
            raise RequestError(f"error event: {json.dumps(event['error'])[:MAX_ERROR_CHARACTERS]}")
        self._take(event, now)

    def _take(self, event: Mapping, now: float) -> None:
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
        generated = (self.usage or {}).get("completion_tokens")
        has_usage = isinstance(generated, int)
        tokens = generated if isinstance(generated, int) else len(self.texts)
        if tokens < 1:
            raise RequestError("empty answer")
        return CompletionAnswer(
            text="".join(self.texts),
            ttft=self.times[0] - self.started if self.times else None,
            gaps=tuple(later - earlier for earlier, later in zip(self.times, self.times[1:])),
            generated_tokens=tokens,
            prompt_tokens=(self.usage or {}).get("prompt_tokens"),
            has_usage=has_usage,
        )


def ask(endpoint: InferenceEndpoint, body: Mapping, timeout: float) -> CompletionAnswer:
    """Send one chat request and read its stream to the end, in `timeout` seconds at most. Raises ``RequestError``."""
    started = time.monotonic()
    deadline = started + timeout
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
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
            return _read_stream(response, sock, Stream(started), deadline)
    except socket.timeout as error:
        raise RequestError(f"no complete answer within {timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"connection failed: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _read_stream(
    response: http.client.HTTPResponse, sock: socket.socket, stream: Stream, deadline: float
) -> CompletionAnswer:
    while not stream.is_done:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise socket.timeout
        if sock.fileno() >= 0:
            sock.settimeout(remaining)
        line = response.readline(1 << 20)
        if not line:
            break
        stream.feed(line, time.monotonic())
    return stream.answer()


def get(endpoint: InferenceEndpoint, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Return status and body of a GET. Raises ``OSError`` or ``http.client.HTTPException``."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    finally:
        connection.close()
