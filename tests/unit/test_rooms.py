"""A part has a room: the files that every model goes through name none."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pretrain.config.part_keys import KEYS

PRETRAIN = Path(__file__).parents[2] / "pretrain"
CORE = (
    *("config/model.py", "config/model_keys.py", "config/model_values.py", "config/families.py"),
    *("model_spec/modules.py", "model_spec/layer.py", "layout/layout.py", "layout/checks.py"),
    *("models/network.py", "models/layers.py", "models/blocks.py", "attention/core.py"),
    *("engine/base.py", "engine/megatron/engine.py"),
    *("plan/estimate/model_shapes.py", "plan/estimate/layer_stacks.py", "plan/estimate/held.py", "verify/shrink.py"),
    *("plan/estimate/kept_by_layers.py", "plan/estimate/kept_by_loss.py"),
)
ROOMS = (
    *("classics", "config/parts", "config/values", "model_spec/parts", "plan/estimate/parts"),
    *("config/experts.py", "config/latent_attention.py", "config/mtp.py", "config/mup.py"),
    *("models/experts.py", "models/latent_attention.py", "models/multi_token_prediction.py"),
)
JOINED = {"PartValues", "Base"}
"""classes of rooms that are of all parts"""


def test_no_core_file_asks_for_the_key_of_a_part_or_names_a_class_of_one() -> None:
    keys, classes = set(KEYS), set(_classes()) - JOINED
    assert {"experts", "mtp"} <= keys
    assert {"ExpertLayer", "ExpertsPart", "MtpSpecs"} <= classes
    found = []
    for name in CORE:
        for node in ast.walk(ast.parse((PRETRAIN / name).read_text(encoding="utf-8"))):
            asks = isinstance(node, ast.Attribute) and node.attr in keys
            names = {node.id} if isinstance(node, ast.Name) else set()
            names |= {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            if asks or names & classes:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    assert found == []


def _classes() -> Iterator[str]:
    for room in ROOMS:
        path = PRETRAIN / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield node.name
