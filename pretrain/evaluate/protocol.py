"""GPT-3's rules: which examples a prompt shows, and how it is put together.

Everything here is a pure function of the task, the document, the draw and the seed: not of the order of documents, of
how many are scored, or of ranks.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pretrain.errors import ConfigError
from pretrain.evaluate.scorers.base import Pair, Scorer
from pretrain.evaluate.tasks.base import Continuation, Examples, Format, TaskDocument


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the targets that are scored after it."""

    before: str
    """instruction and solved examples, with what separates them from the question"""
    continuations: tuple[Continuation, ...]
    """the question, and a target, for each choice of the document; one for a document without choices"""
    pairs: tuple[Pair, ...]
    """ids of each continuation, its context after `before`"""
    shots: int
    """solved examples shown"""
    truncated: bool
    """whether it did not fit: shots were dropped from the end, or the scorer cuts the beginning of the text"""

    @property
    def text(self) -> str:
        """The model's input before the first target."""
        return self.before + self.continuations[0].context


@dataclass(frozen=True)
class DrawnExamples:
    """The solved examples of a document."""

    numbers: list[int]
    """numbers of the examples, in the order of the prompt"""
    redrawn: int
    """examples for which another one was drawn, as they hold the answer to the question"""


HoldsAnswer = Callable[[int], bool]
"""Whether the example of a number holds the answer to the question."""


def example_holds_answer(example: TaskDocument, question: TaskDocument) -> bool:
    """Whether an example is the question with a right answer, or has both in its context, as later turns of a dialogue
    have."""
    solved = [(question.choices[number].context, question.choices[number].target) for number in question.correct]
    solved = solved or [(question.context, answer) for answer in (question.target, *question.references)]
    shown = example.context.strip(), example.target.strip()
    if any(shown == (context.strip(), answer.strip()) for context, answer in solved):
        return True
    return bool(question.context.strip()) and example.context.startswith(question.context + question.target)


def shot_indices(
    task: str, document: int, documents: int, shots: int, *, seed: int, draw: int = 0,
    holds_answer: HoldsAnswer = lambda index: False,
) -> DrawnExamples:  # fmt: skip
    """The `shots` of a task's `documents` that are shown before `document`: different ones, never itself, none that
    holds its answer, and the first k of them are those of k shots. Raises ConfigError when there are too few."""
    if shots >= documents:
        raise ConfigError(f"task {task} has {documents} documents, too few for {shots} shots and the question itself")
    stream = f"{task}/{document}/{seed}" + (f"/{draw}" if draw else "")
    drawn = _drawn(stream, documents, shots, lambda index: index != document, holds_answer)
    if len(drawn.numbers) < shots:
        raise ConfigError(_too_few(task, document, drawn, shots))
    return drawn


def shots_from_elsewhere(
    task: str, document: int, pool: Examples, shots: int, *, seed: int, draw: int = 0,
    holds_answer: HoldsAnswer = lambda index: False,
) -> DrawnExamples:  # fmt: skip
    """The `shots` documents of a `pool`, such as a training split, that are shown before `document`: different ones,
    none that holds its answer, and the first k are those of k shots. Raises ConfigError when there are too few."""
    stream = f"{task}/{document}/{seed}" + (f"/{draw}" if draw else "")
    drawn = _drawn(stream, len(pool), shots, lambda place: pool.example(place) is not None, holds_answer)
    if len(drawn.numbers) < shots:
        raise ConfigError(_too_few(task, document, drawn, shots))
    return drawn


def build_prompt(
    form: Format, shots: Sequence[TaskDocument], document: TaskDocument, scorer: Scorer, answer_tokens: int
) -> Prompt:
    """The longest prompt of instruction, `shots` and question that leaves room for every target, and for
    `answer_tokens` generated ones. Where not all shots fit, whole ones are left out, the last of the prompt first, so
    that those of fewer shots are always the beginning of those of more."""
    question = form.example(document)
    solved = [
        example.context + form.example_delimiter + example.target + form.fewshot_delimiter
        for example in map(form.example, shots)
    ]
    continuations = question.choices or (Continuation(question.context, question.target),)

    def prompt(count: int) -> Prompt:
        before = form.description + "".join(solved[:count])
        pairs = tuple(scorer.pair(before + continuation.context, continuation.target) for continuation in continuations)
        return Prompt(before, continuations, pairs, count, False)

    def fits(prompt: Prompt) -> bool:
        return all(scorer.fits(pair, answer_tokens) for pair in prompt.pairs)

    full = prompt(len(solved))
    if fits(full):
        return full
    # The fewest that are too many, less one.
    count = bisect_left(range(len(solved)), True, lo=min(1, len(solved)), key=lambda n: not fits(prompt(n))) - 1
    cut = prompt(max(count, 0))
    return Prompt(cut.before, cut.continuations, cut.pairs, cut.shots, True)


def _drawn(
    stream: str, count: int, shots: int, usable: Callable[[int], bool], holds_answer: HoldsAnswer
) -> DrawnExamples:
    """Different ones, or all that can be shown where these are fewer."""
    draw, seen = random.Random(stream), set[int]()
    chosen: list[int] = []
    redrawn = 0
    while len(chosen) < shots and len(seen) < count:
        index = draw.randrange(count)
        if index in seen:
            continue
        seen.add(index)
        if not usable(index):
            continue
        if holds_answer(index):
            redrawn += 1
        else:
            chosen.append(index)
    return DrawnExamples(chosen, redrawn)


def _too_few(task: str, document: int, drawn: DrawnExamples, shots: int) -> str:
    found = f"task {task} has {len(drawn.numbers)} documents to show, too few for {shots} shots"
    if not drawn.redrawn:
        return found
    return f"{found} before document {document}, beside {drawn.redrawn} with its question and answer"
