"""The end of a fine-tuning run: its model answers all rows of the validation and test splits, and a report says how."""

from pathlib import Path

from data_pipeline.dataset.source import LabelledSplit
from pretrain.engine.collective import run_on_all_ranks
from pretrain.finetune.eval_rows import figure_lines
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.report.write import FinetuneFacts, write_report
from pretrain.run_dir.paths import RunDir, checkpoint_step, complete_checkpoints
from pretrain.training.session import Session

REPORT = "finetune"
"""Folder of the report, in `reports/`."""


def report_answers(session: Session) -> None:
    """Writes the report of a finished run with a task head into `reports/finetune`, and says where. Collective."""
    run, log, config = session.run, session.log, session.run.config
    if run.judge is None:
        return
    directory = RunDir(config.run.dir).reports / REPORT
    dataset = run.judge.dataset
    judged: dict[LabelledSplit, AnsweredSplit] = {
        split: run.judge(split) for split in dataset.splits() if split != "train"
    }
    facts = FinetuneFacts(
        name=config.run.name,
        start=config.run.start_from or "random weights",
        data=", ".join(source.called for source in config.data.resolved_sources),
        objective=config.objective.name,
        step=checkpoint_step(complete_checkpoints(session.checkpoints)[-1].name) or 0,
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
