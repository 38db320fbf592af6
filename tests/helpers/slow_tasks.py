"""Work for four processes, two of them idle soon, that a test interrupts.

python -m tests.helpers.slow_tasks FOLDER SECONDS
"""

import signal
import sys
import time
from functools import partial
from pathlib import Path

from data_pipeline.common.interrupt import exit_on_signal
from data_pipeline.common.tasks import BuildTask, run_tasks
from data_pipeline.executors.processes import ProcessExecutor

LARGE = 2**22


def work(folder: Path, number: int, seconds: float) -> int:
    """The first two tasks are done at once, the others take their time. Says which signals its process never gets."""
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    (folder / f"begun-{number}").write_text(" ".join(signal.Signals(number).name for number in sorted(held_back)))
    time.sleep(seconds if number > 1 else 0)
    return number


if __name__ == "__main__":
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    tasks = [BuildTask(str(n), partial(work, folder, n, seconds), LARGE) for n in range(4)]
    with exit_on_signal("stopped; the same command goes on"):
        print(run_tasks(tasks, folder, ProcessExecutor(4)))
