"""Templates -> pages that need nothing from outside."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pretrain.pages.numbers import compact, figure


def page(folder: Path, template: str, **values: Any) -> str:
    """`template`, a file of `folder` that may extend one of this folder, with its values."""
    return environment(folder).get_template(template).render(**values)


@cache  # with the templates that it has compiled
def environment(folder: Path) -> Environment:
    """The environment of the templates in `folder`, to which a caller may add filters."""
    made = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"compact": compact, "figure": figure, "commas": "{:,}".format}
    return made


def write_text(path: Path, text: str) -> None:
    """In UTF-8; halves of characters, which a document may hold, as JSON writes them."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
