"""All tasks by name: those of Python, those that files of this folder declare, those of packages (`pretrain.tasks`),
and files of a user's own."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from data_pipeline.common.plugins import Registry
from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks import arbitrary_labels, arithmetic, last_word, scrambling
from pretrain.evaluate.tasks.base import Task
from pretrain.evaluate.tasks.file_task import task_from_file

HELD_OUT = "heldout"
"""Perplexity of the held-out stream: the one task that has no documents and no shots."""

FILES = {path.stem: path for path in sorted(Path(__file__).with_name("files").glob("*.yaml"))}
_TASKS: dict[str, Task] = {
    task.name: task for task in (*last_word.TASKS, *arbitrary_labels.TASKS, *arithmetic.TASKS, *scrambling.TASKS)
}
NAMES: tuple[str, ...] = (HELD_OUT, *_TASKS, *FILES)
"""Names of the built-in tasks."""
_PLUGINS: Registry[Task] = Registry("pretrain.tasks", {}, Task)


def known_names() -> tuple[str, ...]:
    """The names of all tasks that are installed. Raises ConfigError where a package takes a built-in one's."""
    for name in set(NAMES).intersection(_PLUGINS):
        raise ConfigError(f"a package declares the task {name}, which is the name of a built-in one: uninstall it")
    return (*NAMES, *_PLUGINS)


@cache
def task_named(name: str) -> Task:
    """The task of that name, or of the file of that name. Raises ConfigError for an unknown one, with its nearest match
    and all names."""
    if name in _TASKS:
        return _TASKS[name]
    if name in FILES:
        return task_from_file(FILES[name])
    if name.endswith((".yaml", ".yml")):
        return task_from_file(Path(name).expanduser())
    names = known_names()
    if name in names:
        return _PLUGINS[name]
    hint = did_you_mean(close_matches(name, names, cutoff=0.5))
    known = f"known are {', '.join(names)}; a file NAME.yaml declares another"
    raise ConfigError(f"unknown task '{name}': {hint}{' ' * bool(hint)}{known}")


def check_names(names: Sequence[str]) -> None:
    """Raises ConfigError for the first name that isn't a task's."""
    for name in names:
        if name != HELD_OUT:
            task_named(name)
