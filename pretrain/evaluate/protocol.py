"""GPT-3's rules: which examples a prompt shows, how it is put together, and how text becomes tokens to score.

Everything here is a pure function of the task, the document and the seed: not of the order of documents, of how many
are scored, or of ranks.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Format, TaskDocument


@dataclass(frozen=True)
class Prompt:
    """What the model reads, and what it should say next."""

    text: str
    target: str
    context_ids: list[int]
    """never empty: an end of text stands for no text"""
    target_ids: list[int]
    shots: int
    """solved examples shown"""
    truncated: bool
    """it did not fit: shots were left out at the beginning, or the scorer will cut the text there"""


def shot_indices(task: str, document: int, documents: int, shots: int, seed: int) -> list[int]:
    """Which `shots` of a task's `documents` are shown before `document`: different ones, never itself, and the first k
    of them are those of k shots. Raises ConfigError when there are too few."""
    if shots >= documents:
        raise ConfigError(f"task {task} has {documents} documents, too few for {shots} shots and the question itself")
    draw = random.Random(f"{task}/{document}/{seed}")
    chosen: list[int] = []
    while len(chosen) < shots:
        index = draw.randrange(documents)
        if index != document and index not in chosen:
            chosen.append(index)
    return chosen


def build_prompt(
    form: Format,
    shots: Sequence[TaskDocument],
    document: TaskDocument,
    tokenizer: Tokenizer,
    length: int,
    answer_tokens: int,
) -> Prompt:
    """The longest prompt of instruction, `shots` and question that leaves room for the answer.

    `length` is the model's, in tokens; room is kept for `answer_tokens` generated ones or the target. Where not all
    shots fit, whole ones are left out, the first of the prompt first.
    """
    question = form.example(document)
    solved = [example.context + example.target for example in map(form.example, shots)]

    def prompt(dropped: int) -> Prompt:
        text = form.instruction + "".join(solved[dropped:]) + question.context
        pair = encode_pair(tokenizer, text, question.target)
        return Prompt(text, question.target, *pair, shots=len(solved) - dropped, truncated=False)

    def fits(prompt: Prompt) -> bool:
        return len(prompt.context_ids) + max(answer_tokens, len(prompt.target_ids) - 1) <= length

    whole = prompt(0)
    if fits(whole):
        return whole
    dropped = bisect_left(range(len(solved)), True, lo=min(1, len(solved)), key=lambda n: fits(prompt(n)))
    return replace(prompt(dropped), truncated=True)


def encode_pair(tokenizer: Tokenizer, context: str, target: str) -> tuple[list[int], list[int]]:
    """(context ids, target ids), split as lm-eval splits: the text is encoded as a whole and cut at the length of the
    context's own encoding; spaces at the context's end belong to the target."""
    stripped = context.rstrip()
    context, target = stripped, context[len(stripped) :] + target
    if not context:
        return [tokenizer.end_of_text], tokenizer.encode(target)
    context_ids, whole_ids = tokenizer.encode(context), tokenizer.encode(context + target)
    cut = min(len(context_ids), len(whole_ids) - 1)  # a target that became one token with the context's end is scored
    return context_ids[:cut], whole_ids[cut:]


def stop_token(tokenizer: Tokenizer, stops: Sequence[str]) -> int:
    """A token that generation can end at: the first of `stops` that is one token, else the end of text."""
    return next((ids[0] for ids in map(tokenizer.encode, stops) if len(ids) == 1), tokenizer.end_of_text)


def answer_text(tokenizer: Tokenizer, answer: Sequence[int], stops: Sequence[str]) -> str:
    """The text of generated tokens up to an end of text or the first of `stops`."""
    end = answer.index(tokenizer.end_of_text) if tokenizer.end_of_text in answer else len(answer)
    text = tokenizer.decode(answer[:end])
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
