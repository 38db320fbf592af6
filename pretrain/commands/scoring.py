"""`pretrain eval` and `pretrain translate`: checkpoint -> engine -> scores or targets -> report, on every rank."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.storage import local_path
from data_pipeline.errors import DataError
from data_pipeline.overlap.contamination import SearchedSet, searched_sets
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.files import MANIFEST, RECORD, TOKENIZER
from pretrain.checkpoint.identity import versions
from pretrain.checkpoint.state import Record
from pretrain.commands.printing import show, write_lines
from pretrain.config.load import validate
from pretrain.config.patterns.function import of_a_run
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of
from pretrain.data.stream import open_stream
from pretrain.errors import ConfigError
from pretrain.evaluate import translate as translation
from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.heldout import unigram_entropy
from pretrain.evaluate.in_training import in_training
from pretrain.evaluate.opening import build_scorer, load_weights
from pretrain.evaluate.outcomes import FILE, Outcomes, digest
from pretrain.evaluate.overlap import overlap, searched_now
from pretrain.evaluate.progress import EvaluationProgress
from pretrain.evaluate.report.combine import combine
from pretrain.evaluate.report.facts import Facts, decoding_words
from pretrain.evaluate.report.write import held_out_note, write
from pretrain.evaluate.run import Evaluation, evaluate, read
from pretrain.evaluate.scorers.make import make_scorer
from pretrain.evaluate.settings import Settings
from pretrain.evaluate.table import scores, table
from pretrain.model_spec.parameters import num_parameters
from pretrain.observe.track import keep_report


@dataclass(frozen=True)
class EvalRequest:
    """A request of `pretrain eval`; see `evaluate.settings.Settings`."""

    tasks: list[str]
    shots: list[int] | None
    limit: int | None
    seed: int
    draws: int
    how: Decoding | None
    data_dir: Path | None
    overlap: str | None
    """dataset whose training shards are searched for the documents; None: the run's own, whose builds may have"""
    out: Path
    command: str
    """the command line"""


def report(config: RunConfig, checkpoints: list[Path], request: EvalRequest) -> None:
    """Scores the checkpoints, of one run and in its order, with one engine, and writes the report; of several also one
    for each. `config` comes from `scoring_config`."""
    searched_in = Dataset(request.overlap) if request.overlap is not None else None
    engine = build_scorer(config, checkpoints[0])
    tokenizer = load_tokenizer(checkpoints[0] / TOKENIZER)
    datasets, scorer = _datasets(config, tokenizer), make_scorer(config, engine, tokenizer)
    dataset = datasets[0] if datasets else None
    windows = config.objective.predicts_next and not config.objective.columns
    settings = Settings(
        request.shots, request.limit, request.seed, request.draws, request.data_dir,
        None if windows else recipe_of(config, tokenizer), datasets, request.how,
    )  # fmt: skip
    work = read(scorer, dataset, request.tasks, settings)
    searched = None
    if searched_in is not None:
        with EvaluationProgress(engine.is_reporter) as progress:
            searched = searched_now(engine, work, searched_in, progress)
    outs = [request.out / path.name if len(checkpoints) > 1 else request.out for path in checkpoints]
    for number, (checkpoint, out) in enumerate(zip(checkpoints, outs, strict=True)):
        if number:
            load_weights(config, engine, checkpoint)
        identified = replace(settings, identity=_identity(config, checkpoint))
        outcomes = Outcomes(out / FILE) if engine.is_reporter else None
        with EvaluationProgress(engine.is_reporter) as progress:
            evaluation = evaluate(engine, scorer, dataset, request.tasks, identified, progress, outcomes, work)
        if engine.is_reporter:
            facts = _facts(config, checkpoint, request, identified.identity, str(engine.layout), scorer.name, datasets)
            _write(config, checkpoint, request, evaluation, facts, searched, out)
    if len(checkpoints) > 1 and engine.is_reporter:
        print(f"curves: {combine(outs, request.out)}")


def _facts(
    config: RunConfig,
    checkpoint: Path,
    request: EvalRequest,
    identity: str,
    layout: str,
    scorer: str,
    datasets: list[Dataset],
) -> Facts:
    record = Record.read(checkpoint / RECORD)
    return Facts(
        name=config.run.name,
        checkpoint=checkpoint.name,
        identity=identity,
        step=record.step,
        tokens=record.tokens,
        parameters=num_parameters(config.model),
        layout=layout,
        scorer=scorer,
        seed=request.seed,
        shots=request.shots,
        draws=request.draws,
        limit=request.limit,
        decoding=decoding_words(request.how),
        command=request.command,
        versions=versions(),
        unigram_entropy=unigram_entropy(datasets) if datasets and config.objective.predicts_next else None,
    )


