"""An object store on loopback, forked by the process that forks the jobs.

Owns: serving images over HTTP/1.1 after a latency, as a store in another building does. Refuses: anything but GET.
The latency is bounded, and lives here, in another process: the job that asks waits in a real socket.
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_DELAY_S = 1.0


def handler(files: list[bytes], delay_s: float) -> type[BaseHTTPRequestHandler]:
    """A request handler for these objects."""
    pause = threading.Event()
    delay_s = min(max(0.0, delay_s), MAX_DELAY_S)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Header and body are two writes: with Nagle's algorithm the second waits 40 ms for an acknowledgement.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            name = self.path.strip("/")
            if not name.isdigit() or int(name) >= len(files):
                self.send_error(404)
                return
            pause.wait(delay_s)
            body = files[int(name)]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Not a line per request."""

    return Handler


def serve(link: socket.socket, files: list[bytes]) -> None:
    """Read ``{"delay_ms": …}`` from ``link``, answer with the port, serve until ``link`` closes."""
    wish = json.loads(link.makefile().readline())
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(files, float(wish["delay_ms"]) / 1e3))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    link.sendall(json.dumps({"port": server.server_address[1]}).encode() + b"\n")
    link.recv(1)
