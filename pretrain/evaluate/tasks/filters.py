"""Filters that task files may apply to a field: `field | filter(...)`. A filter given something else than it is for
raises ValueError: there is no guess at what was meant."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import Undefined


def _must_be_there(value: Any) -> None:
    if isinstance(value, Undefined):
        str(value)  # raises, and says which field is missing


def _text(value: Any) -> str:
    _must_be_there(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not text but {type(value).__name__}")
    return value


def _list(value: Any) -> Sequence[Any]:
    _must_be_there(value)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r:.60} is not a list but {type(value).__name__}")
    return value


def number(value: Any) -> int:
    """A whole number, or the digits of one."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", value):
        return int(value)
    _must_be_there(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.60} is not a whole number")
    return value


def string(value: Any) -> str:
    """Text as it is, and a whole number in digits."""
    return value if isinstance(value, str) else str(number(value))


def position(values: Any, wanted: Any) -> int:
    """Where in a list something stands, once, from 0."""
    _must_be_there(wanted)
    places = [place for place, value in enumerate(_list(values)) if type(value) is type(wanted) and value == wanted]
    if len(places) != 1:
        raise ValueError(f"{wanted!r:.60} stands {len(places)} times in {values!r:.100}")
    return places[0]


def positions(values: Any, wanted: Any) -> list[int]:
    """Where in a list any of the things of another list stand."""
    return [place for place, value in enumerate(_list(values)) if value in _list(wanted)]


def before(text: Any, mark: str) -> str:
    """The text before the first `mark`, which must occur."""
    return _cut(text, mark)[0]


def after(text: Any, mark: str) -> str:
    """The text after the first `mark`, which must occur."""
    return _cut(text, mark)[1]


def _cut(text: Any, mark: str) -> tuple[str, str]:
    begin, separator, end = _text(text).partition(mark)
    if not separator:
        raise ValueError(f"{text!r:.60} has no '{mark}'")
    return begin, end


def regex_replace(text: Any, pattern: str, repl: str, count: int = 0) -> str:
    """A text with what a regular expression matches replaced, as lm-eval's filter of this name."""
    return re.sub(pattern, repl, _text(text), count=count)


def map_filter(values: Any, name: str, *arguments: Any) -> list[Any]:
    """A list with a filter applied to each of its values."""
    if name not in FILTERS:
        raise ValueError(f"there is no filter {name}")
    return [FILTERS[name](value, *arguments) for value in _list(values)]


def prepend(text: Any, beginning: Any) -> str:
    """A text after its beginning."""
    return _text(beginning) + _text(text)


def fill_in(noun: Any, sentence: Any, blank: str) -> str:
    """A sentence with a noun in the place of its blank."""
    return _text(sentence).replace(blank, _text(noun))


def filled(values: Any) -> list[str]:
    """The texts of a list that are not empty, each once."""
    return list(dict.fromkeys(value for value in map(_text, _list(values)) if value.strip()))


def plain_text(text: Any) -> str:
    """Text that is kept as words with spaces round its punctuation, as people write it."""
    shown = _text(text)
    for split, joined in (
        (r" (n't|'s|'m|'re|'ve|'ll|'d)\b", r"\1"), (r" ([.,;:?!)\]])", r"\1"), (r"([(\[]) ", r"\1"),
    ):  # fmt: skip
        shown = re.sub(split, joined, shown)
    return re.sub(r'" ([^"]*?) "', r'"\1"', shown)


def wikihow(text: Any) -> str:
    """HellaSwag's texts without the marks that WikiHow's have in them, as lm-eval does it."""
    return re.sub(r"\[.*?\]", "", _text(text).strip().replace(" [title]", ". ")).replace("  ", " ")


def wikitext(page: Any) -> str:
    """WikiText's pages without the spaces and marks that its tokenization left, as lm-eval does it."""
    text = _text(page)
    for split, joined in _WIKITEXT:
        text = re.sub(split, joined, text)
    return text


_WIKITEXT = (
    (r"s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (r" @\.@ ", "."),
    (" : ", ": "), (" ; ", "; "), (r" \. ", ". "), (" ! ", "! "), (r" \? ", "? "), (" , ", ", "),
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"), (r"\[\s*([^\]]*?)\s*\]", r"[\1]"), (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'), (r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" ° ", "°"), (r" \n", r"\n"), (r"\n ", r"\n"),
    (" N ", " 1 "), (" 's", "'s"),
)  # fmt: skip


