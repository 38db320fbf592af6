"""The settings of a run as a function of its steps: those that it began with, and every change since."""

import json
from collections.abc import Sequence
from typing import Any

from pretrain.config.change import Change
from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig


def in_force(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    """`config` after `changes`, without a record of any. Raises ConfigError for values that do not fit it."""
    if not changes and not config.run.changes:
        return config
    tree = config.model_dump(mode="json")
    tree["run"] |= {"change": None, "changes": []}
    for change in changes:
        for key, value in change.settings.items():
            put(tree, key, value)
    return validate(RunConfig, tree, f"run.change '{changes[-1].why}'" if changes else "run.changes")


def recorded(config: RunConfig, number: int) -> dict[str, Any]:
    """Change `number` of a run as its events and its ledger have it: `why`, `step`, and the values of each key of
    `settings` before (`from`) and after it (`to`)."""
    change = config.run.changes[number]
    before = in_force(config, config.run.changes[:number]).model_dump(mode="json")
    settings = {key: {"from": get(before, key), "to": value} for key, value in change.settings.items()}
    return {"why": change.why, "step": change.step, "settings": settings}


def sentence(change: dict[str, Any]) -> str:
    """The same for people."""
    pairs = change["settings"].items()
    said = (f"{key} from {json.dumps(values['from'])} to {json.dumps(values['to'])}" for key, values in pairs)
    return f"changed at step {change['step']:,}, {change['why']}: {'; '.join(said)}"


def get(tree: dict[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    for name in key.split("."):
        tree = tree[name]
    return tree


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, in place."""
    *parents, last = key.split(".")
    for name in parents:
        tree = tree[name]
    tree[last] = value
