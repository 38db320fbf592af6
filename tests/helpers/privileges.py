"""Making file permissions bind, also where tests run as root."""

import ctypes

_VERSION_3 = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def drop() -> None:
    """From here on permissions bind this thread, and those it starts, as they bind any owner of the files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~_OVERRIDES  # the effective set
    assert libc.capset(header, sets) == 0
