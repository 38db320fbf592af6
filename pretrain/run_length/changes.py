"""The settings of a run at each of its steps: those that it started with, and every change since."""

import json
from collections.abc import Sequence
from typing import Any

from pretrain.config.change import Change
from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError


def config_after(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    """`config` with `changes` applied, and no record of them. Raises ConfigError if a value does not fit the config."""
    if not changes and not config.run.changes:
        return config
    tree = config.model_dump(mode="json")
    tree["run"] |= {"change": None, "changes": []}
    for change in changes:
        for key, value in change.settings.items():
            if (missing := _missing_section(tree, key)) is not None:
                raise ConfigError(
                    f"run.change '{change.why}' changes {key}, and the run has no {missing}: leave the setting out"
                )
            set_key(tree, key, value)
    return validate(RunConfig, tree, f"run.change '{changes[-1].why}'" if changes else "run.changes")


def change_record(config: RunConfig, number: int) -> dict[str, Any]:
    """Change `number` of a run in the form of its events and its ledger: `why`, `step`, and for each key of `settings`
    the values before (`from`) and after it (`to`)."""
    change = config.run.changes[number]
    before = config_after(config, config.run.changes[:number]).model_dump(mode="json")
    settings = {key: {"from": get_key(before, key), "to": value} for key, value in change.settings.items()}
    return {"why": change.why, "step": change.step, "settings": settings}


def describe_change(record: dict[str, Any]) -> str:
    """A sentence for people from a `change_record`."""
    settings = (
        f"{key} from {json.dumps(values['from'])} to {json.dumps(values['to'])}"
        for key, values in record["settings"].items()
    )
    return f"changed at step {record['step']:,}, {record['why']}: {'; '.join(settings)}"


def get_key(tree: dict[str, Any], key: str) -> Any:
    """The value of a dotted key; None if its section is not there."""
    if _missing_section(tree, key) is not None:
        return None
    for name in key.split("."):
        tree = tree[name]
    return tree


def _missing_section(tree: dict[str, Any], key: str) -> str | None:
    """The first of the sections above a dotted key that is not there."""
    value: Any = tree
    *sections, _ = key.split(".")
    for number, name in enumerate(sections, start=1):
        value = value[name]
        if value is None:
            return ".".join(sections[:number])
    return None


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, in place."""
    *parents, last = key.split(".")
    for name in parents:
        tree = tree[name]
    tree[last] = value
