"""Files that a run's directory has of the run whose weights it starts from (`run.start_from`), for its exports: the
chat template, and what the folder of an imported model says besides weights."""

import json
from pathlib import Path

from data_pipeline.recipes.instructions import Instructions
from pretrain.config.run_config import RunConfig
from pretrain.config.start import recorded_run
from pretrain.data.chat_settings import kept
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir

ANSWERS_BY_TEMPLATE = "answers_by_template"
"""key of source_model.json: whether answers were trained that a chat template ends"""


def inherited_files(config: RunConfig) -> dict[Path, bytes]:
    """Contents by path in the run's directory. A template that the objective renders conversations by takes the place
    of the start's. Files that the run has already, as one that resumes has, stay as they are."""
    run = RunDir(config.run.dir)
    runs = [run, *_start(config)]
    found = dict[Path, bytes]()
    for path, sources in (
        (run.chat_template, [one.chat_template for one in runs]),
        (run.chat_settings, [one.chat_settings for one in runs]),
        (run.source_model, [one.source_model for one in runs]),
    ):
        if (source := next((file for file in sources if file.is_file()), None)) is not None:
            found[path] = source.read_bytes()
    objective = config.objective
    if isinstance(objective, Instructions) and objective.chat_template is not None:
        found[run.chat_template] = Path(objective.chat_template).read_bytes()
        found.pop(run.chat_settings, None)
        if (settings := kept(objective)) is not None:
            found[run.chat_settings] = settings
        if run.source_model in found:
            found[run.source_model] = _answering(found[run.source_model])
    return found


def _answering(content: bytes) -> bytes:
    try:
        record = json.loads(content)
    except ValueError:  # an export names the file
        return content
    return f"{json.dumps(record | {ANSWERS_BY_TEMPLATE: True}, indent=2, ensure_ascii=False)}\n".encode()


def _start(config: RunConfig) -> list[RunDir]:
    """The run that this one starts from; none if it starts from none, or resumes after that one is gone."""
    try:
        return [] if config.run.start_from is None else [recorded_run(config.run.start_from)]
    except ConfigError:
        return []
