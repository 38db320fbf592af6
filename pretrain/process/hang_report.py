"""The report that a silent rank writes: where its threads are, read from their Python stacks."""

import linecache
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_ROOT = str(Path(__file__).parents[2])
_PROJECT = tuple(f"{_ROOT}/{package}/" for package in ("pretrain", "data_pipeline"))
_COLLECTIVES = "/torch/distributed/"
_WRAPPER = "c10d_logger.py"  # torch's wrapper of every collective
_LIBRARIES = ("/megatron/core/", "/deepspeed/")  # start a collective in one function and wait for it in another


@dataclass(frozen=True)
class ThreadState:
    """Position of a thread."""

    waits_in: str | None
    """the collective in which it waits for other ranks; None: it does not"""
    line: str
    """the innermost line of this project: `pretrain/engine/groups.py:126 in largest`"""
    stack: str
    """the Python stack, outermost call first"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a rank's file in `run.dir/hangs/`."""

    rank: int
    host: str
    pid: int
    step: int
    activity: str
    silent_s: float
    """since the last progress of the main thread"""
    since: str
    """time of the last progress (UTC, ISO 8601)"""
    waits_in: str | None
    line: str
    stack: str
    others: dict[str, str] = field(default_factory=dict)
    """stacks of the other Python threads, by thread name"""
    answers: int = 0
    """number of times that a busy rank has reported that it is busy"""


def thread_state(frame: FrameType) -> ThreadState:
    """State of the thread whose innermost call is `frame`."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    inner: list[FrameType] = []  # innermost first: calls below the innermost line of this project
    for call in frames:
        if call.f_code.co_filename.startswith(_PROJECT):
            break
        inner.append(call)
    innermost = frames[len(inner)] if len(inner) < len(frames) else frame
    name = innermost.f_code.co_filename.removeprefix(f"{_ROOT}/")
    line = f"{name}:{innermost.f_lineno} in {innermost.f_code.co_name}"
    return ThreadState(_collective(inner), line, "".join(traceback.format_stack(frame)))


def thread_states() -> tuple[dict[int, ThreadState], dict[int, str]]:
    """States and names of all Python threads, by thread ident."""
    names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
    frames = sys._current_frames().items()
    return {ident: thread_state(frame) for ident, frame in frames if ident in names}, names


def _collective(inner: list[FrameType]) -> str | None:
    """Name of the collective in which these calls, innermost first, wait; for several at once, the library's function
    that waits for them."""
    caller = ""
    for frame in reversed(inner):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if _COLLECTIVES in path and not path.endswith(_WRAPPER):
            return caller if name.startswith("_") and caller else name
        if any(library in path for library in _LIBRARIES):
            caller = name
    for frame in inner[:1]:
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if ".wait(" in code and any(library in frame.f_code.co_filename for library in _LIBRARIES):
            return frame.f_code.co_name
    return None
