"""An OpenAI-compatible server that does one thing wrong, for the tests of the inference workload.

Request 0, the warm-up, is answered well; the numbers are read from the prompts.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKENS = 5
GAP = 0.02
FIRST = 0.05
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"

options = argparse.Namespace()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        status = 503 if options.mode == "unhealthy" else 200
        self.reply(status, {"object": "list", "data": [{"id": "the-model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = int(re.match(r"Note (\d+)\.", body["messages"][0]["content"])[1])
        mode = "good" if number == 0 else options.mode
        if mode == "odd":
            mode = "error500" if number % 2 else "good"
        if body["model"] != "the-model" or not body["stream"] or body["temperature"] != 0:
            return self.reply(400, {"error": "not what this server expects"})
        if mode == "error500":
            return self.reply(500, {"error": "out of memory"})
        if mode == "hang":
            time.sleep(60)
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.stream(mode)

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, mode):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.event({"choices": [{"delta": {"role": "assistant"}}]})
        time.sleep(FIRST)
        for index in range(0 if mode == "empty" else TOKENS):
            if index:
                time.sleep(GAP)
            self.event({"choices": [{"delta": {"content": f"word{index} "}}]})
            if mode == "cut" and index == 2:
                return
            if mode == "drip":
                time.sleep(60)
        if mode == "malformed":
            self.wfile.write(b"data: {not json\n\n")
            return
        if mode == "error_event":
            self.event({"error": {"message": "worker died"}})
            return
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if mode != "no_usage":
            tokens = 0 if mode == "empty" else TOKENS
            self.event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": tokens}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def spawn(pid_file):
    """Start children that are hard to find and to stop: one in a session of its own, one whose parent is gone."""
    alone = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
    script = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    orphan = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    Path(pid_file).write_text(f"{alone.pid} {orphan}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--mode", default="good")
    parser.add_argument("--pid-file")
    parser.parse_args(namespace=options)
    if options.mode == "die_at_start":
        print("CUDA error: no kernel image is available", flush=True)
        sys.exit(7)
    if options.pid_file:
        spawn(options.pid_file)
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
