"""A checkpoint of a fine-tuned run -> answers for its validation and test rows -> a report: what `pretrain eval --tasks
heldout` does with a run of labelled rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.dataset.source import LabelledSplit
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of
from pretrain.engine.collective import file_group, run_on_all_ranks
from pretrain.errors import ConfigError
from pretrain.evaluate.opening import build_scorer
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.report.write import FinetuneFacts, write_report
from pretrain.finetune.sources import JudgedSplit, make_judges
from pretrain.run_dir.paths import RECORD, SOURCE_TOKENIZER, TOKENIZER


def eval_rows(config: RunConfig, checkpoint: Path, directory: Path) -> list[str]:
    """Writes the report into `directory`. Returns lines for a terminal, none but on one rank. `config` comes from
    `open_checkpoint`. Raises ConfigError where the run's rows are gone, and on a layout that writes no texts if the
    rows ask for them. Collective."""
    tokenizers = {"tokenizer": str(checkpoint / TOKENIZER)}
    if config.model.front_encoder is not None:
        tokenizers["source_tokenizer"] = str(checkpoint / SOURCE_TOKENIZER)
    data = config.data.model_copy(update=tokenizers)
    datasets = open_datasets(config.model_copy(update={"data": data}))
    if not datasets:
        raise ConfigError(f"{checkpoint} names no labelled rows: give them with data.path=DIRECTORY")
    engine = build_scorer(config, checkpoint)
    judges = make_judges(config, engine, datasets, recipe_of(config, datasets[0].tokenizer()))
    assert judges is not None, "the objective reads labelled rows"
    if judges.obstacle is not None:
        raise ConfigError(judges.obstacle)
    judged = {split: judges(split) for split in judges.splits}
    facts = FinetuneFacts(
        name=config.run.name,
        start=config.start,
        data=", ".join(source.called for source in config.data.resolved_sources),
        objective=config.objective.name,
        step=Record.read(checkpoint / RECORD).step,
        layout=str(engine.layout),
        seed=config.run.seed,
    )

    def write() -> None:
        if engine.is_reporter:
            write_report(
                directory, config, facts, datasets=judges.datasets, judged=judged, num_cut=judges.num_cut(judges.splits)
            )

    run_on_all_ranks(f"writing to {directory}", write, file_group(config.health.timeout_s))
    if not engine.is_reporter:
        return []
    notes = [f"note: {note}" for one in judged.values() for note in one.notes]
    return [*notes, *figure_lines(judged), f"report: {directory / 'report.html'}"]


def figure_lines(judged: Mapping[LabelledSplit, JudgedSplit]) -> Sequence[str]:
    """The figures of each split, a line each; of several sources, a line for each of them and one for the means."""
    lines = []
    for split, one in judged.items():
        for source, answered in one.by_source.items():
            prefix = f"{source}, " if one.several else ""
            lines.append(
                f"{prefix}{split} ({len(answered.predictions):,} rows): {_shown(answered.figures)}{_beside(answered)}"
            )
        if len(one.by_source) > 1 and one.means:
            lines.append(f"mean of {len(one.by_source)} sources, {split}: {_shown(one.means)}")
    return lines


def _beside(answered: AnsweredSplit) -> str:
    known = answered.most_frequent
    return "" if known is None else f" (always {known.label}: accuracy {known.accuracy:.4f})"


def _shown(figures: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {'undefined' if value is None else f'{value:.4f}'}" for name, value in figures.items())
