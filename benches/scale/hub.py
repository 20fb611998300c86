"""A Hub over one model that notes when it sent the last byte: for the time from there to an open gate."""

import http.server
import json
import os
import threading
import time

from model import COMMIT


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _head(self, status, length, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, self.path.split("?")[0]
        if path.startswith("/api/"):
            body = hub.tree if "/tree/" in path else hub.info
            self._head(200, len(body), Content_Type="application/json")
            self.wfile.write(body)
            return
        name = path.split("/resolve/", 1)[1].split("/", 1)[1]
        entry = hub.entries[name]
        size, first, last = entry["size"], 0, entry["size"] - 1
        asked = self.headers.get("Range")
        if asked:
            low, high = asked.removeprefix("bytes=").split("-")
            first, last = int(low), min(int(high or last), last)
        length = last - first + 1
        headers = {"ETag": f'"{entry["digest"].split(":")[1]}"', "Accept_Ranges": "bytes"}
        if asked:
            headers["Content_Range"] = f"bytes {first}-{last}/{size}"
        self._head(206 if asked else 200, length, **headers)
        self.wfile.flush()
        if self.command == "HEAD":
            return
        with open(os.path.join(hub.directory, name), "rb") as file:
            sent = 0
            while sent < length:
                sent += os.sendfile(self.connection.fileno(), file.fileno(), first + sent, length - sent)
        with hub.lock:
            hub.sent += length
            hub.last_byte = time.monotonic()


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, model):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.lock, self.sent, self.last_byte = model.directory, threading.Lock(), 0, 0.0
        self.entries = {entry["path"]: entry for entry in model.manifest["files"]}
        self.tree = json.dumps([self._listed(entry) for entry in model.manifest["files"]]).encode()
        siblings = [{"rfilename": path} for path in self.entries]
        self.info = json.dumps({"id": model.repo, "sha": COMMIT, "private": False, "siblings": siblings}).encode()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def _listed(self, entry):
        kind, digest = entry["digest"].split(":")
        listed = {"type": "file", "path": entry["path"], "size": entry["size"], "oid": digest[:40]}
        if kind == "sha256":
            listed["lfs"] = {"oid": digest, "size": entry["size"], "pointerSize": 134}
        return listed

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"
