"""Definition of a task: where its documents come from, how they become prompts, and how answers are judged."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import GREEDY, Decoding
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.metric_names import MAX_GEN_TOKS, OutputType


@dataclass(frozen=True)
class Continuation:
    """A context and a continuation. Most tasks have one context for all choices; Winograd's have one continuation."""

    context: str
    target: str


@dataclass(frozen=True)
class TaskDocument:
    """A question and its answer. `context + target` is the text of a solved example, white space included."""

    context: str
    target: str
    """the right answer; of loglikelihood_rolling the text, after an empty context"""
    choices: tuple[Continuation, ...] = ()
    right: tuple[int, ...] = ()
    """numbers of the right choices, as the file has them; one at least"""
    _: KW_ONLY
    references: tuple[str, ...] = ()
    """answers in text, all of them right"""
    original: str = ""
    """text that the answer is a correction of"""
    group: str = ""
    """group of documents that group metrics are computed over, or that examples are drawn from"""
    where: str = ""
    """file and line"""

    def equal_choices(self, number: int) -> list[int]:
        """Numbers of all choices with the context and the target of that one, itself included."""
        return [other for other, choice in enumerate(self.choices) if choice == self.choices[number]]

    @cached_property
    def correct(self) -> frozenset[int]:
        """Numbers of all choices that are right: a text that is there twice is right both times."""
        return frozenset(other for number in self.right for other in self.equal_choices(number))


@dataclass(frozen=True)
class Format:
    """Format of a prompt: `description`, the examples, each with `fewshot_delimiter` after it (OpenAI's files have it
    at the beginning of each context instead), and the context of the question."""

    description: str = ""
    example: Callable[[TaskDocument], TaskDocument] = lambda document: document
    fewshot_delimiter: str = ""
    example_delimiter: str = ""
    """text between context and target of examples alone"""


class Examples(Protocol):
    """Documents that examples are drawn from."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Lines that are no documents, as far as they were read."""

    @property
    def digest(self) -> str:
        """Hash of the documents' contents, wherever the file is."""

    def __len__(self) -> int: ...

    def example(self, index: int) -> TaskDocument | None:
        """The document of that index; None: its line is malformed."""


@dataclass(frozen=True)
class Loaded:
    """The documents of a file, in its order, and its malformed lines."""

    documents: Sequence[TaskDocument]
    problems: Sequence[Problem] = ()

    @cached_property
    def digest(self) -> str:
        """See `Examples`."""
        digest = hashlib.sha256()
        for one in self.documents:
            choices = [(choice.context, choice.target) for choice in one.choices]
            content = [one.context, one.target, choices, one.right, one.references, one.group]
            content += [one.original] * bool(one.original)
            digest.update(json.dumps(content).encode())
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.documents)

    def example(self, index: int) -> TaskDocument | None:
        """See `Examples`."""
        return self.documents[index]


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
    """seed of generated documents"""

    def find(self, task: str, name: str, why: str = "needs", advice: str = "") -> Path:
        """The file `name`, or gzipped `name.gz`. Raises ConfigError when it is missing, with `advice` where it is from;
        empty: from the hub."""
        advice = advice or f"`pretrain eval fetch {task} --data DIR` downloads the files that are published"
        if self.data_dir is None:
            raise ConfigError(f"task {task} {why} {name} (or {name}.gz): name its directory with --data DIR; {advice}")
        paths = sorted(path for path in self.data_dir.rglob(f"{name}*") if path.name in (name, f"{name}.gz"))
        if not paths:
            raise ConfigError(
                f"task {task} {why} {name} (or {name}.gz), which is not in {self.data_dir} or below it; {advice}"
            )
        return paths[0]


def check_data_dir(data_dir: Path | None) -> None:
    """Raises ConfigError where the directory of benchmark files does not exist."""
    if data_dir is not None and not data_dir.is_dir():
        raise ConfigError(f"--data {data_dir} is not a directory: name the directory with benchmark files")


@dataclass(frozen=True)
class Fetched:
    """A file, and the split of a dataset on the Hugging Face hub that it is downloaded from."""

    file: str
    dataset: str
    config: str | None
    """configuration of the dataset; `*`: all, one after the other; None: the dataset has one"""
    split: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """A set of documents, each with a right answer."""

    name: str
    load: Callable[[Sources], Loaded]
    """all documents, in a fixed order"""
    load_shots: Callable[[Sources], Examples] | None = None
    """documents that examples are drawn from; None: the other documents of the task itself"""
    output_types: tuple[OutputType, ...] = ("loglikelihood",)
    metrics: tuple[str, ...] = ("accuracy",)
    """metrics by their names in results; the first is the one that reports show"""
    examples_share_group: bool = False
    """examples are drawn from the documents of the question's group; requires `load_shots` to be None"""
    zero_shot: Format = Format()
    few_shot: Format = Format()
    """for one example and more"""
    paper_shots: int | None = None
    """K of GPT-3's few-shot setting"""
    num_fewshot: int | None = None
    """number of examples that is scored by default; None: 0, 1 and `paper_shots`"""
    unconditional_context: str | None = None
    """context of a choice's probability without the question: P(choice | unconditional_context)"""
    until: tuple[str, ...] = ("\n",)
    """strings that end a generated answer"""
    decoding: Decoding = GREEDY
    """default decoding of answers"""
    max_gen_toks: int = MAX_GEN_TOKS
    """most tokens of a generated answer"""
    response_filters: tuple[Callable[[str], str], ...] = ()
    """filters of a generated answer before it is compared"""
    normalize: Callable[[str], str] = str.strip
    """normalization of a generated answer and of a reference before they are compared"""
    every_script: Callable[[str], str] | None = None
    """the same rule, read for characters of every script; None: answers are not compared by it"""
    one_form: bool = False
    """answers and references are put into one Unicode form, width and kind of digits before anything else"""
    unicode_words: bool = False
    """metrics of words count those of every language, not what white space separates or rouge-score knows"""
    bleu_tokenize: str = "13a"
    """sacrebleu's tokenizer"""
    synthetic: bool = False
    """documents are generated by a rule, so that fewer words in a row tell them from other text"""
    note: str = ""
    """sentences that reports show beside the scores"""
    title: str = ""
    """title in the report; empty: the name"""
    source: str = ""
    """paper, and where the data is from"""
    fetch: tuple[Fetched, ...] = ()
    """files that can be downloaded from the Hugging Face hub"""

    @property
    def metric(self) -> str:
        """The metric that reports show."""
        return self.metrics[0]

    def format(self, shots: int) -> Format:
        """The format of a prompt with that many examples."""
        return self.few_shot if shots else self.zero_shot
