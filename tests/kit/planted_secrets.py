"""Secrets that are planted, the forms they may leak in, and the command lines of all processes meanwhile."""

import base64
import secrets
import threading
from urllib.parse import quote

from tests.kit.processes import all_pids, read


def plant(name):
    """A secret with characters that each encoding changes."""
    return f"{name}+{secrets.token_hex(8)}/{secrets.token_urlsafe(12)}=="


def forms(secret):
    """The secret as it is, URL-encoded, and as base64 of any text that holds it, whatever stands before it."""
    raw = secret.encode()
    found = {secret, quote(secret, safe=""), quote(secret)}
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).rstrip(b"=").decode()
        whole = encoded[(0, 2, 3)[before] : -1]  # the ends mix with what stands beside it
        found |= {whole, whole.replace("+", "-").replace("/", "_")}
    return {form.encode() for form in found}


def leaks(planted, data):
    """Names of the secrets that stand in `data`, in any form."""
    return sorted(name for name, secret in planted.items() if any(form in data for form in forms(secret)))


class CommandLines:
    """Every command line seen on the machine while the block lasts."""

    def __init__(self, interval=0.02):
        self._interval = interval
        self._stop = threading.Event()
        self._seen = set()
        self.samples = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def text(self):
        return b"\n".join(self._seen)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _sample(self):
        while not self._stop.wait(self._interval):
            self._seen.update(read(pid, "cmdline") for pid in all_pids())
            self.samples += 1
