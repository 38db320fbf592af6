"""The results of one checkpoint -> its report, lines for a terminal, and scores for the run's tracker."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from data_pipeline.overlap.contamination import SearchedSet
from pretrain.checkpoint.state import Record
from pretrain.config.load import validate
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.evaluate.evaluator import Evaluation
from pretrain.evaluate.overlap import overlap
from pretrain.evaluate.report.facts import Facts
from pretrain.evaluate.report.in_training import in_training
from pretrain.evaluate.report.write import held_out_note, write
from pretrain.evaluate.run_data import run_searched_sets
from pretrain.evaluate.table import scores, table
from pretrain.observe.track import keep_report
from pretrain.run_dir.paths import RECORD, run_of


def publish(
    config: RunConfig,
    checkpoint: Path,
    *,
    evaluation: Evaluation,
    facts: Facts,
    searched: Mapping[str, Sequence[SearchedSet]] | None,
    out: Path,
    say: Callable[[str], None],
) -> None:
    """Writes report.html and report.json into `out`, and adds them to the run's tracker. `searched`: the evaluation
    sets that a dataset was searched for just now, by its address; None: those that the builds of the run's datasets
    looked for. `say` gets lines for a terminal. Call on one rank."""
    record, run_dir = Record.read(checkpoint / RECORD), run_of(checkpoint).path
    unknown = None
    if searched is None:
        searched, unknown = run_searched_sets(config, record) if evaluation.documents else ({}, None)
    with recorded_config():
        trained = validate(RunConfig, record.config, str(run_dir), [f"run.dir={run_dir}"])
    same_data = config.data.resolved_sources == trained.data.resolved_sources
    training_loss = in_training(run_dir, record.step, trained.evaluate.sequences) if same_data else None
    write(
        out,
        evaluation,
        facts,
        run_dir=run_dir,
        overlap=overlap(evaluation, searched, unknown),
        in_training=training_loss,
    )
    note = held_out_note(evaluation, facts, training_loss)
    say(f"\n{table(evaluation.results, note, facts.parameters, evaluation.problems, evaluation.not_shown)}\n")
    keep_report(
        trained, [out / "report.html", out / "report.json"], f"reports/{out.name}", scores(evaluation.results),
        step=record.step, warn=lambda sentence: say(f"warning: {sentence}"),
    )  # fmt: skip
    say(f"report: {out / 'report.html'}")
