"""Predict the last word of a passage: LAMBADA, and the same question about the run's own held-out text.

Zero-shot, the passage is simply continued; with examples it has a blank at its end (2005.14165, section 3.1.2), so
that a model knows that one word is wanted.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Fetched, Format, Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import BadDocument, documents, text_of

_PASSAGES = 5000
_MIN_WORDS, _MAX_WORDS = 12, 32  # short, so that several fit into a small model
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r".*?[.!?](?=\s|$)", re.DOTALL)
_ENDS_IN_A_WORD = re.compile(r".*\S [^\W\d_]+", re.DOTALL)


def _blank(document: TaskDocument) -> TaskDocument:
    return TaskDocument(f"\n\n{document.context} ____. ->", document.target)


def _split(text: str) -> TaskDocument:
    context, _, word = text.rpartition(" ")
    return TaskDocument(context, f" {word}")


def _lambada(file: str, why: str, sources: Sources) -> Loaded:
    return Loaded(*documents(sources.find("lambada_openai", file, why), _passage))


def _passage(line: dict[str, Any], where: str) -> list[TaskDocument]:
    document = _split(text_of(line, "text"))
    if not document.context:
        raise BadDocument("'text' has no space, so nothing comes before its last word")
    if not document.target.strip():
        raise BadDocument("'text' ends in a space, not in a word")
    return [replace(document, where=where)]


def _held_out(sources: Sources) -> Loaded:
    """Up to 5,000 passages from the beginning of the held-out split, shuffled, so that the first few are of many
    documents. The same for every seed: the seed of an evaluation draws shots, not questions."""
    if sources.dataset is None:
        raise ConfigError("task last_word is made of the run's held-out text: give a run whose data can be read")
    split_passages: list[TaskDocument] = []
    for _, tokens in sources.dataset.documents("validation"):
        split_passages.extend(map(_split, passages(sources.tokenizer.decode(tokens))))
        if len(split_passages) >= _PASSAGES:
            break
    if not split_passages:
        raise ConfigError(
            f"task last_word finds no passage in the held-out text of {sources.dataset.directory}: it needs sentences "
            f"of up to {_MAX_WORDS} words with spaces between them"
        )
    random.Random(0).shuffle(split_passages)
    return Loaded(split_passages[:_PASSAGES])


def passages(text: str) -> Iterator[str]:
    """Runs of whole sentences of a paragraph, 12 to 32 words, up to the last word: like LAMBADA's, without its mark."""
    for paragraph in _PARAGRAPH_END.split(text):
        begin = words = 0
        for sentence in _SENTENCE.finditer(paragraph):
            words += len(sentence[0].split())
            if words < _MIN_WORDS:
                continue
            passage = re.sub(r"\W+$", "", paragraph[begin : sentence.end()]).lstrip()
            if words <= _MAX_WORDS and _ENDS_IN_A_WORD.fullmatch(passage):
                yield passage
            begin, words = sentence.end(), 0


_FEW_SHOT = Format("Fill in blank:", _blank)
TASKS = [
    Task(
        name="lambada_openai",
        load=partial(_lambada, "lambada_test.jsonl", "needs"),
        load_shots=partial(_lambada, "lambada_dev.jsonl", "shows examples from"),
        few_shot=_FEW_SHOT,
        paper_shots=15,
        title="LAMBADA",
        source="Paperno et al. 2016 (arXiv 1606.06031), as OpenAI gives it out; examples from its development split",
        fetch=(Fetched("lambada_test.jsonl", "EleutherAI/lambada_openai", "default", "test"),),
    ),
    Task(
        name="last_word",
        load=_held_out,
        few_shot=_FEW_SHOT,
        title="Last word",
        source="the run's held-out text",
    ),
]
