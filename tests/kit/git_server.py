"""A git server over HTTP on the loopback: git's own program behind a handler, for one account."""

import base64
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class GitServer:
    """Serves the bare repositories below `root` to `user` alone. `seen` are the Authorization headers."""

    def __init__(self, root: Path, user: str, password: str) -> None:
        given = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.root, self.wanted, self.seen = root, f"Basic {given}", set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "GitServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, str], submodules: dict[str, str] | None = None) -> str:
        """A repository of one commit, with other repositories of this server as submodules; returns its commit."""
        work = self.root / f"{name}.work"
        work.mkdir(parents=True)
        self._git(work, "init", "--quiet", "--initial-branch", "main")
        for path, text in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        self._git(work, "add", ".")
        for path, commit in (submodules or {}).items():
            (work / ".gitmodules").write_text(f'[submodule "{path}"]\n\tpath = {path}\n\turl = ../{path}.git\n')
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
            if given != server.wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
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
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """No lines."""

    return Handler
