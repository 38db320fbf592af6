"""Paths of databases as addresses of SQLAlchemy, which MLflow opens them by."""

from pathlib import Path
from urllib.parse import unquote

_BEGIN = "sqlite:///"


def sqlite_uri(database: Path) -> str:
    """The address of a database. SQLAlchemy splits addresses at the first `?`, and decodes what comes before it."""
    return _BEGIN + str(database).replace("%", "%25").replace("?", "%3F")


def sqlite_path(uri: str) -> Path | None:
    """The database at an address; None for an address of another kind, also of SQLite's own (`uri=true`)."""
    path, _, query = uri.partition("?")
    return Path(unquote(path.removeprefix(_BEGIN))) if path.startswith(_BEGIN) and "uri=" not in query else None
