"""`pretrain eval`: checkpoint -> engine -> scores -> report, on every rank of the layout."""

from pathlib import Path

from data_pipeline.shards import Dataset
from data_pipeline.tokenizer import Tokenizer
from pretrain.build import build_scorer, versions
from pretrain.checkpoint.files import RECORD, TOKENIZER
from pretrain.checkpoint.state import Record
from pretrain.config.load import validate
from pretrain.config.schema import RunConfig
from pretrain.errors import ConfigError
from pretrain.evaluate.heldout import unigram_entropy
from pretrain.evaluate.report import Facts, write
from pretrain.evaluate.run import Settings, evaluate
from pretrain.observe.track import keep_files
from pretrain.plan.estimate import num_parameters


def report(
    config: RunConfig, checkpoint: Path, tasks: list[str], shots: list[int], limit: int | None, seed: int,
    data_dir: Path | None, out: Path,
) -> None:  # fmt: skip
    """Scores `checkpoint` on `tasks` and writes the report into `out`. `config` comes from `scoring_config`."""
    engine = build_scorer(config, checkpoint)
    tokenizer = Tokenizer.load(checkpoint / TOKENIZER)
    dataset = _dataset(config, tokenizer)
    settings = Settings(shots, config.model.sequence_length, limit, seed, data_dir)
    evaluation = evaluate(
        engine, tokenizer, dataset, tasks, settings, print if engine.is_reporter else lambda line: None
    )
    if not engine.is_reporter:
        return
    record = Record.read(checkpoint / RECORD)
    facts = Facts(
        name=config.run.name,
        checkpoint=checkpoint.name,
        step=record.step,
        tokens=record.tokens,
        parameters=num_parameters(config.model),
        layout=str(engine.layout),
        seed=seed,
        limit=limit,
        versions=versions(),
        unigram_entropy=unigram_entropy(dataset) if dataset is not None else None,
    )
    run_dir = checkpoint.parent.parent
    write(out, evaluation, facts, run_dir)
    trained = validate(RunConfig, record.config, str(run_dir), [f"run.dir={run_dir}"])
    files = [out / "report.html", out / "report.json"]
    keep_files(trained, files, f"reports/{out.name}", lambda sentence: print(f"warning: {sentence}"))
    print(f"report: {out / 'report.html'}")


def _dataset(config: RunConfig, tokenizer: Tokenizer) -> Dataset | None:
    """The first source of the run's data; None where it is no longer there (tasks that need it say so)."""
    path = Path(config.data.resolved_sources[0].path)
    if not path.exists():
        return None
    dataset = Dataset(path)
    if dataset.manifest.tokenizer.identity != tokenizer.identity:
        raise ConfigError(
            f"{path} was built with another tokenizer than the checkpoint's: name the run's own data.path"
        )
    return dataset
