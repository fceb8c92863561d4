"""Uploads results to the store by signed URL, in the background of the work. URLs are secrets and are never shown."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from gpuval_node import clock_skew

from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import digest, file_stamp, read_bounded, read_object, to_json, write_atomically
from gpuval_runner.store import SignedStore, load_store

MAX_OBJECT_BYTES = 1 << 30
MAX_ANSWER_BYTES = 1 << 16
CONTENT_TYPES = {"records": "application/json", "series": "application/json", "logs": "text/plain; charset=utf-8"}

#: Seconds to wait for an upload thread to end.
END_SECONDS = 1.0

#: OpenSSL's error codes for a certificate that is not valid yet, or has expired.
_TIME_CODES = (9, 10)

Source = Union[bytes, Path]
#: Function that sends data to a URL (with headers and timeout); returns the HTTP status, raises OSError without one.
Send = Callable[[str, bytes, Mapping[str, str], float], int]


def make_opener(ca_file: Optional[str]) -> urllib.request.OpenerDirector:
    """Return an opener of HTTP(S) URLs that trusts the CA file alone, or without one the system's authorities. Raises
    ``StoreFileError`` when the CA file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise StoreFileError(f"CA file {ca_file} of the store cannot be used: {error.strerror or error}") from error
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def is_passing(status: int) -> bool:
    """Whether a retry may give another answer than this HTTP status."""
    return status in (408, 425, 429) or status >= 500


def http_sender(ca_file: Optional[str]) -> Send:
    """Return a function that sends by HTTP(S) PUT. Raises ``StoreFileError`` when the CA file cannot be used."""
    opener = make_opener(ca_file)

    def send(url: str, data: bytes, headers: Mapping[str, str], timeout: float) -> int:
        request = urllib.request.Request(url, data=data, headers=dict(headers), method="PUT")  # noqa: S310 - http(s) only
        try:
            with opener.open(request, timeout=timeout) as answer:
                answer.read(MAX_ANSWER_BYTES)
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no valid answer ({type(error).__name__})") from None

    return send


@dataclass(frozen=True)
class UploadPace:
    """Waits in seconds: between retries while the store is unreachable (doubled up to `longest`, with jitter), and
    after a refusal; and timeouts of a request."""

    first: float = 0.5
    longest: float = 10.0
    refused: float = 300.0
    first_timeout: float = 5.0
    timeout: float = 30.0

    def wait(self, failures: int, chance: float) -> float:
        """Return the wait in seconds after a number of failures in a row; `chance`, from 0 to 1, is the jitter."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 16)) * (0.5 + 0.5 * chance)


class _RefusedError(StoreFileError):
    """The store refuses the signed URL of an object: its upload waits for another URL."""


class Ledger:
    """The file that says which results the store has: `{result key: SHA-256}`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._digests = read_ledger(path)

    def note(self, key: str, sha256: str) -> None:
        with self._guard:
            self._digests[key] = sha256
            with contextlib.suppress(OSError):  # a full disk: at worst a result is fetched that the store already has
                write_atomically(self._path, to_json(self._digests))


def read_ledger(path: Path) -> dict[str, str]:
    """Return which results the store has (`{result key: SHA-256}`), by a ledger file; empty when it cannot be read."""
    return {key: value for key, value in read_object(path, 1 << 20).items() if isinstance(value, str)}


class Uploader:
    """Uploads the latest version of each result in two threads: one for records, one for logs and series."""

    def __init__(
        self,
        store_file: Path,
        ledger: Ledger,
        *,
        private: bool = True,
        pace: Optional[UploadPace] = None,
        sender: Callable[[Optional[str]], Send] = http_sender,
    ) -> None:
        """Raises ``StoreFileError`` when the store file is malformed or readable by others."""
        file = _StoreFile(store_file, private, sender)
        file.current()
        self._lanes = {kind: _Lane(file, ledger, pace or UploadPace()) for kind in ("records", "others")}

    @property
    def reachable(self) -> Optional[bool]:
        """True once an upload succeeded, False once one failed, None before."""
        answers = {lane.reachable for lane in self._lanes.values()} - {None}
        return any(answers) if answers else None

    def problems(self) -> list[str]:
        """Return the last problem of each upload thread, in words without any URL."""
        return [lane.problem for lane in self._lanes.values() if lane.problem]

    def put(self, key: str, source: Source) -> None:
        """Queue a result for upload; it replaces a waiting version of its key. A path is read at the time of upload."""
        self._lanes["records" if key.startswith("records/") else "others"].put(key, source)

    def flush(self, limit: float, away_limit: float) -> list[str]:
        """Wait until all is sent, for `limit` seconds (`away_limit` if the store never answered). Returns the keys that
        still wait."""
        start = time.monotonic()
        for lane in self._lanes.values():
            lane.hurry()
        while True:
            waiting = [key for lane in self._lanes.values() for key in lane.waiting()]
            if not waiting or time.monotonic() - start >= (limit if self.reachable else away_limit):
                return waiting
            time.sleep(0.05)

    def close(self) -> None:
        """Stop uploads; a transfer under way may finish after the return. Threads must end before Python does: to end
        one at exit, Python needs a library that small images lack, and the process would abort."""
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            lane.thread.join(END_SECONDS)


