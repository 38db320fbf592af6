"""The end of a process whose main thread is stuck: message, events and exit from another thread, whatever locks the
main thread holds."""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

_PRINT_S = 5.0  # stderr may be a pipe that is full


def print_message(text: str) -> None:
    """Prints to stderr, on lines of its own."""
    lead = "\n" if os.isatty(2) else ""  # below a line that rewrites itself

    def write() -> None:
        with suppress(OSError):
            os.write(2, f"{lead}{text}\n".encode())

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(_PRINT_S)


def append_events(run_dir: Path, *events: tuple[str, Mapping[str, Any]]) -> None:
    """Appends events to events.jsonl in place of the rank that usually writes it, as far as the disk allows."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    lines = [json.dumps({"time": time, "event": name, **facts}) for name, facts in events]
    with suppress(OSError), (run_dir / "events.jsonl").open("ab") as file:
        torn = file.tell() and (run_dir / "events.jsonl").read_bytes()[-1:] != b"\n"
        file.write(("\n" if torn else "").encode() + "".join(f"{line}\n" for line in lines).encode())


def exit_now() -> NoReturn:
    """Ends the process with status 1, at once."""
    os._exit(1)
