"""transformers' own tokenizer of a folder, which what is read here is compared with. No code of the folder is run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

_JSON = "tokenizer.json"
_PROBE = "Do you know\tthe W\u00fcrzburg \u4e2d? \U0001f600\n"


def load_tokenizer_of(directory: Path, **settings: Any) -> Any:
    """The tokenizer, with these settings. Raises whatever the library does of a folder that it cannot read."""
    how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, **settings}
    with _quiet():
        try:
            found = AutoTokenizer.from_pretrained(directory, **how)
            found(_PROBE)  # some of what a file lacks shows only then
        except Exception:  # a class that the tokenizer.json is not of
            if not (directory / _JSON).is_file():
                raise
            return PreTrainedTokenizerFast.from_pretrained(directory, **how)
        if type(found) is PreTrainedTokenizerFast and not (directory / _JSON).is_file():
            return LlamaTokenizer.from_pretrained(directory, **how)  # no class is named: the one that reads a .model
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' advice on a folder's tokenizer out of the output."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
