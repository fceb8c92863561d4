"""A hub of models with one repository, over HTTP, that can refuse, stall or answer with any status."""

import http.server
import json
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "acme/rocket"
#: As huggingface.co names its refusals; without a token it answers so for a repository that does not exist, too.
NOT_FOUND = (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
UNKNOWN_OR_PRIVATE = (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
GATED = (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model acme/rocket is restricted"})
BAD_TOKEN = (401, {"X-Error-Message": "Invalid credentials in Authorization header"})
STALL = "stall"


class ModelHub:
    """``about``, ``files``: the answer to requests about the repository, and for its files: ``STALL``, a status with
    headers, or None, which is what the hub would answer. `contents`: its files by name."""

    def __init__(self, about=None, files=None, contents=None):
        self.about, self.files, self.contents = about, files, contents or {"config.json": b"{}"}
        self.asked, self._released = [], threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.asked.append(self.path)
                if self.path.startswith(f"/api/models/{REPOSITORY}"):
                    self._give(hub.about, self._about)
                elif self.path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
                    self._give(hub.files, self._file)
                else:
                    self._send(404)

            do_HEAD = do_GET  # noqa: N815 - a name of http.server

            def _give(self, answer, usual):
                if answer == STALL:
                    hub._released.wait(60)
                elif answer:
                    self._send(*answer)
                else:
                    usual()

            def _about(self):
                names = sorted(hub.contents)
                known = {"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
                if "/tree/" in self.path:
                    known = [
                        {"type": "file", "path": name, "size": len(hub.contents[name]), "oid": COMMIT} for name in names
                    ]
                self._send(200, {"Content-Type": "application/json"}, json.dumps(known).encode())

            def _file(self):
                content = hub.contents[self.path.rpartition("/")[2]]
                self._send(200, {"ETag": f'"{COMMIT}"', "X-Repo-Commit": COMMIT}, content)

            def _send(self, status, headers=(), body=b""):
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
