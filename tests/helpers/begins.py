"""Tokenizers that differ in what they put before a text, and in nothing else."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from data_pipeline.tokenizers.load import train_tokenizer

BEGIN = "<s>"


def tokenizer_files(texts: list[str], folder: Path, begin: str = BEGIN) -> tuple[Path, Path]:
    """(a tokenizer.json that puts `begin` before a text, one that puts nothing there). Both have the same ids."""
    trained = tokenizers.Tokenizer.from_str(train_tokenizer(texts, "byte_bpe", 400).to_json())
    plain, begun = folder / "plain" / "tokenizer.json", folder / "begun" / "tokenizer.json"
    for path in (plain, begun):
        path.parent.mkdir()
    trained.save(str(plain))
    trained.post_processor = tokenizers.processors.TemplateProcessing(
        single=[begin, "$A"], special_tokens=[(begin, trained.token_to_id(begin))]
    )
    trained.save(str(begun))
    return begun, plain
