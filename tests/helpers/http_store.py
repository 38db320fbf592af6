"""A local HTTP server of one directory, with byte ranges, that counts requests and can be made to fail."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Fault = Literal["reset", "cut", "silent", "whole", "flip", "short", "closed", "chunked"] | int
"""What happens instead: the connection breaks, at once or after half of the body; no answer comes for a while; the
range is ignored; a byte is wrong; half of the body comes, with its own length, without any, or in chunks that never
end; or an HTTP status."""


class HttpStore:
    """What a test knows of the server."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.url = directory, ""
        self.fault: Callable[[str, int], Fault | None] = lambda file, number: None
        """The fault of a GET request, by the file's name and the number of requests before it."""
        self.head_status: int | None = None
        """What HEAD requests are answered with, if not as they should be."""
        self.requests: list[tuple[str, str, str | None]] = []
        """(method, file, range)"""
        self.counts: Counter[str] = Counter()
        """GET requests by file."""
        self.lock = threading.Lock()

    def ranges(self, suffix: str) -> list[tuple[str, str | None]]:
        """(file, range) of the GET requests of files whose names end so."""
        return [(file, span) for method, file, span in self.requests if method == "GET" and file.endswith(suffix)]


@contextmanager
def serve(directory: Path) -> Iterator[HttpStore]:
    """Until the end of the `with`."""
    store = HttpStore(directory)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            self._answer(send=True)

        def _answer(self, send: bool) -> None:
            file, span = self.path.rsplit("/", 1)[-1], self.headers.get("Range")
            with store.lock:
                store.requests.append((self.command, file, span))
                fault = store.fault(file, store.counts[file]) if send else store.head_status
                store.counts[file] += send
            path = store.directory / file
            if fault == "reset":
                # A reset, not an orderly end.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            if fault == "silent":
                time.sleep(3.0)
                self.close_connection = True
                return
            if isinstance(fault, int) or not path.is_file():
                self.send_response(fault if isinstance(fault, int) else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = path.read_bytes()
            total, status = len(body), 200
            self_range = re.fullmatch(r"bytes=(\d+)-(\d+)", span or "")
            if self_range and fault != "whole":
                first, last = map(int, self_range.groups())
                if first >= total:
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body, status = body[first : last + 1], 206
            if fault == "flip":
                body = bytes([body[0] ^ 1]) + body[1:]
            half = body[: len(body) // 2]
            if fault == "short":
                body = half
            self.send_response(status)
            if fault == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
                half = b"%x\r\n%b\r\n" % (len(half), half)
            elif fault != "closed":
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if send:
                broken = fault in ("cut", "closed", "chunked")
                self.wfile.write(half if broken else body)
                self.close_connection |= broken

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that went away, or the reset that was asked for

    server = Server(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_address[1]}/set"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
