"""What one rank says of itself while the run stands still: where its main thread is, read from its Python stack."""

import linecache
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_ROOT = str(Path(__file__).parents[2])
_OURS = tuple(f"{_ROOT}/{package}/" for package in ("pretrain", "data_pipeline"))
_EXCHANGES = "/torch/distributed/"
_WRAPPER = "c10d_logger.py"  # torch's own, around each of them
_LIBRARIES = ("/megatron/core/", "/deepspeed/")  # which begin an exchange and wait for it elsewhere


@dataclass(frozen=True)
class Stand:
    """Where a thread is."""

    waits_in: str | None
    """the collective it waits in, if it waits for other ranks"""
    line: str
    """the innermost line of ours: `pretrain/engine/groups.py:126 in largest`"""
    stack: str
    """the whole Python stack, outermost call first"""


@dataclass(frozen=True)
class Report:
    """The content of a rank's file."""

    rank: int
    host: str
    pid: int
    step: int
    doing: str
    silent_s: float
    """since the main thread was last seen going on"""
    since: str
    """the same, as a time (UTC, ISO 8601)"""
    waits_in: str | None
    line: str
    stack: str
    others: dict[str, str] = field(default_factory=dict)
    """name of each other thread that runs Python -> its stack"""
    answers: int = 0
    """how often a rank that is well has said so"""


def stand(frame: FrameType) -> Stand:
    """Of the thread whose innermost call is `frame`."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    inner: list[FrameType] = []  # innermost first: what our own line has called
    for found in frames:
        if found.f_code.co_filename.startswith(_OURS):
            break
        inner.append(found)
    own = frames[len(inner)] if len(inner) < len(frames) else frame
    name = own.f_code.co_filename.removeprefix(f"{_ROOT}/")
    line = f"{name}:{own.f_lineno} in {own.f_code.co_name}"
    return Stand(_exchange(inner), line, "".join(traceback.format_stack(frame)))


def stands() -> tuple[dict[int, Stand], dict[int, str]]:
    """By thread ident: where it is, and its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
    frames = sys._current_frames().items()
    return {ident: stand(frame) for ident, frame in frames if ident in names}, names


def _exchange(inner: list[FrameType]) -> str | None:
    """The collective that these calls, innermost first, wait in. Where a library has several at once, its own function
    that does."""
    caller = ""
    for frame in reversed(inner):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if _EXCHANGES in path and not path.endswith(_WRAPPER):
            return caller if name.startswith("_") and caller else name
        if any(library in path for library in _LIBRARIES):
            caller = name
    for frame in inner[:1]:
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if ".wait(" in code and any(library in frame.f_code.co_filename for library in _LIBRARIES):
            return frame.f_code.co_name
    return None
