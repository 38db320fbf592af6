"""The variables and the date by which a run's chat template renders conversations. A run of instructions has them in
its objective; a run of another objective that starts from it keeps them in `chat_settings.json`, beside the template.
"""

import json
from typing import Any

from data_pipeline.recipes.instructions import Instructions
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir

_KEYS = {"template_variables", "date"}


def chat_settings(objective: Any, run: RunDir) -> Instructions:
    """Instructions with what the objective of the run says of its chat template, or else with what the run keeps.
    Raises ConfigError for a damaged file."""
    if isinstance(objective, Instructions) and objective.chat_template is not None:
        return objective
    if not run.chat_settings.is_file():
        return Instructions()
    try:
        return Instructions.model_validate(json.loads(run.chat_settings.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{run.chat_settings} is damaged ({error}): copy it from the run that this one started from"
        ) from None


def kept(objective: Instructions) -> bytes | None:
    """Content of `chat_settings.json` for an objective with a chat template; None: there is nothing to keep."""
    given = objective.model_dump(mode="json", include=_KEYS, exclude_defaults=True)
    return json.dumps(given, indent=2).encode() + b"\n" if given else None
