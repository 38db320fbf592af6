"""Tasks on the model in training, between two steps and on its own layout: nothing is converted, and the losses of the
run do not change."""

from collections.abc import Callable
from pathlib import Path

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.source import DataSource
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.evaluator import Results, evaluate, read
from pretrain.evaluate.scorers.make import make_scorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.registry import HELD_OUT, task_named

Scores = Callable[[], Results]
"""Scores the tasks. Collective."""


def live_tasks(config: RunConfig, engine: Engine, dataset: DataSource) -> Scores:
    """A function that scores `evaluate.tasks` on `engine`; `dataset` is that of the first source. Checks files and
    layout here, before the first step: raises ConfigError."""
    section = config.evaluate
    if HELD_OUT in section.tasks:
        raise ConfigError(f"evaluate.tasks: the held-out loss is always there, so leave {HELD_OUT} out")
    tasks = [task_named(name) for name in section.tasks]
    texts = [task.name for task in tasks if "generate_until" in task.output_types]
    if texts and (config.parallel.zero == 3 or not engine.decodes):
        raise ConfigError(
            f"evaluate.tasks: {', '.join(texts)} asks for text, which a model makes that is not laid out with "
            "parallel.virtual, parallel.context or parallel.zero=3: leave it out, and score checkpoints with `pretrain "
            "eval`, on any layout"
        )
    scorer = make_scorer(config, engine, dataset.tokenizer())
    settings = EvalSettings(
        shots=section.shots, limit=section.limit, data_dir=Path(section.data).expanduser() if section.data else None
    )
    text = dataset if isinstance(dataset, Dataset) else None
    work = read(scorer, text, section.tasks, settings)
    return lambda: evaluate(engine, scorer, text, section.tasks, settings, read_before=work).results