def _write(
    config: RunConfig, checkpoint: Path, request: EvalRequest, evaluation: Evaluation, facts: Facts,
    found_now: Sequence[SearchedSet] | None, out: Path,
) -> None:  # fmt: skip
    """The report of one checkpoint, and its figures for a terminal and a tracker."""
    record, run_dir = Record.read(checkpoint / RECORD), checkpoint.parent.parent
    searched: Mapping[str, Sequence[SearchedSet]]
    searched, unknown = _searched(config, record) if evaluation.documents and found_now is None else ({}, None)
    if found_now is not None:
        searched = {str(request.overlap): found_now}
    with of_a_run():
        trained = validate(RunConfig, record.config, str(run_dir), [f"run.dir={run_dir}"])
    same_data = config.data.resolved_sources == trained.data.resolved_sources
    before = in_training(run_dir, record.step, trained.evaluate.sequences) if same_data else None
    write(out, evaluation, facts, run_dir, overlap(evaluation, searched, unknown), before)
    note = held_out_note(evaluation, facts, before)
    lines = table(evaluation.results, note, facts.parameters, evaluation.problems, evaluation.not_shown)
    print(f"\n{lines}\n")
    files = [out / "report.html", out / "report.json"]
    keep_report(
        trained, files, f"reports/{out.name}", scores(evaluation.results), record.step,
        lambda sentence: print(f"warning: {sentence}"),
    )  # fmt: skip
    print(f"report: {out / 'report.html'}")


def _identity(config: RunConfig, checkpoint: Path) -> str:
    """Identity of the weights and of the precision they compute in."""
    return digest((checkpoint / MANIFEST).read_text(encoding="utf-8"), config.precision)


def write_translation(
    config: RunConfig, checkpoint: Path, file: Path, beam: int, penalty: float, longest: int | None, out: Path | None
) -> None:  # fmt: skip
    """Prints (or writes to `out`) a target for each source of `file`, and BLEU where that has targets. Raises
    ConfigError for a model that makes no targets."""
    if not config.model.is_encoder_decoder:
        raise ConfigError(f"a {config.model.family} model makes no targets: give an encoder-decoder")
    lines = translation.read(file)
    engine = build_scorer(config, checkpoint)
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    limit = longest or config.model.label_length
    if limit > config.model.label_length:
        raise ConfigError(
            f"--longest {limit} is more than the {config.model.label_length} positions that targets have: leave it out"
        )
    found = translation.translate(
        engine, tokenizer, config.objective.specials(tokenizer), lines, config.model.sequence_length, limit, beam,
        penalty,
    )  # fmt: skip
    if not engine.is_reporter:
        return
    if out is not None:
        write_lines(out, found.hypotheses)
    else:
        show(found.hypotheses)
    if found.cut:
        print(f"{found.cut} sources were longer than the model reads, and were cut", file=sys.stderr)
    if found.bleu is not None:
        print(f"BLEU {found.bleu:.2f} ({len(found.hypotheses)} sentences, beam {beam}, {found.signature})")


def _datasets(config: RunConfig, tokenizer: Tokenizer) -> list[Dataset]:
    """Each source of the run's data; none where there is none, or no longer (tasks that need it say so)."""
    sources = config.data.resolved_sources
    local = local_path(sources[0].path) if sources else None
    if not sources or (local is not None and not local.exists()):
        return []
    datasets = open_datasets(config)
    for dataset in datasets:
        if dataset.manifest.tokenizer.identity != tokenizer.identity:
            raise ConfigError(
                f"{dataset.address} was built with another tokenizer than the checkpoint's: name the run's own "
                "data.path"
            )
    return datasets


def _searched(config: RunConfig, record: Record) -> tuple[dict[str, list[SearchedSet]], str | None]:
    """The evaluation sets that each dataset of the run was searched for; or none and why that is not known: a report
    must not fail for it, as scoring does without the training data."""
    if not config.data.resolved_sources:
        return {}, "the checkpoint names no training data"
    try:
        stream, _ = open_stream(config)
        if stream.cursor(record.cursor["samples"]).fingerprint != record.cursor["fingerprint"]:
            return {}, "the data that the config names is not what the checkpoint was trained on"
        return {dataset.address: searched_sets(dataset) for dataset in stream.datasets}, None
    except DataError as error:
        return {}, f"the training data cannot be read now: {error}"
