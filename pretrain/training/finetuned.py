"""A run on labelled rows to its end, where its model, or the best one by `checkpoint.best`, answers all rows of the
validation and test splits, and a report says how.
"""

from pathlib import Path

from data_pipeline.errors import ExitStatus
from pretrain.checkpoint import store
from pretrain.checkpoint.state import Record
from pretrain.engine.collective import run_on_all_ranks, run_on_rank_0
from pretrain.finetune.eval_rows import figure_lines
from pretrain.finetune.report.write import FinetuneFacts, write_report
from pretrain.process import watchdog
from pretrain.run_dir.paths import RECORD, RunDir, checkpoint_step, complete_checkpoints
from pretrain.training.best import Evaluations, read_evaluations, saved_best_first
from pretrain.training.loop import train
from pretrain.training.resume import load_state
from pretrain.training.session import Session


def train_and_report(session: Session) -> int:
    """Trains, and at the end of a run on labelled rows writes their report. Returns the exit status. Collective."""
    status = train(session)
    if status == ExitStatus.DONE:
        report_answers(session)
    return status


def report_answers(session: Session) -> None:
    """Writes the report of a finished run into `reports/finetune`, and says where; of a layout that writes no texts,
    says so if the rows ask for them. The engine then has the weights of the best checkpoint, if `checkpoint.best` is
    set. Raises RunError if no checkpoint is intact. Collective."""
    run, log, config = session.run, session.log, session.run.config
    judges = run.judges
    if judges is None:
        return
    if judges.obstacle is not None:
        log.warn(judges.obstacle)
        return
    directory = RunDir(config.run.dir).finetune_report
    best = config.checkpoint.best
    checkpoint = complete_checkpoints(session.checkpoints)[-1] if best is None else _load_best(session, best)
    known = session.validation.get(run.engine.updates)  # by these weights, at the end of training
    judged = {split: known if known is not None and split == "validation" else judges(split) for split in judges.splits}
    for note in (note for one in judged.values() for note in one.notes):
        log.warn(note)
    record = Record.read(checkpoint / RECORD)
    if judges.writes_texts:  # a task head's are recorded during training
        log.figures(record.step, record.tokens, judged["validation"].figures)
        run_on_all_ranks("recording the figures", log.settle, session.group)
    facts = FinetuneFacts(
        name=config.run.name,
        start=config.start,
        data=", ".join(source.called for source in config.data.resolved_sources),
        objective=config.objective.name,
        step=record.step,
        best=best,
        layout=str(run.layout),
        seed=config.run.seed,
    )

    def write() -> None:
        if run.engine.is_reporter:
            write_report(
                directory,
                config,
                facts,
                datasets=judges.datasets,
                judged=judged,
                num_cut=judges.num_cut(["train", *judges.splits]),
            )

    run_on_all_ranks(f"writing to {directory}", write, session.group)
    scores = {
        f"finetune/{split}/{name}": value
        for split, one in judged.items()
        for name, value in one.figures.items()
        if value is not None
    }
    log.report(record.step, [directory / "report.html", directory / "report.json"], "reports/finetune", scores)
    for line in figure_lines(judged):
        log.say(line)
    log.say(f"report: {directory / 'report.html'}")


def _load_best(session: Session, figure: str) -> Path:
    """Loads the best checkpoint by a figure that is on the disk, and records which one it is. Collective."""
    run, log, group = session.run, session.log, session.group

    def look() -> tuple[Evaluations, list[Path]]:
        newest = complete_checkpoints(session.checkpoints)[-1]
        evaluations = read_evaluations(Path(run.config.run.dir), figure, checkpoint_step(newest.name) or 0)
        return evaluations, saved_best_first(evaluations, session.checkpoints)

    evaluations, candidates = run_on_rank_0("looking for the best checkpoint", look, group)
    watchdog.kick("verifying the best checkpoint")
    checkpoint = store.first_valid(candidates, log.warn, group)
    step = checkpoint_step(checkpoint.name) or 0
    if step != evaluations.best:
        log.warn(
            f"step {evaluations.best} has the best {figure} and no intact checkpoint: {checkpoint.name} is reported"
        )
    load_state(session, checkpoint, Record.read(checkpoint / RECORD))
    log.best(step, figure, evaluations.values[step], final=True)
    return checkpoint