def bold(text: Any, word: Any, beginning: Any) -> str:
    """A text with its word number `word`, from 0, in asterisks as far as `beginning`, which it must start with."""
    words = _text(text).split()
    place, name = number(word), _text(beginning)
    if not 0 <= place < len(words) or not words[place].startswith(name):
        raise ValueError(f"'{name}' is not word {place} of {text!r:.60}")
    return " ".join([*words[:place], f"*{name}*{words[place][len(name) :]}", *words[place + 1 :]])


def instead(noun: Any, pronoun: Any, text: Any, begin: Any) -> str:
    """A noun in the form that replaces the pronoun at character `begin`, as in lm-eval for Winograd's
    schemas: "the councilmen" within a sentence, "the man's" for "his"."""
    name, place, possessive = _text(noun), number(begin), _text(pronoun).lower() in _POSSESSIVE
    if not _text(text)[place:].startswith(_text(pronoun)) or not name.strip():
        raise ValueError(f"{pronoun!r:.60} is not at character {begin!r:.60} of the text")
    first, space, rest = (f"{name}'s" if possessive else name).partition(" ")
    begins_a_sentence = text[place - 2 : place - 1] == "."
    return (first.lower() if first in _LOWERED and not begins_a_sentence else first) + space + rest


# Rules of one benchmark's English: texts of other languages need no such filter.
_POSSESSIVE = ("my", "his", "her", "our", "their")
_LOWERED = ("A", "An", "The", "She", "He", "It", "They", "My", "His", "Her", "Their")


def highlights(passage: Any) -> str:
    """ReCoRD's news with what stands out in it, which has marks there, as points of a list."""
    news, *points = _text(passage).strip().split("\n@highlight\n")
    return news + ("\n\n- " + "\n- ".join(points) if points else "")


def answers_of(answers: Any, turn: int, others: Any) -> list[str]:
    """CoQA's answer of a turn and what others answered; those of the training split are empty and short."""
    given = [_list(one["input_text"])[turn : turn + 1] for one in others.values()]
    return filled([_list(answers["input_text"])[turn], *(text for texts in given for text in texts)])


def drop_answers(answer: Any, others: Any) -> list[str]:
    """DROP's answer and what others answered, each a number, spans of the passage or a date, as texts."""
    given = [answer]
    columns = [_list(others[name]) for name in ("number", "date", "spans")]
    given += [dict(zip(("number", "date", "spans"), values, strict=True)) for values in zip(*columns, strict=True)]
    return filled([_drop_answer(one) for one in given])


def _drop_answer(one: Any) -> str:
    if _text(one["number"]):
        return _text(one["number"])
    if _list(one["spans"]):
        return ", ".join(map(_text, one["spans"]))
    return " ".join(part for part in (_text(one["date"][name]) for name in ("day", "month", "year")) if part)


def _replace(text: Any, old: str, new: Any) -> str:
    return _text(text).replace(old, _text(new))


FILTERS: dict[str, Callable[..., Any]] = {
    "int": number,
    "string": string,
    "list": lambda values: list(_list(values)),
    "map": map_filter,
    "position": position,
    "positions": positions,
    "before": before,
    "after": after,
    "regex_replace": regex_replace,
    "fill_in": fill_in,
    "prepend": prepend,
    "replace": _replace,
    "trim": lambda text: _text(text).strip(),
    # Case is Python's, which knows no language (nor the two letters i of Turkish), as it is in Jinja and lm-eval.
    "lower": lambda text: _text(text).lower(),
    "upper": lambda text: _text(text).upper(),
    "capitalize": lambda text: _text(text).capitalize(),
    "lower_first": lambda text: _text(text)[:1].lower() + text[1:],
    "upper_first": lambda text: _text(text)[:1].upper() + text[1:],
    "join": lambda texts, between="": between.join(map(_text, _list(texts))),
    "length": lambda values: len(_list(values)),
    "filled": filled,
    "plain_text": plain_text,
    "bold": bold,
    "instead": instead,
    "wikihow": wikihow,
    "wikitext": wikitext,
    "highlights": highlights,
    "answers_of": answers_of,
    "drop_answers": drop_answers,
}
"""Filters by name. Those that Jinja or lm-eval has, too, do the same, for fewer kinds of values."""
