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

import regex

from data_pipeline.writing.folding import is_unspaced, spaced
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Fetched, Format, Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import BadDocument, documents, text_of

_PASSAGES = 5000
_MIN_WORDS, _MAX_WORDS = 12, 32  # short, so that several fit into a small model
_PARAGRAPH_END = re.compile(r"\n\s*\n")
# Unicode's terminals of other scripts end a sentence whatever follows, with the quotes and brackets that close there.
_SENTENCE = regex.compile(r".*?(?:[.!?](?=\s|$)|[\p{STerm}--[.!?]]+[\p{Pe}\p{Pf}\"'\uff02\uff07]*)", regex.V1 | regex.S)
_NO_WORD = regex.compile(r"[^\w\p{M}\u200c\u200d]+$")  # marks are a part of words: in Hindi many end in them
_ENDS_IN_A_WORD = regex.compile(r".*\S [[^\W\d_]\p{M}\u200c\u200d]+", regex.V1 | regex.S)


def _blank(document: TaskDocument) -> TaskDocument:
    return TaskDocument(f"\n\n{document.context} ____. ->", document.target)


def _split(text: str) -> TaskDocument:
    context, _, word = text.rpartition(" ")
    return TaskDocument(context, f" {word}")


def last_word(text: str) -> TaskDocument:
    """A passage, split before its last word; of a script without spaces before its last letter, with no space."""
    word = spaced(text).split()[-1]
    return TaskDocument(text.removesuffix(word), word) if is_unspaced(word) else _split(text)


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
        split_passages.extend(map(last_word, passages(sources.tokenizer.decode(tokens))))
        if len(split_passages) >= _PASSAGES:
            break
    if not split_passages:
        raise ConfigError(
            f"task last_word finds no passage in the held-out text of {sources.dataset.directory}: it needs sentences "
            f"of up to {_MAX_WORDS} words, or letters of a script without spaces"
        )
    random.Random(0).shuffle(split_passages)
    return Loaded(split_passages[:_PASSAGES])


def passages(text: str) -> Iterator[str]:
    """Runs of whole sentences of a paragraph, 12 to 32 words, up to the last word: like LAMBADA's, without its mark. A
    letter of a script without spaces is a word."""
    for paragraph in _PARAGRAPH_END.split(text):
        begin = words = 0
        for sentence in _SENTENCE.finditer(paragraph):
            words += len(spaced(sentence[0]).split())
            if words < _MIN_WORDS:
                continue
            passage = _NO_WORD.sub("", paragraph[begin : sentence.end()]).lstrip()
            if words <= _MAX_WORDS and (_ENDS_IN_A_WORD.fullmatch(passage) or _ends_in_a_letter(passage)):
                yield passage
            begin, words = sentence.end(), 0


def _ends_in_a_letter(passage: str) -> bool:
    """Whether the last word is a letter of a script without spaces."""
    return bool(passage) and is_unspaced(spaced(passage).split()[-1])


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
