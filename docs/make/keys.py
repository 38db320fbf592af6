"""Reference pages of the keys: what `pretrain keys` prints, as tables."""

import json
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.steps.registry import STEPS
from pretrain.config.keys import Key, keys
from pretrain.config.run_config import RunConfig


def keys_page() -> str:
    """Page of the keys of `pretrain train`, in Markdown."""
    sections: dict[str, list[Key]] = {}
    for key in keys(RunConfig):
        sections.setdefault(key.dotted.split(".")[0].removesuffix("[]"), []).append(key)
    return f"""# Training keys

Every key that `pretrain train CONFIG key=value ...` reads. This page is generated from the code; `pretrain keys` prints
the same. Where a key exists only for some values of another key, its description says so. A choice can be given by its
name alone: `model.positions=relative` is short for `model.positions={{name: relative}}`.

{"".join(_table(section, rows) for section, rows in sections.items())}"""


def build_page() -> str:
    """Page of the keys of `pretrain data build`, in Markdown."""
    steps = [_table(name, keys(kind)) for name, kind in STEPS.items()]
    return f"""# Data keys

Every key that `pretrain data build CONFIG key=value ...` reads, and the settings of each step. This page is generated
from the code. What the steps do: [data pipeline](data.md#steps).

{_table("The build", keys(BuildConfig))}{"".join(steps)}"""


def _table(title: str, rows: list[Key]) -> str:
    lines = [
        f"| `{key.dotted}` | {_cell(_kind(key))} | {_cell(_default(key))} | {_cell(_meaning(key))} |" for key in rows
    ]
    return "\n".join([f"## {title}\n", "| Key | Value | Default | Meaning |", "|---|---|---|---|", *lines, "", ""])


def _kind(key: Key) -> str:
    return " or ".join(map(_written, key.choices)) or key.type


def _default(key: Key) -> str:
    return "required" if key.required else _written(key.default)


def _meaning(key: Key) -> str:
    """Description of a key, and the names of the choice that it belongs to; the choice too unless it is the parent."""
    own = key.of == f"{key.dotted.rpartition('.')[0]}.name".lstrip(".")
    names = ", ".join(key.only)
    return key.description + (f" ({names if own else f'with {key.of} = {names}'})" if key.only else "")


def _written(value: Any) -> str:
    """Value as a config spells it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
