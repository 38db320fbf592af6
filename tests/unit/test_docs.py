"""docs/ says what the code says: messages, and the references made of it."""

import ast
import re

from docs.make.keys import build_page, keys_page
from tests.helpers.sources import ROOT, parsed

MESSAGE = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]+\b")


def test_every_message_of_troubleshooting_stands_in_the_code() -> None:
    texts = [
        node.value
        for _, nodes in parsed("pretrain", "data_pipeline")
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    messages = MESSAGE.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    assert len(messages) > 30
    said = {message: max(PLACEHOLDER.split(message), key=len).strip(" :'=,") for message in messages}
    assert [message for message, part in said.items() if not any(part in text for text in texts)] == []


def test_readme_has_at_most_90_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_references_of_keys_have_types_defaults_and_choices() -> None:
    page = keys_page()
    assert "| `parallel.zero` | 0 or 1 or 2 or 3 | 1 | ZeRO stage, which says what data ranks shard: 0 nothing" in page
    assert "| `batch.sequences` | whole number above 0 | required |" in page
    assert "| decay of the second moment (adamw, adam, lamb) |" in page
    assert "| `data.sources[].path` |" in page
    assert "| context length wanted, as a multiple of the original one (with model.positions.name = rotary) |" in page
    assert "| `tokenizer.vocabulary` | whole number above 257 | 8192 |" in build_page()
    assert "## dedup_fuzzy" in build_page()
