"""All tasks by name."""

import difflib
from collections.abc import Sequence

from pretrain.errors import ConfigError
from pretrain.evaluate.tasks import arithmetic, last_word, scrambling
from pretrain.evaluate.tasks.base import Task

HELD_OUT = "heldout"
"""Perplexity of the held-out stream: the one task that has no documents and no shots."""

TASKS: dict[str, Task] = {task.name: task for task in (*last_word.TASKS, *arithmetic.TASKS, *scrambling.TASKS)}
NAMES: tuple[str, ...] = (HELD_OUT, *TASKS)


def check_names(names: Sequence[str]) -> None:
    """Raises ConfigError for the first name that isn't a task's, with its nearest match and all names."""
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"unknown task '{name}': {hint}known are {', '.join(NAMES)}")
