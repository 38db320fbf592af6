"""The language of the code, of its messages and of its pages: what stands alone, and which words they do without."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.sources import PACKAGES, ROOT, Nodes, parsed

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]

FRAGMENT = re.compile(r"(of|that|those|likewise|by|as)\b", re.IGNORECASE)
"""First words of a text that cannot be understood without the name above it."""

QUESTION = re.compile(r"(What|How|Which)\b")
"""First words of a docstring in the place of a noun, which says more: a number, a shape, names, settings, an error."""

SENTENCE = re.compile(r"([A-Z]|\{\}).*[.]( \{\})?", re.DOTALL)
"""Help of an option: begins with a capital and ends with a full stop."""

BANNED = re.compile(
    r"\b("
    r"go on|goes on|going on|gone on|went on|told|dear|anew|meanwhile|stretch|stretches|likewise"
    r"|looked after|looks after|look after|not to be had|gives? way|said so|lies ahead|started alike|to end well"
    r"|stands? (?!in for|alone)(for|in|at|on|there|here|whole|still|beside|before|after)|stood"
    r"|without being asked|in its middle"
    r")\b",
    re.IGNORECASE,
)
"""Words in place of which the field has others: resume, distinguish, supervise, unavailable, cost, again, unused ..."""


def _parsed() -> Iterator[tuple[str, Nodes]]:
    return parsed(*PACKAGES, "docs/make")


def _docstrings(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and attributes, each with its line."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _texts(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Docstrings, helps of options, and descriptions of keys, each with its line."""
    yield from _docstrings(nodes)
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg in ("help", "description"):
            text = node.value.values[0] if isinstance(node.value, ast.JoinedStr) else node.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.lineno, text.value


def _fragments() -> list[str]:
    """`file:line: beginning` of each text that begins as a fragment does."""
    return [
        f"{file}:{line}: {text.strip()[:60]}"
        for file, nodes in _parsed()
        for line, text in _texts(nodes)
        if FRAGMENT.match(text.strip())
    ]


def _questions() -> list[str]:
    """`file:line: beginning` of each docstring that begins with a question word."""
    return [
        f"{file}:{line}: {text.strip()[:60]}"
        for file, nodes in _parsed()
        for line, text in _docstrings(nodes)
        if QUESTION.match(text.strip())
    ]


def _helps() -> Iterator[tuple[str, str]]:
    """`file:line` and help of each option; values in an f-string read `{}`."""
    for file, nodes in _parsed():
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            texts = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("add_nproc", "add_config"):
                texts += node.args[:1]
            for text in texts:
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                if any(isinstance(part, ast.Constant) for part in parts):
                    words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
                    yield f"{file}:{text.lineno}", words


def _banned() -> list[str]:
    """`file:line: phrase` of each banned phrase, in texts of the code and on pages."""
    found = []
    for file, nodes in _parsed():
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{file}:{node.lineno}: {one[0]}" for one in BANNED.finditer(_joined(node.value))]
    for page in filter(Path.exists, PAGES):
        file, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        for number, paragraph in _paragraphs(text):
            found += [f"{file}:{number}: {one[0]}" for one in BANNED.finditer(_joined(paragraph))]
    return found


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    line = 1
    for paragraph in text.split("\n\n"):
        yield line, paragraph
        line += paragraph.count("\n") + 2


def _joined(text: str) -> str:
    return " ".join(text.split())


def _classes() -> dict[str, list[str]]:
    """Every class name that several classes bear, with their files."""
    named = defaultdict(list)
    for file, nodes in _parsed():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                named[node.name].append(file)
    return {name: files for name, files in sorted(named.items()) if len(files) > 1}


def test_docstrings_helps_and_descriptions_stand_alone() -> None:
    assert not _fragments()


def test_docstrings_begin_with_no_question_word() -> None:
    assert not _questions()


def test_helps_of_options_are_sentences() -> None:
    helps = dict(_helps())
    assert len(helps) > 100
    assert not {place: text for place, text in helps.items() if SENTENCE.fullmatch(text) is None}


def test_texts_and_pages_do_without_banned_words() -> None:
    assert not _banned()


def test_no_two_classes_bear_one_name() -> None:
    assert not _classes()


@pytest.mark.parametrize("text", ["Of the shard.", "as JSON has it", "By name.", "Likewise, of files."])
def test_a_fragment_is_found(text: str) -> None:
    assert FRAGMENT.match(text)


@pytest.mark.parametrize("text", ["Office hours.", "Assembles.", "Bytes of a shard.", "Thatched roofs."])
def test_what_stands_alone_is_none(text: str) -> None:
    assert FRAGMENT.match(text) is None
