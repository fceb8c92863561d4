"""An S3 service that fails as it is asked to: status of uploads by signed URL, who may read and delete, its clock."""

import http.server
import re
import threading
import time
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

KEY = re.compile("<Key>([^<]*)</Key>")
LISTING = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated></ListBucketResult>'


class OddS3:
    def __init__(self):
        self.upload_status, self.readers_denied, self.seconds_ahead = 200, (), 0.0
        self.objects, self.undeletable = {}, False
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def options(self, folder, **further):
        """The option `store` of an action."""
        given = {"access_key": "WRITER", "secret_key": "w", "read_access_key": "READER", "read_secret_key": "r"}
        return {"bucket": "gpuval", "endpoint": self.endpoint, "state_dir": str(folder), **given, **further}

    def _handler(self):
        odd = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                self._answer(200)

            def do_PUT(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                signed = "X-Amz-Signature" in parse_qs(urlsplit(self.path).query)
                reader = "Credential=READER/" in self.headers.get("Authorization", "")
                status = odd.upload_status if signed else 403 if reader else 200
                if status == 200:
                    odd.objects[urlsplit(self.path).path] = data
                self._answer(status)

            def do_GET(self):
                parts = urlsplit(self.path)
                if "list-type" in parse_qs(parts.query):
                    self._answer(200, LISTING)
                elif any(f"Credential={key}/" in self.headers.get("Authorization", "") for key in odd.readers_denied):
                    self._answer(403)
                elif parts.path in odd.objects:
                    self._answer(200, odd.objects[parts.path])
                else:
                    self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

            def do_POST(self):
                asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if odd.undeletable:
                    errors = (f"<Error><Key>{key}</Key><Code>AccessDenied</Code></Error>" for key in KEY.findall(asked))
                    self._answer(200, f"<DeleteResult>{''.join(errors)}</DeleteResult>".encode())
                    return
                odd.objects.clear()
                self._answer(200, b"<DeleteResult/>")

            def _answer(self, status, body=b""):
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + odd.seconds_ahead, usegmt=True))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
