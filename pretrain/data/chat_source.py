"""A run's notes on conversations as transformers has them for the folder that its model was imported from
(`source_model.json`): the names of special tokens that chat templates write, and the ids of a conversation."""

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.config.start import recorded_run
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RunDir

_UNNAMED = {"bos_token": "", "eos_token": ""}
"""text written by a template that asks for a name which the folder lacks"""
_SHOWN = 12  # ids in a message


@dataclass(frozen=True)
class ChatSource:
    """Notes on a folder whose tokenizer a run still has."""

    names: dict[str, str]
    """name of a template's variable -> name of a special token"""
    conversation: dict[str, Any] | None
    """`text` and `ids` of a conversation; None: the folder has no template"""
    path: Path

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError where `tokenizer` makes other ids of the conversation than transformers."""
        if self.conversation is None:
            return
        ((encoded, _),) = tokenizer.encode_marked_batch([self.conversation["text"]], 1)
        ours, theirs = encoded.tolist(), self.conversation["ids"]
        if ours != theirs:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
            raise ConfigError(
                f"of a conversation in {self.path}, transformers continues with the ids "
                f"{theirs[same : same + _SHOWN]}, and ours are {ours[same : same + _SHOWN]}: import the "
                "model again, from a folder with the tokenizer.json that "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes"
            )


def chat_source(path: Path, tokenizer: Tokenizer) -> ChatSource | None:
    """Notes in the file at `path`. None: there is no file, it notes nothing of conversations, or it is of another
    tokenizer. Raises ConfigError for a damaged one."""
    if not path.is_file():
        return None
    try:
        tree = json.loads(path.read_bytes())
        noted, pieces = tree["noted"], tree["special_pieces"]
        if noted is None or any(tokenizer.id_of(name) != index for name, index in pieces.items()):
            return None
        turns = noted["turns"]
        conversation = None if turns is None else {"text": str(turns["text"]), "ids": list(turns["ids"])}
        return ChatSource({**_UNNAMED, **noted["names"]}, conversation, path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): import the model again") from None


def chat_source_of(config: RunConfig, tokenizer: Tokenizer) -> ChatSource | None:
    """Notes of the run of a config, or of the run that it starts from; None: there are none."""
    runs = [RunDir(config.run.dir)]
    if config.run.start_from is not None:
        with suppress(ConfigError):  # a run that resumes needs it no longer
            runs.append(recorded_run(config.run.start_from))
    path = next((run.source_model for run in runs if run.source_model.is_file()), None)
    return None if path is None else chat_source(path, tokenizer)
