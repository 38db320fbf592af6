"""The end of a process whose main thread is stuck: message and exit from another thread, whatever locks the main thread
holds."""

import os
import threading
from contextlib import suppress
from typing import NoReturn

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


def exit_now() -> NoReturn:
    """Ends the process with status 1, at once."""
    os._exit(1)
