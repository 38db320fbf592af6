"""docs/ says what the code says: messages, and the references made of it."""

import ast
import re
from pathlib import Path

from docs.make.keys import build_page, keys, keys_page
from pretrain.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]
MESSAGE = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]+\b")


def test_every_message_of_troubleshooting_stands_in_the_code() -> None:
    texts = [
        node.value
        for part in ("pretrain", "data_pipeline")
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    messages = MESSAGE.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    assert len(messages) > 30
    said = {message: max(PLACEHOLDER.split(message), key=len).strip(" :'=,") for message in messages}
    assert [message for message, part in said.items() if not any(part in text for text in texts)] == []


def test_readme_has_at_most_90_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_reference_of_keys_has_sections_lists_and_choices() -> None:
    found = {key.dotted: key for key in keys(RunConfig) if not key.only}
    assert found["batch.sequences"].default == "required"
    assert found["parallel.zero"][1:3] == ("0 or 1 or 2 or 3", "1")
    assert found["data.sources[].max_epochs"].kind == "number"
    assert found["batch.ramp.tokens"].kind == "whole number"
    (temperature,) = (key for key in keys(RunConfig) if key.dotted == "data.mixing.temperature")
    assert temperature.only == "temperature"
    assert "| `optimizer.beta2` | number | 0.95 | decay of the second moment (adamw, adam, lamb) |" in keys_page()
    assert "| `tokenizer.vocabulary` |" in build_page()
