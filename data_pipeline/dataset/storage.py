"""Remote storage of datasets: any address that fsspec can read.

Transient errors (a time-out, a broken connection, an overloaded server) are retried a few times; permanent ones (no
such file, no permission) are raised at once. Waits double and have no random part.
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
"""Protocols that fsspec knows but that can't read byte ranges."""
_TRANSIENT_STATUS = (408, 429)  # and all from 500 on
_BEYOND_END = 416
_TRANSIENT_ERRNO = (errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH)
# By name, since aiohttp and botocore, which raise them, are optional.
_TRANSIENT_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ResponseParserError"}
_CONNECT_S, _SILENCE_S = 30, 60  # timeouts for connecting, and between bytes
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
    """Raised when the server returns fewer bytes than requested, without an error."""


def local_path(address: str | Path) -> Path | None:
    """The local path of an address; None for a remote one."""
    if isinstance(address, Path) or "://" not in address:
        return Path(address)
    return Path(address.removeprefix("file://")) if address.startswith("file://") else None


class Storage:
    """The files under one address such as s3://bucket/dataset. Safe to share between threads."""

    def __init__(self, address: str, retries: Retries | None = None) -> None:
        """Raises DataError for an address that can't be read, with what to install."""
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
        """Bytes of a file; None when the server does not report it. Raises DataError."""

        def request() -> int | None:
            self._files.invalidate_cache()
            size: int | None = self._files.info(self._path(file))["size"]
            return size

        return self._with_retries(request, file)

    def read(self, file: str, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on. Raises DataError, also when the file is shorter."""

        def request() -> bytes:
            data: bytes = self._files.cat_file(self._path(file), start=offset, end=offset + count)
            if len(data) < count:
                raise ShortRead(f"{len(data):,} bytes came")
            return data

        if not count:
            return b""
        data = self._with_retries(request, file, f"bytes {offset:,} to {offset + count:,} of ")
        if len(data) > count:
            raise DataError(
                f"The server of {self.name(file)} ignores byte ranges and sends entire files; use one that supports "
                "them, or copy the dataset to a local directory."
            )
        return data

    def read_all(self, file: str, limit_bytes: int) -> bytes:
        """The contents of a small file. Raises DataError when it has more than `limit_bytes`."""
        size = self.size(file)
        if size is not None and size > limit_bytes:
            raise DataError(
                f"{self.name(file)} has {size:,} bytes, more than the {limit_bytes:,} that are read; check the address."
            )

        def request() -> bytes:
            # One more than allowed, in case the server did not report the size.
            data: bytes = self._files.cat_file(self._path(file), start=0, end=limit_bytes + 1)
            return data

        data = self._with_retries(request, file)
        if len(data) > limit_bytes:
            raise DataError(
                f"{self.name(file)} has more than the {limit_bytes:,} bytes that are read; check the address."
            )
        return data

    def sha256(self, file: str, expected_bytes: int) -> str:
        """Digest of a file, read in blocks. Raises DataError when it has another size."""
        self.check_size(file, expected_bytes)
        digest = hashlib.sha256()
        for offset in range(0, expected_bytes, _STREAM_BYTES):
            digest.update(self.read(file, offset, min(_STREAM_BYTES, expected_bytes - offset)))
        return digest.hexdigest()

    def check_size(self, file: str, expected_bytes: int) -> None:
        """Raises DataError when the server reports another size."""
        size = self.size(file)
        if size is not None and size != expected_bytes:
            raise DataError(
                f"{self.name(file)} has {size:,} bytes, but was written with {expected_bytes:,}; upload the dataset "
                "again."
            )

    def _path(self, file: str) -> str:
        return f"{self._root.rstrip('/')}/{file}"

    def _with_retries(self, request: Callable[[], Result], file: str, part: str = "") -> Result:
        failures = 0
        while True:
            try:
                return request()
            except FileNotFoundError as error:
                if getattr(error.__cause__, "status", 404) == 404 and not is_transient(error):
                    raise DataError(f"{self.name(file)} is missing; check the address.") from error
                problem: Exception = error
            except Exception as error:  # each kind of storage has its own
                problem = error
            failures += 1
            if isinstance(problem, ShortRead) or getattr(problem, "status", None) == _BEYOND_END:
                raise DataError(
                    f"{self.name(file)} ends before the requested {part.removesuffix(' of ')}: it was truncated or "
                    "replaced; upload the dataset again."
                ) from problem
            if not is_transient(problem) or failures == self._retries.attempts:
                times = "once" if failures == 1 else f"{failures} times"
                cause = problem.__cause__ if isinstance(problem, FileNotFoundError) else problem
                raise DataError(
                    f"{part}{self.name(file)} can't be read ({type(cause).__name__}: {cause}; tried {times}); check "
                    "the address, your permissions and the connection."
                ) from problem
            time.sleep(self._retries.wait_s(failures))


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed if it is retried."""
    for name in ("status", "code"):  # aiohttp's, gcsfs's
        status = getattr(error, name, None)
        if isinstance(status, int | str) and str(status).isdigit():
            return int(status) in _TRANSIENT_STATUS or int(status) >= 500
    if isinstance(error, FileNotFoundError):  # over HTTP, fsspec raises it for any error
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__)
