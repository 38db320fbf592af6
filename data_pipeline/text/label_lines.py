"""Text of `arbitrary_labels`, a synthetic task that a model of a million parameters learns from examples in its prompt.

A text is a list of lines such as `cat wolf: dax`: two words of one category, and the made-up label that this category
has in this text. Each of four categories has four possible labels, and each text draws one of them. Training text shows
which words form a category and which labels it may have; which of the four it has in a prompt is shown by the prompt's
examples alone. The accuracy over all 16 labels is 1/16 by chance, 1/4 with knowledge of the categories alone, and
`expected_accuracy` with knowledge of the categories and all of the examples read.

Training text and questions are made of what is here, so that they stay apart: training text has neither the pairs of
words of questions and examples, nor the combinations of four labels of an evaluation.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from math import comb
from types import MappingProxyType
from zlib import crc32

NAME = "arbitrary_labels"
_WORDS = {
    "animals": "cat dog horse cow pig goat sheep duck hen fox wolf bear lion tiger mouse frog owl bee",
    "foods": "bread cake soup rice cheese butter apple pear plum lemon onion bean corn honey salt pie",
    "clothes": "hat cap coat shirt skirt dress shoe boot sock glove scarf belt vest robe hood apron",
    "tools": "hammer saw axe drill knife spade rake hoe file nail screw wrench chisel clamp ladder",
}
CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {category: tuple(words.split()) for category, words in _WORDS.items()}
)
"""Words of each category."""
LABELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "animals": ("dax", "wug", "blick", "fep"),
        "foods": ("mave", "nilt", "quon", "rusp"),
        "clothes": ("bosk", "crim", "dorf", "elph"),
        "tools": ("lorp", "merd", "osk", "prit"),
    }
)
"""Labels that each category may have."""

_LINES = 48  # in a training text, so that one text fills most of a row of 256 tokens
_HELD_OUT_PAIRS = 15  # of each category, of 105 or more
_HELD_OUT_SHARE = 8  # one in so many combinations of labels is never in training text
QUESTIONS = 6
"""Questions per category with each combination of labels in an evaluation."""

Pair = tuple[str, str]


def training_texts(count: int, seed: int = 0) -> Iterator[str]:
    """The first `count` training texts of a seed."""
    known = label_combinations(held_out=False)
    words = [word_pairs(category, held_out=False) for category in CATEGORIES]
    for index in range(count):
        draw = random.Random(f"{NAME}/text/{seed}/{index}")
        labels = draw.choice(known)
        chosen = (draw.randrange(len(words)) for _ in range(_LINES))
        yield "\n".join(f"{question(draw.choice(words[category]))} {labels[category]}" for category in chosen)


def word_pairs(category: str, *, held_out: bool) -> list[Pair]:
    """Ordered pairs of two words of a category: those of training text, or those of questions and examples."""
    unordered = list(combinations(CATEGORIES[category], 2))
    random.Random(f"{NAME}/pairs/{category}").shuffle(unordered)
    chosen = unordered[:_HELD_OUT_PAIRS] if held_out else unordered[_HELD_OUT_PAIRS:]
    return [pair for first, second in chosen for pair in ((first, second), (second, first))]


def label_combinations(*, held_out: bool) -> list[tuple[str, ...]]:
    """One label for each category, in the order of CATEGORIES: those of training text, or those of evaluations."""
    found = product(*LABELS.values())
    return [labels for labels in found if (crc32(" ".join(labels).encode()) % _HELD_OUT_SHARE == 0) == held_out]


def expected_accuracy(shots: int) -> float:
    """The accuracy of a reader who knows the categories, has no other preference among their labels, and reads all
    examples: 1 where they show the question's category, 1/4 elsewhere."""
    others = QUESTIONS * len(CATEGORIES) - 1
    unseen = comb(others - (QUESTIONS - 1), shots) / comb(others, shots)
    return 1 - unseen * (1 - 1 / len(LABELS["animals"]))


def question(words: Pair) -> str:
    """A line without its label."""
    return f"{words[0]} {words[1]}:"
