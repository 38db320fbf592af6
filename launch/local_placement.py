"""Attempts on this machine, without a queue."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence


class LocalPlacement:
    """Runs every attempt on this machine."""

    job: str | None = None
    nodes: str | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        process.send_signal(number)

    def clear(self) -> None:
        """Does nothing: local ranks end with the process that started them."""

    def adopt_orphaned_ranks(self, say: Callable[[str], None]) -> None:
        """Does nothing: local ranks end with the process that started them."""

    def exclude_nodes(self, nodes: Sequence[str]) -> str:
        return f"{', '.join(nodes)}: there is no other machine to use"

    def end_cancelled(self) -> None:
        """Does nothing: there is no queue."""

    def requeue(self) -> str:
        return f"run the same command again to resume: pretrain {shlex.join(sys.argv[1:])}"
