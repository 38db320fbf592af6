"""Where the bytes of a dataset come from when it does not lie on this machine: any address that fsspec can read.

An error that may pass (a time-out, a broken connection, an overloaded server) is tried again a few times; one that
will not (no such file, no permission) is told at once. Waits double and have no random part.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from data_pipeline.errors import DataError

Result = TypeVar("Result")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
_NOT_READ = ("ftp", "sftp", "ssh", "smb", "git", "github", "gist", "jupyter", "dbfs")
"""kinds that fsspec knows, and that end in errors of their own"""
_PASSING_STATUS = (408, 429)  # and all from 500 on
_BEYOND_END = 416
_PASSING_ERRNO = (errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH)
# By name, since the packages that raise them are there only for those who need them: aiohttp's and botocore's.
_PASSING_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ResponseParserError"}
_CONNECT_S, _SILENCE_S = 30, 60  # after which a server that says nothing is given up
_STREAM_BYTES = 2**23


@dataclass(frozen=True)
class Retries:
    """How often to try, and how long to wait in between: `first_wait_s`, twice that, and so on."""

    attempts: int = 6
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, from 1."""
        return float(min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s))


class ShortRead(Exception):
    """Fewer bytes came than were asked for, and the server saw nothing wrong with that."""


def local_path(address: str | Path) -> Path | None:
    """The path that an address means; None when it lies elsewhere."""
    if isinstance(address, Path) or "://" not in address:
        return Path(address)
    return Path(address.removeprefix("file://")) if address.startswith("file://") else None


class Storage:
    """The files under one address such as s3://bucket/dataset. Safe to share between threads."""

    def __init__(self, address: str, retries: Retries | None = None) -> None:
        """Raises DataError for a kind of address that nothing here reads, saying what to install."""
        # Imported here: local datasets do without it.
        from fsspec.core import url_to_fs

        self.address, self._retries = address.rstrip("/"), retries or Retries()
        kind = address.split("://")[0]
        if kind in _NOT_READ:
            raise DataError(
                f"{address} is no kind of address that can be read ({kind} knows no byte ranges); copy the dataset "
                "to a directory, or to one of s3://, gs:// or https://."
            )
        options: dict[str, Any] = {}
        if kind in ("http", "https"):
            parts = urlsplit(address)
            if parts.password or parts.query or parts.fragment:
                raise DataError(
                    f"The address of a dataset on {parts.hostname} holds a password or a query, which would end up in "
                    "logs; give one of the form https://host/folder."
                )
        try:
            if kind in ("http", "https"):
                from aiohttp import ClientTimeout

                timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
                options = {"client_kwargs": {"timeout": timeout}}
            self._files, self._root = url_to_fs(self.address, **options)
        except ImportError as error:
            package = _PACKAGES.get(kind)
            what = f"pip install {package}" if package else f"install what it needs ({error})"
            raise DataError(f"{address} can't be read without a package that isn't installed: {what}.") from error
        except ValueError as error:
            raise DataError(
                f"{address} is no kind of address that can be read ({error}); give a directory, or one that begins "
                "with s3://, gs:// or https://."
            ) from error

    def name(self, file: str) -> str:
        """The address of a file."""
        return f"{self.address}/{file}"

    def size(self, file: str) -> int | None:
        """Bytes of a file; None where the server does not say. Raises DataError."""

        def ask() -> int | None:
            self._files.invalidate_cache()
            found: int | None = self._files.info(self._path(file))["size"]
            return found

        return self._tried(ask, file)

    def read(self, file: str, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on. Raises DataError, also when the file ends before."""

        def ask() -> bytes:
            data: bytes = self._files.cat_file(self._path(file), start=offset, end=offset + count)
            if len(data) < count:
                raise ShortRead(f"{len(data):,} bytes came")
            return data

        if not count:
            return b""
        data = self._tried(ask, file, f"bytes {offset:,} to {offset + count:,} of ")
        if len(data) > count:
            raise DataError(
                f"The server of {self.name(file)} sends whole files where a part is asked for; use one that knows byte "
                "ranges, or copy the dataset to a local directory."
            )
        return data

    def read_all(self, file: str, limit_bytes: int) -> bytes:
        """A small file. Raises DataError when it has more than `limit_bytes`."""
        size = self.size(file)
        if size is not None and size > limit_bytes:
            raise DataError(
                f"{self.name(file)} has {size:,} bytes, more than the {limit_bytes:,} that are read; check the address."
            )

        def ask() -> bytes:
            # One more than allowed, in case that the server kept the size to itself.
            data: bytes = self._files.cat_file(self._path(file), start=0, end=limit_bytes + 1)
            return data

        data = self._tried(ask, file)
        if len(data) > limit_bytes:
            raise DataError(
                f"{self.name(file)} has more than the {limit_bytes:,} bytes that are read; check the address."
            )
        return data

    def sha256(self, file: str, expected_bytes: int) -> str:
        """Of a whole file, read in parts. Raises DataError when it is of another size."""
        self.check_size(file, expected_bytes)
        digest = hashlib.sha256()
        for offset in range(0, expected_bytes, _STREAM_BYTES):
            digest.update(self.read(file, offset, min(_STREAM_BYTES, expected_bytes - offset)))
        return digest.hexdigest()

    def check_size(self, file: str, expected_bytes: int) -> None:
        """Raises DataError when the file is of another size, as far as the server tells."""
        size = self.size(file)
        if size is not None and size != expected_bytes:
            raise DataError(
                f"{self.name(file)} has {size:,} bytes, but was written with {expected_bytes:,}; upload the dataset "
                "again."
            )

    def _path(self, file: str) -> str:
        return f"{self._root.rstrip('/')}/{file}"

    def _tried(self, ask: Callable[[], Result], file: str, part: str = "") -> Result:
        failures = 0
        while True:
            try:
                return ask()
            except FileNotFoundError as error:
                if getattr(error.__cause__, "status", 404) == 404 and not may_pass(error):
                    raise DataError(f"{self.name(file)} is missing; check the address.") from error
                problem: Exception = error
            except Exception as error:  # each kind of storage has its own
                problem = error
            failures += 1
            if isinstance(problem, ShortRead) or getattr(problem, "status", None) == _BEYOND_END:
                raise DataError(
                    f"{self.name(file)} ends before the {part.removesuffix(' of ')} that were asked for: it was cut or "
                    "replaced; upload the dataset again."
                ) from problem
            if not may_pass(problem) or failures == self._retries.attempts:
                times = "once" if failures == 1 else f"{failures} times"
                said = problem.__cause__ if isinstance(problem, FileNotFoundError) else problem
                raise DataError(
                    f"{part}{self.name(file)} can't be read ({type(said).__name__}: {said}; tried {times}); check the "
                    "address, your permissions and the connection."
                ) from problem
            time.sleep(self._retries.wait_s(failures))


def may_pass(error: BaseException) -> bool:
    """Whether the same request could do better in a moment."""
    for name in ("status", "code"):  # aiohttp's, gcsfs's
        status = getattr(error, name, None)
        if isinstance(status, int | str) and str(status).isdigit():
            return int(status) in _PASSING_STATUS or int(status) >= 500
    if isinstance(error, FileNotFoundError):  # fsspec says so over HTTP whatever went wrong
        return error.__cause__ is not None and may_pass(error.__cause__)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    return any(kind.__name__ in _PASSING_NAMES for kind in type(error).__mro__)
