"""Prose that is the same on any Python: the words of LICENSE, each drawn from those that follow the word before it
there, among made-up names and numbers.

    text = "\\n\\n".join(prose())        # 470 kB in 80 documents
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LICENSE = Path(__file__).parents[2] / "LICENSE"
DOCUMENTS = 80
DIGEST = "a1ff04abb3eb376a54c1e6cff4212cea0512c6c62e18d21fbc87b4bc07419485"
_NAMES = 2000
_CONSONANTS, _VOWELS, _ENDS = "bcdfghjklmnpqrstvwxyz", "aeiou", ("", "l", "n", "r", "s")


@cache
def prose() -> tuple[str, ...]:
    """Documents of a heading and about sixteen paragraphs, which blank lines divide. Raises AssertionError if they are
    not those that the tests were written with."""
    words = LICENSE.read_text(encoding="utf-8").split()
    followers: dict[str, list[str]] = defaultdict(list)
    for word, follower in zip(words, [*words[1:], words[0]], strict=True):
        followers[word].append(follower)
    draw = random.Random(0).random  # the one of the module's functions whose values no release of Python may change

    def one(values: Sequence[str]) -> str:
        return values[int(len(values) * draw())]

    def syllable() -> str:
        return one(_CONSONANTS) + one(_VOWELS) + one(_ENDS)

    names = ["".join(syllable() for _ in range(1 + int(3 * draw()))) for _ in range(_NAMES)]
    names[-40:] = (f"{name}é" for name in names[-40:])  # few paragraphs are not ASCII

    def sentence() -> str:
        word, said = one(words), []
        for _ in range(6 + int(24 * draw())):
            chance = draw()
            if chance < 0.15:
                said.append(names[int(_NAMES * draw() ** 3)])  # the first of them often, most seldom
            elif chance < 0.18:
                said.append(str(int(10_000 * draw() ** 2)))
            else:
                said.append(word)
                word = one(followers[word])
        text = " ".join(said).rstrip(".,;:")
        return f"{text[0].upper()}{text[1:]}."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(1 + int(5 * draw())))

    def document() -> str:
        return "\n\n".join([sentence().rstrip("."), *(paragraph() for _ in range(11 + int(12 * draw())))])

    documents = tuple(document() for _ in range(DOCUMENTS))
    found = hashlib.sha256("\0".join(documents).encode()).hexdigest()
    assert found == DIGEST, f"the tests' prose is another text now ({found}): has LICENSE changed?"
    return documents
