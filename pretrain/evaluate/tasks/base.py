"""What a task is: where its documents come from and how they become prompts."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError


@dataclass(frozen=True)
class TaskDocument:
    """A question and its answer. `context + target` is the text of a solved example, white space included."""

    context: str
    target: str


@dataclass(frozen=True)
class Format:
    """A prompt is `instruction`, the examples, and the context of the question, joined by nothing: what separates
    them is at the beginning of each example's context, as in OpenAI's files."""

    instruction: str = ""
    example: Callable[[TaskDocument], TaskDocument] = lambda document: document


@dataclass(frozen=True)
class Sources:
    """Where documents may come from."""

    data_dir: Path | None
    """directory with benchmark files, at any depth"""
    dataset: Dataset | None
    """the run's own data, for tasks made of held-out text"""
    tokenizer: Tokenizer
    """the tokenizer of `dataset`"""
    seed: int
    """of generated documents"""

    def read(self, task: str, name: str) -> list[dict[str, Any]]:
        """The lines of `name`, a .jsonl file that may be gzipped. Raises ConfigError when it is missing or damaged."""
        if self.data_dir is None:
            raise ConfigError(f"task {task} needs {name} (or {name}.gz): say where it is with --data DIR")
        found = sorted(path for path in self.data_dir.rglob(f"{name}*") if path.name in (name, f"{name}.gz"))
        if not found:
            raise ConfigError(f"task {task} needs {name} (or {name}.gz), which is not in {self.data_dir} or below it")
        path = found[0]
        data = path.read_bytes()
        try:
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        except (OSError, EOFError, ValueError) as error:
            raise ConfigError(f"{path} is not a file of JSON lines ({error}): copy it again") from error


@dataclass(frozen=True)
class Task:
    """A set of documents with one right answer each."""

    name: str
    load: Callable[[Sources], Sequence[TaskDocument]]
    """all documents, in a fixed order; shots are drawn from them too"""
    zero_shot: Format = Format()
    few_shot: Format = Format()
    """for one shot and more"""
    generates: bool = False
    """the answer is also generated and compared (exact match)"""

    def format(self, shots: int) -> Format:
        return self.few_shot if shots else self.zero_shot
