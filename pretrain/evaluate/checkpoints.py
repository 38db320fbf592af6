"""Checkpoints of a run -> an engine -> scores -> reports, on every rank: what `pretrain eval` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.identity import versions
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of
from pretrain.evaluate.evaluator import evaluate, read
from pretrain.evaluate.heldout import unigram_entropy
from pretrain.evaluate.opening import build_scorer, load_weights
from pretrain.evaluate.outcomes import FILE, Outcomes, digest
from pretrain.evaluate.overlap import searched_now
from pretrain.evaluate.progress import EvaluationProgress
from pretrain.evaluate.publish import publish
from pretrain.evaluate.report.combine import combine
from pretrain.evaluate.report.facts import Facts, decoding_words
from pretrain.evaluate.run_data import run_datasets
from pretrain.evaluate.scorers.make import make_scorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.model_spec.generator import num_run_parameters
from pretrain.run_dir.paths import MANIFEST, RECORD, TOKENIZER


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """A request of `pretrain eval`."""

    tasks: Sequence[str]
    settings: EvalSettings
    """without what depends on the run: its held-out text and its identity"""
    overlap: str | None
    """dataset whose training shards are searched for the documents; None: the run's own, whose builds may have"""
    out: Path
    command: str
    """the command line"""


def evaluate_checkpoints(
    config: RunConfig, checkpoints: Sequence[Path], request: EvalRequest, say: Callable[[str], None]
) -> None:
    """Scores the checkpoints, of one run and in its order, with one engine, and writes the report; of several also one
    for each. `config` comes from `open_checkpoint`. On one rank, `say` gets lines for a terminal. Collective."""
    searched_dataset = Dataset(request.overlap) if request.overlap is not None else None
    engine = build_scorer(config, checkpoints[0])
    tokenizer = load_tokenizer(checkpoints[0] / TOKENIZER)
    datasets, scorer = run_datasets(config, tokenizer), make_scorer(config, engine, tokenizer)
    dataset = datasets[0] if datasets else None
    settings = _settings_of_run(config, request.settings, tokenizer, datasets)
    loaded = read(scorer, dataset, request.tasks, settings)
    searched = None
    if searched_dataset is not None:
        with EvaluationProgress(engine.is_reporter) as progress:
            searched = {str(request.overlap): searched_now(engine, loaded, searched_dataset, progress)}
    outs = [request.out / path.name if len(checkpoints) > 1 else request.out for path in checkpoints]
    for number, (checkpoint, out) in enumerate(zip(checkpoints, outs, strict=True)):
        if number:
            load_weights(config, engine, checkpoint)
        settings = replace(settings, identity=_identity(config, checkpoint))
        outcomes = Outcomes(out / FILE) if engine.is_reporter else None
        with EvaluationProgress(engine.is_reporter) as progress:
            evaluation = evaluate(
                engine,
                scorer,
                dataset,
                request.tasks,
                settings,
                progress=progress,
                outcomes=outcomes,
                read_before=loaded,
            )
        if engine.is_reporter:
            record = Record.read(checkpoint / RECORD)
            facts = Facts(
                name=config.run.name,
                checkpoint=checkpoint.name,
                identity=settings.identity,
                step=record.step,
                tokens=record.tokens,
                parameters=num_run_parameters(config),
                layout=str(engine.layout),
                scorer=scorer.name,
                seed=settings.seed,
                shots=settings.shots,
                draws=settings.draws,
                limit=settings.limit,
                decoding=decoding_words(settings.decoding),
                command=request.command,
                versions=versions(),
                unigram_entropy=unigram_entropy(datasets) if datasets and config.objective.predicts_next else None,
            )
            publish(config, checkpoint, evaluation=evaluation, facts=facts, searched=searched, out=out, say=say)
    if len(checkpoints) > 1 and engine.is_reporter:
        say(f"curves: {combine(outs, request.out)}")


def _settings_of_run(
    config: RunConfig, settings: EvalSettings, tokenizer: Tokenizer, datasets: Sequence[Dataset]
) -> EvalSettings:
    """The settings with the run's held-out text, and how a model of it reads that."""
    objective = config.objective
    in_windows = objective.predicts_next and not objective.columns and not objective.backward
    windows = in_windows and not config.data.has_several_objectives
    return replace(
        settings,
        recipe=None if windows else recipe_of(config, tokenizer),
        window=config.model.sequence_length,
        lanes=config.heldout_lanes,
        held_out=open_datasets(config) if datasets and config.data.has_several_objectives else datasets,
    )


def _identity(config: RunConfig, checkpoint: Path) -> str:
    """Identity of the weights, of the precision they compute in, and of the model that they are read as, which
    overrides may have changed."""
    read_as = config.model.model_dump_json(), str(config.heldout_lanes)
    return digest((checkpoint / MANIFEST).read_text(encoding="utf-8"), config.precision, *read_as)
