"""Texts that our task files clean as lm-eval cleans them: by the same rules, on any text."""

import random
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pretrain.evaluate.tasks.filters import instead, wikihow, wikitext

PIECES = [
    "The man", "A", "his", "N", "=", "= =", "@-@", "@,@", "@.@", ".", ",", "?", "!", ";", ":", "(", ")", "[", "]", "{",
    "}", '"', "'", "'s", "s", "\n", " \n ", "  ", "°", "[title]", "[step]", "[substeps]", "It", "dog", "é", "1",
]  # fmt: skip


def soup(draw: random.Random) -> str:
    return "".join(piece + draw.choice(["", " ", " ", " "]) for piece in draw.choices(PIECES, k=draw.randrange(2, 40)))


def test_pages_of_wikitext_are_what_lm_eval_makes_of_them() -> None:
    theirs = import_module("lm_eval.tasks.wikitext.preprocess_wikitext").wikitext_detokenizer
    draw = random.Random(0)
    for _ in range(2000):
        page = soup(draw)
        assert wikitext(page) == theirs({"page": page})


def test_texts_of_hellaswag_are_what_lm_eval_makes_of_them() -> None:
    theirs = import_module("lm_eval.tasks.hellaswag.utils").preprocess
    draw = random.Random(1)
    for _ in range(2000):
        text = soup(draw)
        assert wikihow(text) == theirs(text)


def test_nouns_of_winograds_schemas_stand_as_in_lm_eval() -> None:
    process = import_module("lm_eval.tasks.wsc273.utils").process_doc

    def theirs(doc: dict[str, Any]) -> list[str]:
        return process(SimpleNamespace(map=lambda change: change(doc)))["options"]

    draw = random.Random(2)
    pronouns, nouns = (
        ["he", "She", "his", "My", "it", "They"],
        ["The man", "A dog", "Ann", "the cups", "His son", "They"],
    )
    for _ in range(500):
        begin = draw.choice(["The man met Ann. ", "The man met Ann because ", "Then, "])
        pronoun, options = draw.choice(pronouns), draw.sample(nouns, 2)
        text = f"{begin}{pronoun} was late."
        doc = {"text": text, "pronoun": pronoun, "pronoun_loc": len(begin), "options": options[:]}
        assert [instead(noun, pronoun, text, len(begin)) for noun in options] == theirs(doc)
