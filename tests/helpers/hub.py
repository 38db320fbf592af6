"""A local server that answers as the Hugging Face hub does, as far as downloads of models ask: what a commit is called,
which files it has, and the files. Nothing of it leaves 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT, OLDER = "a" * 40, "b" * 40
_ROUTES = re.compile(
    r"/api/models/(?P<info>[^/]+/[^/]+)/revision/(?P<revision>.+)"
    r"|/api/models/(?P<tree>[^/]+/[^/]+)/tree/(?P<at>[^/]+)"
    r"|/(?P<file>[^/]+/[^/]+)/resolve/(?P<of>[^/]+)/(?P<path>.+)"
)


class Hub:
    """Models by name. The branch `main` is `COMMIT`, the tag `v1` is `OLDER`."""

    def __init__(self) -> None:
        self.url = ""
        self.models: dict[str, dict[str, Path]] = {}
        """name -> commit -> folder"""
        self.gated: set[str] = set()
        """names whose files need `token`"""
        self.token = "hf_secret"
        self.downloaded: list[str] = []
        """files that were asked for"""


@contextmanager
def serve() -> Iterator[Hub]:
    """Until the end of the `with`."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._route(send=False)

        def do_GET(self) -> None:
            self._route(send=True)

        def _route(self, send: bool) -> None:
            found = _ROUTES.fullmatch(unquote(urlsplit(self.path).path))
            name = found and (found["info"] or found["tree"] or found["file"])
            if found is None or name not in hub.models:
                return self._refuse(401, "RepoNotFound", send)
            commits = hub.models[name]
            asked = found["revision"] or found["at"] or found["of"]
            commit = {"main": COMMIT, "v1": OLDER}.get(asked, asked)
            if commit not in commits:
                return self._refuse(404, "RevisionNotFound", send)
            folder = commits[commit]
            if found["info"]:
                return self._answer(json.dumps({"id": name, "sha": commit}).encode(), send)
            if found["tree"]:
                return self._answer(json.dumps(_tree(folder)).encode(), send)
            if name in hub.gated and self.headers["Authorization"] != f"Bearer {hub.token}":
                return self._refuse(403, "GatedRepo", send)
            if send:
                hub.downloaded.append(found["path"])
            content = (folder / found["path"]).read_bytes()
            self._answer(content, send, {"X-Repo-Commit": commit, "ETag": f'"{_digest(content)}"'})

        def _answer(self, content: bytes, send: bool, headers: dict[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if send:
                self.wfile.write(content)

        def _refuse(self, status: int, code: str, send: bool) -> None:
            self._answer(b"{}", send, {"X-Error-Code": code}, status)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tree(folder: Path) -> list[dict[str, object]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {
            "type": "file",
            "path": path.relative_to(folder).as_posix(),
            "size": path.stat().st_size,
            "oid": _digest(path.read_bytes()),
        }
        for path in files
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
