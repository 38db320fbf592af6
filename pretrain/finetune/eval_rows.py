"""A checkpoint of a fine-tuned run -> answers for its validation and test rows -> a report: what `pretrain eval` does
with a model that has a task head."""

from pathlib import Path

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of
from pretrain.engine.collective import file_group, run_on_all_ranks
from pretrain.errors import ConfigError
from pretrain.evaluate.opening import build_scorer
from pretrain.finetune.judge import AnsweredSplit, make_judge
from pretrain.finetune.report.write import FinetuneFacts, start_of, write_report
from pretrain.run_dir.paths import RECORD, TOKENIZER


def eval_rows(config: RunConfig, checkpoint: Path, directory: Path) -> list[str]:
    """Writes the report into `directory`. Returns lines for a terminal, none but on one rank. `config` comes from
    `open_checkpoint`. Raises ConfigError where the run's rows are gone. Collective."""
    data = config.data.model_copy(update={"tokenizer": str(checkpoint / TOKENIZER)})
    datasets = open_datasets(config.model_copy(update={"data": data}))
    if not datasets:
        raise ConfigError(f"{checkpoint} names no labelled rows: give them with data.path=DIRECTORY")
    dataset = datasets[0]
    assert isinstance(dataset, LabelledDataset), "the objective reads labelled rows"
    engine = build_scorer(config, checkpoint)
    judge = make_judge(config, engine, dataset, recipe_of(config, dataset.tokenizer()))
    judged: dict[LabelledSplit, AnsweredSplit] = {split: judge(split) for split in dataset.splits() if split != "train"}
    facts = FinetuneFacts(
        name=config.run.name,
        start=start_of(config),
        data=", ".join(source.called for source in config.data.resolved_sources),
        objective=config.objective.name,
        step=Record.read(checkpoint / RECORD).step,
        layout=str(engine.layout),
        seed=config.run.seed,
    )

    def write() -> None:
        if engine.is_reporter:
            write_report(directory, config, facts, dataset, judged)

    run_on_all_ranks(f"writing to {directory}", write, file_group(config.health.timeout_s))
    if not engine.is_reporter:
        return []
    return [*figure_lines(judged), f"report: {directory / 'report.html'}"]


def figure_lines(judged: dict[LabelledSplit, AnsweredSplit]) -> list[str]:
    """The figures of each split, a line each."""
    return [
        f"{split} ({len(one.predictions):,} rows): "
        + ", ".join(f"{name} {'undefined' if value is None else f'{value:.4f}'}" for name, value in one.figures.items())
        for split, one in judged.items()
    ]
