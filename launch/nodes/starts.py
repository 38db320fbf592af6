"""Starts of a run on several nodes that no Slurm binds together: files in a folder that all nodes see.

Node 0 decides, as it has the supervisor with its policy: it publishes numbered starts in `start.json`, and how the job
ended. Each other node notes in `node-N.json` after which start it is waiting, and joins the next one. A node that comes
late, or again, can so never join ranks of a start that is over.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write

_ALIVE_S = 60.0
"""Seconds since a node's note within which it counts as waiting; it writes one every few seconds."""


@dataclass(frozen=True, kw_only=True)
class NodeStart:
    """One start of all ranks."""

    job: str
    number: int
    """Counts from 1 in a job."""
    address: str
    """Where rank 0 listens."""
    port: int
    ended: int | None = None
    """Exit status that node 0 has ended with for good; None: it has not."""


class Starts:
    """The files of one job. `directory` may hold those of an earlier job, which count as absent."""

    def __init__(self, directory: Path, job: str) -> None:
        self._directory, self._job = directory, job

    def newest(self) -> NodeStart | None:
        """The start that was published last; None: there is none yet."""
        tree = _read(self._directory / "start.json")
        return NodeStart(**tree) if tree is not None and tree.get("job") == self._job else None

    def publish(self, number: int, address: str, port: int) -> NodeStart:
        """Publishes the next start. Raises OSError."""
        start = NodeStart(job=self._job, number=number, address=address, port=port)
        self._write("start.json", asdict(start))
        return start

    def end(self, status: int) -> None:
        """Records how the job ended for good, for the other nodes. Raises OSError."""
        start = self.newest() or NodeStart(job=self._job, number=0, address="", port=0)
        self._write("start.json", {**asdict(start), "ended": int(status)})

    def ending(self) -> int | None:
        """Exit status that node 0 has ended with for good; None: another start may follow."""
        start = self.newest()
        return start.ended if start is not None else None

    def joined(self, index: int) -> int:
        """Number of the start that this node joined last, also before it was replaced; 0: none."""
        return int(self._note(index).get("after", 0))

    def wait(self, index: int, after: int) -> None:
        """Notes that this node is waiting for a start `after` that number. Raises OSError."""
        self._write(f"node-{index}.json", {"job": self._job, "after": after, "time": time.time()})

    def join(self, index: int, number: int) -> None:
        """Notes that this node has joined a start. Raises OSError."""
        self._write(f"node-{index}.json", {"job": self._job, "after": number, "time": None})

    def missing(self, nodes: int, after: int) -> list[int]:
        """Nodes besides 0 that are not waiting for the start after that number."""
        now, found = time.time(), []
        for index in range(1, nodes):
            note = self._note(index)
            if note.get("after", -1) < after or note.get("time") is None or abs(now - note["time"]) > _ALIVE_S:
                found.append(index)
        return found

    def _note(self, index: int) -> dict[str, Any]:
        tree = _read(self._directory / f"node-{index}.json")
        return tree if tree is not None and tree.get("job") == self._job else {}

    def _write(self, name: str, tree: dict[str, Any]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        atomic_write(self._directory / name, json.dumps(tree).encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None