class _StoreFile:
    """The file with the store's signed URLs, read again when it changes, and the function that sends to these URLs."""

    def __init__(self, path: Path, private: bool, sender: Callable[[Optional[str]], Send]) -> None:
        self._path, self._private, self._sender = path, private, sender
        self._guard = threading.Lock()
        self._stamp: Any = None
        self._store: Optional[SignedStore] = None
        self._send: Optional[Send] = None
        self.version = 0

    def current(self) -> Optional[SignedStore]:
        with self._guard:
            stamp = file_stamp(self._path.resolve())  # a mounted file is a link
            if stamp != self._stamp:
                self._store = load_store(self._path, self._private)
                self._send = None
                self._stamp = stamp
                self.version += 1
            return self._store

    def send(self, url: str, data: bytes, content_type: str, timeout: float) -> int:
        with self._guard:
            send = self._send = self._send or self._sender(self._store.ca_file if self._store else None)
        return send(url, data, {"Content-Type": content_type}, timeout)


class _Lane:
    """An upload thread, and the results that wait for it."""

    def __init__(self, store_file: _StoreFile, ledger: Ledger, pace: UploadPace) -> None:
        self._file, self._ledger, self._pace = store_file, ledger, pace
        self._condition = threading.Condition()
        #: Bytes or file to send, by result key. A new tuple for each version identifies the version.
        self._sources: dict[str, tuple[Source]] = {}
        self._refused: dict[str, tuple[int, float]] = {}  # by key: the store file's version, time of the next try
        self._failures = 0
        self._resume_at = 0.0
        self._hurry = False
        self._closed = False
        self.reachable: Optional[bool] = None
        self.problem = ""
        self.thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self.thread.start()

    def put(self, key: str, source: Source) -> None:
        with self._condition:
            self._sources[key] = (source,)
            self._condition.notify_all()

    def waiting(self) -> list[str]:
        with self._condition:
            return [key for key in self._sources if not self._closed and not self._is_refused(key)]

    def hurry(self) -> None:
        """Retry at once all results that wait after a failure, and each refused result once more."""
        with self._condition:
            self._hurry = True
            self._resume_at = 0.0
            self._refused.clear()
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _is_refused(self, key: str) -> bool:
        version, until = self._refused.get(key, (-1, 0.0))
        return version == self._file.version and time.monotonic() < until

    def _run(self) -> None:
        while True:
            if self._refused:
                with contextlib.suppress(StoreFileError):  # the next upload reports a malformed store file
                    self._file.current()  # the controller may have renewed the URLs
            with self._condition:
                if self._closed:
                    return
                present = time.monotonic()
                due = (pair for pair in self._sources.items() if not self._is_refused(pair[0]))
                ready = next(due, None) if present >= self._resume_at else None
                if ready is None:
                    self._condition.wait(1.0 if not self._sources else min(1.0, max(0.05, self._resume_at - present)))
                    continue
            self._attempt(*ready)

    def _attempt(self, key: str, version: tuple[Source]) -> None:
        """Send one version of a result. On failure the result waits for a retry, longer if the store refused it."""
        try:
            unreadable = self._send(key, version[0])
        except _RefusedError as error:
            self._settle(f"{key}: {error}")
            with self._condition:
                self._refused[key] = (self._file.version, time.monotonic() + self._pace.refused)
        except StoreFileError as error:
            self._settle(str(error))
            with self._condition:
                self._failures = min(self._failures + 1, 3) if self._hurry else self._failures + 1
                self._resume_at = time.monotonic() + self._pace.wait(self._failures, random.random())  # noqa: S311 - jitter
        else:
            with self._condition:
                self.problem = unreadable
                if self._sources[key] is version:
                    del self._sources[key]

    def _send(self, key: str, source: Source) -> str:
        """Upload a result; returns why its file is unreadable, else empty. Raises ``StoreFileError`` for failures."""
        store = self._file.current()
        if store is None or key not in store.put:
            raise _RefusedError("no URL was given" if store else "there is no store")
        url = store.put[key]
        if store.expired(url):
            raise _RefusedError("its URL has expired")
        try:
            data = source if isinstance(source, bytes) else read_bounded(source, MAX_OBJECT_BYTES)
        except OSError as error:
            return f"{key}: cannot be read: {error.strerror or type(error).__name__}"
        timeout = self._pace.timeout if self.reachable else self._pace.first_timeout
        try:
            status = self._file.send(url, data, CONTENT_TYPES[key.partition("/")[0]], timeout)
        except OSError as error:
            raise StoreFileError(f"the store does not answer: {reason(error, url)}") from None
        if is_passing(status):
            raise StoreFileError(f"the store answers {status}")
        if not 200 <= status < 300:
            why = "expired, not allowed, or the controller's clock is off"
            raise _RefusedError(f"the store refuses with {status} ({why})")
        self.reachable, self._failures = True, 0
        self._ledger.note(key, digest(data))
        return ""

    def _settle(self, problem: str) -> None:
        with self._condition:
            self.problem = problem
            self.reachable = bool(self.reachable)


def reason(error: Exception, url: str = "") -> str:
    """Return an error of a request in words that contain no URL."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, (TimeoutError, socket.timeout)):  # two classes before Python 3.10
        return "timed out"
    if isinstance(cause, ssl.SSLCertVerificationError):
        clock = clock_skew.in_words(clock_skew.seconds_ahead(url)) if url and cause.verify_code in _TIME_CODES else ""
        return f"its certificate is not trusted ({cause.verify_message})" + (f"; {clock}" if clock else "")
    if isinstance(cause, OSError) and cause.errno:
        return cause.strerror or type(cause).__name__
    return type(cause).__name__
