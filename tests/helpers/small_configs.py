"""Small configs, built without any file."""

from typing import Any

from pretrain.config.load import validate
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig


def config(**sections: Any) -> RunConfig:
    """8 layers, 12 heads; keyword arguments extend its sections."""
    tree: dict[str, Any] = {
        "run": {"dir": "unused"},
        "train": {"steps": 100},
        "batch": {"sequences": 240},
        "model": {"layers": 8, "hidden": 48, "heads": 12, "sequence_length": 32, "vocabulary": 1000},
        "optimizer": {"learning_rate": 1.0},
        "schedule": {},
    }
    tree["model"]["vocabulary_multiple"] = 240  # many divisors: rules are met one at a time
    for name, section in sections.items():
        replaces = name == "train" or not isinstance(section, dict)
        tree[name] = section if replaces else {**tree.get(name, {}), **section}
    return validate(RunConfig, tree, "config")


def small_model(**changes: object) -> Model:
    """One layer, small enough to count by hand."""
    shape = {"layers": 1, "hidden": 4, "heads": 2, "sequence_length": 8, "vocabulary": 10, "vocabulary_multiple": 16}
    return Model.model_validate({**shape, **changes})
