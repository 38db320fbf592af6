"""What a process does that ends while its main thread can't: in another thread, whatever the main thread holds."""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

_SAYING_S = 5.0  # for whoever reads stderr: it may be a pipe that is full


def say(text: str) -> None:
    """On stderr, on lines of its own."""
    lead = "\n" if os.isatty(2) else ""  # below a line that rewrites itself

    def write() -> None:
        with suppress(OSError):
            os.write(2, f"{lead}{text}\n".encode())

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(_SAYING_S)


def events(run_dir: Path, *of: tuple[str, Mapping[str, Any]]) -> None:
    """Adds lines to events.jsonl, for the rank that writes it otherwise. As far as the disk takes them."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    lines = [json.dumps({"time": time, "event": name, **facts}) for name, facts in of]
    with suppress(OSError), (run_dir / "events.jsonl").open("ab") as file:
        torn = file.tell() and (run_dir / "events.jsonl").read_bytes()[-1:] != b"\n"
        file.write(("\n" if torn else "").encode() + "".join(f"{line}\n" for line in lines).encode())


def leave() -> NoReturn:
    """Ends the process with status 1, at once."""
    os._exit(1)
