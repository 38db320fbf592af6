"""What a task is: where its documents come from, how they become prompts, and how answers are judged."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.jsonl import Problem

Judged = Literal["target", "choice", "text", "perplexity"]
"""by what the model gives its target; by which of the choices it prefers; by the text it makes; as a text by itself"""


@dataclass(frozen=True)
class Choice:
    """A context and one way to go on. Mostly the context is the same for all; in Winograd's, what comes after is."""

    context: str
    target: str


@dataclass(frozen=True)
class TaskDocument:
    """A question and its answer. `context + target` is the text of a solved example, white space included."""

    context: str
    target: str
    """the right one; of a text to be rated as a whole, all of it, after an empty context"""
    choices: tuple[Choice, ...] = ()
    """what is chosen from"""
    right: tuple[int, ...] = ()
    """numbers of the choices that are right; one at least"""
    references: tuple[str, ...] = ()
    """answers in text, any of which is right"""
    group: str = ""
    """documents of one group are judged together by some metrics"""
    where: str = ""
    """file and line"""


@dataclass(frozen=True)
class Format:
    """A prompt is `instruction`, the solved examples and the context of the question, with `separator` between those;
    in OpenAI's files that is at the beginning of each context instead."""

    instruction: str = ""
    example: Callable[[TaskDocument], TaskDocument] = lambda document: document
    separator: str = ""


class Examples(Protocol):
    """Documents that prompts show."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Lines that are none, as far as anybody has looked."""

    @property
    def digest(self) -> str:
        """Of all that the documents say, wherever they stand."""

    def __len__(self) -> int: ...

    def example(self, place: int) -> TaskDocument | None:
        """The one there, from 0; None: it can't be shown."""


@dataclass(frozen=True)
class Loaded:
    """The documents of a file, in its order, and what is wrong with the others."""

    documents: Sequence[TaskDocument]
    problems: Sequence[Problem] = ()

    @cached_property
    def digest(self) -> str:
        """See `Examples`."""
        found = hashlib.sha256()
        for one in self.documents:
            choices = [(choice.context, choice.target) for choice in one.choices]
            said = [one.context, one.target, choices, one.right, one.references, one.group]
            found.update(json.dumps(said).encode())
        return found.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.documents)

    def example(self, place: int) -> TaskDocument | None:
        """See `Examples`."""
        return self.documents[place]


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

    def find(self, task: str, name: str, why: str = "needs") -> Path:
        """The file `name`, or gzipped `name.gz`. Raises ConfigError when it is missing."""
        advice = f"`pretrain eval fetch {task} --data DIR` gets what it can"
        if self.data_dir is None:
            raise ConfigError(f"task {task} {why} {name} (or {name}.gz): say where it is with --data DIR; {advice}")
        found = sorted(path for path in self.data_dir.rglob(f"{name}*") if path.name in (name, f"{name}.gz"))
        if not found:
            raise ConfigError(
                f"task {task} {why} {name} (or {name}.gz), which is not in {self.data_dir} or below it; {advice}"
            )
        return found[0]


def check_data_dir(data_dir: Path | None) -> None:
    """Raises ConfigError for a directory of benchmark files that is none."""
    if data_dir is not None and not data_dir.is_dir():
        raise ConfigError(f"{data_dir}, where benchmark files are looked for, is no directory: name one that is there")


@dataclass(frozen=True)
class Fetched:
    """Where a file comes from: a split of a dataset of the Hugging Face hub."""

    file: str
    dataset: str
    config: str | None
    """which of its parts; `*`: all, one after the other; None: it has but one"""
    split: str


@dataclass(frozen=True)
class Task:
    """A set of documents, each with a right answer."""

    name: str
    load: Callable[[Sources], Loaded]
    """all documents, in a fixed order"""
    load_shots: Callable[[Sources], Examples] | None = None
    """those that solved examples are drawn from; None: the other documents of the task itself"""
    judged: tuple[Judged, ...] = ("target",)
    metric: str = "accuracy"
    """the one that the paper reports, by its name in results"""
    zero_shot: Format = Format()
    few_shot: Format = Format()
    """for one shot and more"""
    paper_shots: int | None = None
    """K of GPT-3's few-shot setting"""
    bare: str | None = None
    """the context that a choice is compared after, for its probability without the question: P(choice | bare)"""
    stops: tuple[str, ...] = ("\n",)
    """where an answer in text ends"""
    beam: bool = False
    """the paper searches with a beam for answers in text"""
    longest: int | None = None
    """tokens of an answer in text; None: as many as the longest reference can need"""
    normalise: str = "strip"
    """what of an answer in text counts: see `measures/text.py`"""
    also: tuple[str, ...] = ()
    """further metrics: see `measures/together.py`"""
    synthetic: bool = False
    """its examples are made by a rule, so that fewer words in a row tell them from other text"""
    title: str = ""
    source: str = ""
    """paper, and where its data is from"""
    fetch: tuple[Fetched, ...] = ()
    """its files, where they can be had from a hub"""

    def format(self, shots: int) -> Format:
        """How a prompt with so many solved examples is put together."""
        return self.few_shot if shots else self.zero_shot
