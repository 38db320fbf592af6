"""Templates -> pages that need nothing from outside."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pretrain.evaluate.report.metrics import compact, figure, score_text


def page(template: str, **values: Any) -> str:
    """`template`, a file of this folder, with its values."""
    return _environment().get_template(template).render(**values)


@cache  # with the templates that it has compiled
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"compact": compact, "figure": figure, "score": score_text, "commas": "{:,}".format}
    return environment


def write_text(path: Path, text: str) -> None:
    """In UTF-8; halves of characters, which a document may hold, as JSON writes them."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
