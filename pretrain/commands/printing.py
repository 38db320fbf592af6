"""How commands print many lines."""

import os
import sys
from collections.abc import Iterable


def show(lines: Iterable[str]) -> None:
    """Prints as long as somebody reads."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
