"""The end of a fine-tuning run: its model answers all rows of the validation and test splits, and a report says how."""

from pathlib import Path

from data_pipeline.dataset.source import LabelledSplit
from pretrain.checkpoint.state import Record
from pretrain.engine.collective import run_on_all_ranks
from pretrain.finetune.eval_rows import figure_lines
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.report.write import FinetuneFacts, write_report
from pretrain.run_dir.paths import RECORD, RunDir, complete_checkpoints
from pretrain.training.session import Session

REPORT = "finetune"
"""Folder of the report, in `reports/`."""


def report_answers(session: Session) -> None:
    """Writes the report of a finished run into `reports/finetune`, and says where; of a layout that writes no texts,
    says so if the rows ask for them. Collective."""
    run, log, config = session.run, session.log, session.run.config
    judge = run.judge or run.texts
    if judge is None:
        return
    if run.texts is not None and run.texts.obstacle is not None:
        log.warn(run.texts.obstacle)
        return
    directory = RunDir(config.run.dir).reports / REPORT
    dataset = judge.dataset
    judged: dict[LabelledSplit, AnsweredSplit] = {split: judge(split) for split in dataset.splits() if split != "train"}
    if len(run.stream.datasets) > 1:
        log.warn(f"only rows of {dataset.name}, the first of {len(run.stream.datasets)} sources, are answered")
    for note in (note for one in judged.values() for note in one.notes):
        log.warn(note)
    record = Record.read(complete_checkpoints(session.checkpoints)[-1] / RECORD)
    if run.texts is not None:  # a task head's are recorded during training
        log.figures(record.step, record.tokens, judged["validation"].figures)
        run_on_all_ranks("recording the figures", log.settle, session.group)
    facts = FinetuneFacts(
        name=config.run.name,
        start=config.run.start_from or "random weights",
        data=", ".join(source.called for source in config.data.resolved_sources),
        objective=config.objective.name,
        step=record.step,
        layout=str(run.layout),
        seed=config.run.seed,
    )

    def write() -> None:
        if run.engine.is_reporter:
            write_report(directory, config, facts, dataset, judged)

    run_on_all_ranks(f"writing to {directory}", write, session.group)
    for line in figure_lines(judged):
        log.say(line)
    log.say(f"report: {Path(directory) / 'report.html'}")
