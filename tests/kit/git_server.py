"""A git server over HTTPS on the loopback: git's own program behind a handler, public or for one account."""

import base64
import os
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates


class GitServer:
    """Serves the bare repositories below `root`, to `user` alone where there is one. `seen` are the Authorization
    headers. Git trusts its certificate with `environment`."""

    def __init__(self, root: Path, user: str = "", password: str = "") -> None:
        given = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.root, self.wanted, self.seen = root, f"Basic {given}" if user else "", set()
        root.mkdir(parents=True, exist_ok=True)
        made = certificates.CertificateFiles(root)
        certificates.ensure(made, [])
        #: The start of an address to which all requests lead.
        self.redirect = ""
        self.environment = {"GIT_SSL_CAINFO": str(made.authority)}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.server, made.server_key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "GitServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, str], submodules: dict[str, str] | None = None) -> str:
        """A repository of one commit; returns it. `submodules` are commits by path: repositories of this server, or
        of an address before a blank. A file of the text `-> TARGET` is a link."""
        work = self.root / f"{name}.work"
        work.mkdir(parents=True)
        self._git(work, "init", "--quiet", "--initial-branch", "main")
        for path, text in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).symlink_to(text[3:]) if text.startswith("-> ") else (work / path).write_text(text)
        self._git(work, "add", ".")
        for path, where in (submodules or {}).items():
            url, _, commit = where.rpartition(" ")
            lines = f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url or f"../{Path(path).name}.git"}\n'
            (work / ".gitmodules").write_text(lines)
            self._git(work, "add", ".gitmodules")
            self._git(work, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
        self._git(work, "commit", "--quiet", "-m", "x")
        self._git(self.root, "clone", "--quiet", "--bare", str(work), f"{name}.git")
        return self._git(work, "rev-parse", "HEAD")

    @staticmethod
    def _git(folder: Path, *arguments: str) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _handler(server: GitServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            server.seen.add(given)
            if server.redirect:
                self._answer(302, {"Location": server.redirect + self.path})
            elif server.wanted and given != server.wanted:
                self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'})
            else:
                self._by_git()

        def _by_git(self) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                **os.environ, "GIT_PROJECT_ROOT": str(server.root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
                "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_USER": "me",
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }  # fmt: skip
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=-1, check=False)
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self._answer(int(headers.pop("Status", "200").split()[0]), headers, answer)

        def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """No lines."""

    return Handler
