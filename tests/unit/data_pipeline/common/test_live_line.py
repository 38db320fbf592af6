"""The live line where what it is written to fails."""

import errno
import io
import os

import pytest

from data_pipeline.common.live_line import LiveLine


class _Failing(io.StringIO):
    """A stream whose file can't be written."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code, self.tries = code, 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EPIPE])
def test_a_log_that_cannot_be_written_does_not_end_what_is_logged(code: int) -> None:
    stream = _Failing(code)
    line = LiveLine(stream)
    for number in range(3):
        line.say(f"step {number}")
    line.close()
    assert stream.tries == 3, "it may be well again"
