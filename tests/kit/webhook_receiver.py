"""A receiver of webhooks that answers as it is asked to: a status, a stall, an answer byte by byte, a redirect."""

import base64
import hashlib
import hmac
import http.server
import json
import ssl
import threading


class WebhookReceiver:
    """``answers``: by attempt a status, ``stall``, ``drip``, ``drop`` or a status with headers; the last one stays."""

    def __init__(self, *answers, certificate=None):
        self.answers, self.requests, self.released = list(answers or [204]), [], threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/hook/t0ken"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def events(self):
        return [json.loads(body) for _, body in self.requests]

    def signed_by(self, key, number=-1):
        """Whether the request has the signature of Standard Webhooks, worked out here."""
        headers, body = self.requests[number]
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body.decode()}"
        digest = hmac.digest(key, text.encode(), hashlib.sha256)
        return headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()

    def _handler(self):
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                receiver.requests.append((self.headers, b'"GET"'))
                self._status(200)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.headers, body))
                answer = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                if answer == "stall":
                    receiver.released.wait(30)
                elif answer == "drop":
                    self.connection.close()
                elif answer == "drip":
                    self._drip()
                elif isinstance(answer, tuple):
                    self._status(*answer)
                else:
                    self._status(answer)

            def _drip(self):
                for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:
                    try:
                        self.wfile.write(bytes([byte]))
                    except OSError:
                        return
                    if receiver.released.wait(0.05):
                        return

            def _status(self, status, headers=()):
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler
