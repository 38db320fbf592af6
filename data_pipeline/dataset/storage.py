"""Remote storage of datasets: any address that fsspec can read.

Transient errors (a time-out, a broken connection, an overloaded server) are retried a few times. So are wrong answers
(cut, damaged, an entire file instead of a range): a file is called damaged when two answers agree. Permanent errors (no
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
    """Number of attempts, and the waits in between: `first_wait_s`, twice that, and so on."""

    attempts: int = 6
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, from 1."""
        return float(min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s))


class WrongAnswerError(Exception):
    """Raised for an answer that is wrong, or can't be checked: only another request shows whether the file is."""

    def __init__(self, answer: Any, meaning: DataError | None) -> None:
        """`meaning` is what an answer that comes twice says of the file; None: the caller judges such an answer."""
        super().__init__("wrong bytes came, and never the same ones twice")
        self.answer, self.meaning = answer, meaning
        self.key = hashlib.sha256(answer).digest() if isinstance(answer, bytes) else answer


class OtherBytesError(DataError):
    """A file whose bytes are not those of the manifest."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} don't match the manifest's checksum: the file was damaged or replaced; upload the dataset again."
        )


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

    def read(self, file: str, offset: int, count: int, sha256: str | None = None) -> bytes:
        """`count` bytes from `offset` on. Raises DataError, also when the file is shorter, and OtherBytesError when
        their digest is not `sha256`."""
        part = f"bytes {offset:,} to {offset + count:,} of "

        def request() -> bytes:
            data = self._requested(file, offset, offset + count)
            if len(data) < count:
                raise WrongAnswerError(
                    data,
                    DataError(
                        f"{self.name(file)} ends before the requested {part.removesuffix(' of ')}: it was truncated or "
                        "replaced; upload the dataset again."
                    ),
                )
            if len(data) > count:
                raise WrongAnswerError(
                    data,
                    DataError(
                        f"The server of {self.name(file)} ignores byte ranges and sends entire files; use one that "
                        "supports them, or copy the dataset to a local directory."
                    ),
                )
            if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
                raise WrongAnswerError(data, OtherBytesError(part + self.name(file)))
            return data

        return self._with_retries(request, file, part) if count else b""

    def read_all(self, file: str, limit_bytes: int, intact: Callable[[bytes], bool]) -> bytes:
        """The contents of a small file: intact ones, or those that two requests agree on. Raises DataError when it has
        more than `limit_bytes`."""

        def too_large(size: str) -> DataError:
            return DataError(
                f"{self.name(file)} has {size}more than the {limit_bytes:,} bytes that are read; check the address."
            )

        self._check_size(file, lambda size: None if size <= limit_bytes else too_large(f"{size:,} bytes, "))

        def request() -> bytes:
            # One more than allowed, in case the server did not report the size.
            data = self._requested(file, 0, limit_bytes + 1)
            if len(data) > limit_bytes:
                raise WrongAnswerError(data, too_large(""))
            if not intact(data):
                raise WrongAnswerError(data, None)
            return data

        return self._with_retries(request, file)

    def sha256(self, file: str, expected_bytes: int, expected: str) -> str:
        """Digest of a file, read in blocks: `expected`, or another one that two readings agree on. Raises DataError
        when the file has another size."""
        self.check_size(file, expected_bytes)

        def request() -> str:
            digest = hashlib.sha256()
            for offset in range(0, expected_bytes, _STREAM_BYTES):
                digest.update(self.read(file, offset, min(_STREAM_BYTES, expected_bytes - offset)))
            if digest.hexdigest() != expected:
                raise WrongAnswerError(digest.hexdigest(), None)
            return expected

        return self._with_retries(request, file)

    def check_size(self, file: str, expected_bytes: int) -> None:
        """Raises DataError when the server reports another size."""
        self._check_size(
            file,
            lambda size: (
                None
                if size == expected_bytes
                else DataError(
                    f"{self.name(file)} has {size:,} bytes, but was written with {expected_bytes:,}; upload the "
                    "dataset again."
                )
            ),
        )

    def _check_size(self, file: str, problem: Callable[[int], DataError | None]) -> None:
        """Raises the problem with the size of a file, where the server reports one."""

        def request() -> None:
            self._files.invalidate_cache()
            size: int | None = self._files.info(self._path(file))["size"]
            if size is not None and (found := problem(size)) is not None:
                raise WrongAnswerError(size, found)

        self._with_retries(request, file)

    def _requested(self, file: str, begin: int, end: int) -> bytes:
        """The answer of one request for a span of a file; empty beyond its end."""
        try:
            data: bytes = self._files.cat_file(self._path(file), start=begin, end=end)
        except Exception as error:  # each kind of storage has its own
            if getattr(error, "status", None) == _BEYOND_END:
                return b""
            raise
        return data

    def _path(self, file: str) -> str:
        return f"{self._root.rstrip('/')}/{file}"

    def _with_retries(self, request: Callable[[], Result], file: str, part: str = "") -> Result:
        failures, wrong = 0, set[Any]()
        while True:
            try:
                return request()
            except DataError:
                raise
            except WrongAnswerError as error:
                if error.key in wrong:
                    if error.meaning is not None:
                        raise error.meaning from None
                    answer: Result = error.answer
                    return answer
                wrong.add(error.key)
                problem: Exception = error
            except FileNotFoundError as error:
                if getattr(error.__cause__, "status", 404) == 404 and not is_transient(error):
                    raise DataError(f"{self.name(file)} is missing; check the address.") from error
                problem = error
            except Exception as error:  # each kind of storage has its own
                problem = error
            failures += 1
            retried = isinstance(problem, WrongAnswerError) or is_transient(problem)
            if not retried or failures == self._retries.attempts:
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
