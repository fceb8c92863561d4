"""SSH servers for tests: real sshd on loopback ports, and things that only look like one."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

from tests.kit.fleet import no_engines
from tests.kit.ports import free_port

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
USER = getpass.getuser()
START_SECONDS = 60


def new_key(path, kind="ed25519"):
    """An SSH key pair without a passphrase; returns the public half's text."""
    size = ["-b", "2048"] if kind == "rsa" else []
    command = ["ssh-keygen", "-q", "-t", kind, *size, "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)
    return Path(f"{path}.pub").read_text().strip()


def fingerprint(public_key_file):
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(public_key_file)], check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.split()[1]


class Sshd:
    """A real sshd on a port of its own, with a host key of its own; `user_key` may log in as the user of the tests."""

    def __init__(self, folder, kinds=("ed25519",), port=None, lines=(), within=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.user_key = self.folder / "user"
        if not self.user_key.exists():
            new_key(self.user_key)
            (self.folder / "authorized_keys").write_text(Path(f"{self.user_key}.pub").read_text())
        self.kinds, self.lines, self.within = kinds, lines, within
        for kind in kinds:
            if not (self.folder / f"host_{kind}").exists():
                new_key(self.folder / f"host_{kind}", kind)
        self._process = None
        self.start()

    def host_key(self, kind="ed25519"):
        return (self.folder / f"host_{kind}.pub").read_text().strip()

    def fingerprint(self, kind="ed25519"):
        return fingerprint(self.folder / f"host_{kind}.pub")

    @property
    def variables(self):
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.user_key),
        }

    def start(self):
        settings = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "MaxStartups": 500,
            "Subsystem": "sftp internal-sftp",
            # at level 1 a bash that sshd starts reads ~/.bashrc, which takes what time it likes
            "SetEnv": " ".join(f"{name}={value}" for name, value in {"SHLVL": 2, **no_engines(self.folder)}.items()),
        }
        text = "".join(f"{line}\n" for line in self.lines)  # of a setting sshd takes the first value
        text += "".join(f"{key} {value}\n" for key, value in settings.items())
        text += "".join(f"HostKey {self.folder}/host_{kind}\n" for kind in self.kinds)
        (self.folder / "config").write_text(text)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.within, SSHD, "-D", "-e", "-f", str(self.folder / "config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            told = (self.folder / "log").read_text()
            assert self._process.poll() is None and time.monotonic() < deadline, f"sshd did not start: {told}"
            time.sleep(0.05)

    def stop(self):
        """End it and the sessions it has."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        sessions = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        self._process.terminate()
        self._process.wait(60)
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 15)
        self._process = None

    def change_host_key(self):
        """As a node that was installed again."""
        self.stop()
        for kind in self.kinds:
            for path in self.folder.glob(f"host_{kind}*"):
                path.unlink()
            new_key(self.folder / f"host_{kind}", kind)
        self.start()


class Listener:
    """Something that takes connections and says `greeting`, or nothing."""

    def __init__(self, greeting=b"", close=False):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port = self._socket.getsockname()[1]
        self._greeting, self._close, self._open = greeting, close, []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._open.append(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(self._greeting)
                if self._close:
                    connection.close()

    def stop(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._open:
            connection.close()


class Blackhole:
    """A port that never answers: its queue is full, so the kernel drops each further SYN."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._socket.getsockname()[1]
        self._waiting = []
        for _ in range(8):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", self.port))
            self._waiting.append(waiting)

    def stop(self):
        for waiting in self._waiting:
            waiting.close()
        self._socket.close()
