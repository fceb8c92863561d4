"""What the leader learns of members that have not joined: their records, which it may read by signed URL."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from .members import FILE_VARIABLE

#: Beside the gang's document: the URLs by stage and node, and the certificate authority of the store.
FILE = "gang_records.json"
#: States of a stage that cannot join any more.
ENDED = ("failure", "crash", "timeout")
SECONDS = 5.0
MAX_BYTES = 8 << 20
MAX_MESSAGE = 500


class MemberRecords:
    """The records of this stage in the store. Empty where the node does not get them."""

    def __init__(self, urls: Mapping[str, str], authority: str = "", attempt: int = 1) -> None:
        self._urls, self._authority, self._attempt = urls, authority, attempt

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> MemberRecords:
        """Those of the stage that runs here."""
        try:
            document = json.loads(Path(environ[FILE_VARIABLE]).with_name(FILE).read_text(encoding="utf-8"))
            stage, attempt = f"{environ['GPUVAL_STAGE']}/", int(environ["GPUVAL_ATTEMPT"])
        except (KeyError, OSError, ValueError):
            return cls({})
        urls = {key[len(stage) :]: url for key, url in document["urls"].items() if key.startswith(stage)}
        return cls(urls, document["ca"], attempt)

    def ended(self, nodes: Sequence[str]) -> tuple[str, str] | None:
        """The first of these nodes whose stage has ended without success in this attempt, and its message. Takes
        seconds."""
        context = ssl.create_default_context(cadata=self._authority or None)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        for node in nodes:
            if node not in self._urls:
                continue
            try:
                with opener.open(self._urls[node], timeout=SECONDS) as answer:
                    record = json.loads(answer.read(MAX_BYTES))
            except urllib.error.HTTPError:  # there is none yet
                continue
            except (OSError, http.client.HTTPException):  # the store is away: the next look may find it
                return None
            except (ValueError, RecursionError):
                continue
            if not isinstance(record, dict) or record.get("attempt") != self._attempt:
                continue
            if record.get("state") in ENDED:
                return node, " ".join(str(record.get("message")).split())[:MAX_MESSAGE]
        return None
