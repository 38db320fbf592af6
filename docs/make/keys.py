"""The references of keys: what `pretrain keys` says, as tables."""

import json
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.steps.registry import STEPS
from pretrain.config.keys import Key, keys
from pretrain.config.run_config import RunConfig


def keys_page() -> str:
    """Of `pretrain train`, in Markdown."""
    sections: dict[str, list[Key]] = {}
    for key in keys(RunConfig):
        sections.setdefault(key.dotted.split(".")[0].removesuffix("[]"), []).append(key)
    return f"""# Keys of training

Every key that `pretrain train CONFIG key=value ...` reads; this page is made from the code, and `pretrain keys`
prints the same. A setting that is read only under some names of a choice says so. Of a choice, the name alone is short
for it: `model.positions=relative`.

{"".join(_table(section, rows) for section, rows in sections.items())}"""


def build_page() -> str:
    """Of `pretrain data build`, in Markdown."""
    steps = [_table(name, keys(kind)) for name, kind in STEPS.items()]
    return f"""# Keys of data builds

Every key that `pretrain data build CONFIG key=value ...` reads, and the settings of each step; this page is made from
the code. What steps do: [data at scale](data.md#steps).

{_table("The build", keys(BuildConfig))}{"".join(steps)}"""


def _table(title: str, rows: list[Key]) -> str:
    lines = [
        f"| `{key.dotted}` | {_cell(_kind(key))} | {_cell(_default(key))} | {_cell(_meaning(key))} |" for key in rows
    ]
    return "\n".join([f"## {title}\n", "| Key | Value | By itself | Meaning |", "|---|---|---|---|", *lines, "", ""])


def _kind(key: Key) -> str:
    return " or ".join(map(_written, key.choices)) or key.type


def _default(key: Key) -> str:
    return "required" if key.required else _written(key.default)


def _meaning(key: Key) -> str:
    """The names of a choice follow, and which choice it is where the key is no setting of it but of what is in it."""
    own = key.of == f"{key.dotted.rpartition('.')[0]}.name".lstrip(".")
    names = ", ".join(key.only)
    return key.description + (f" ({names if own else f'with {key.of} = {names}'})" if key.only else "")


def _written(value: Any) -> str:
    """As a config has it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
