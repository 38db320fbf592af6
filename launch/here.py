"""This machine as a place for attempts."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence


class Here:
    """No queue, and the same machine every time."""

    job: str | None = None
    nodes: str | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        process.send_signal(number)

    def clear(self) -> None:
        """Local ranks end with the process that started them."""

    def take_over(self, say: Callable[[str], None]) -> None:
        """Local ranks end with the process that started them."""

    def leave_out(self, nodes: Sequence[str]) -> str:
        return f"{', '.join(nodes)}: there is no other machine"

    def go_on_later(self) -> str:
        return f"the same command goes on: pretrain {shlex.join(sys.argv[1:])}"
