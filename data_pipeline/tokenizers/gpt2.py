"""GPT-2's own files, as OpenAI and Hugging Face publish them: a vocabulary (encoder.json or vocab.json) and its merges
(vocab.bpe or merges.txt) -> the byte-level BPE that they describe, with GPT-2's ids (Radford et al. 2019)."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import END_OF_TEXT
from data_pipeline.tokenizers.hf_json import ROBERTA_SPECIALS, JsonTokenizer

VOCABULARIES = ("encoder.json", "vocab.json")
_MERGES = ("vocab.bpe", "merges.txt")


def is_gpt2_vocabulary(content: bytes) -> bool:
    """Whether a file's bytes are a GPT-2 vocabulary: JSON that maps pieces to ids, one for each byte at least."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and len(values) >= 256 and all(type(value) is int for value in values.values())


def from_gpt2_files(content: bytes, path: Path, needs_end: bool = True) -> JsonTokenizer:
    """The tokenizer of a vocabulary's bytes and of the merges that lie beside `path`.

    <|endoftext|> ends documents, and no text encodes to it; in RoBERTa's and BART's files it is </s>. Raises DataError
    when the merges are missing, the two files don't belong together, or neither piece is there and one is needed.
    """
    vocabulary: dict[str, int] = json.loads(content)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise DataError(f"{path} does not number its pieces 0, 1, 2 ...; give the vocabulary as it was published.")
    is_roberta = set(ROBERTA_SPECIALS) <= vocabulary.keys()
    if needs_end and END_OF_TEXT not in vocabulary and not is_roberta:
        raise DataError(
            f"{path} has no {END_OF_TEXT} to end documents with; of another model, give the tokenizer.json."
        )
    merges_path = next((path.parent / name for name in _MERGES if (path.parent / name).is_file()), None)
    if merges_path is None:
        raise DataError(f"{path} needs its merges beside it; put its {' or '.join(_MERGES)} there.")
    missing = sum(byte not in vocabulary for byte in pre_tokenizers.ByteLevel.alphabet())
    if missing:
        raise DataError(
            f"{path} lacks {missing} of the 256 bytes, so that text would be lost; give GPT-2's vocabulary."
        )
    try:
        lines = merges_path.read_text(encoding="utf-8").split("\n")
        merges = [_merge(line) for line in lines if line and not line.startswith("#version")]
        # The library's own: BPE refuses a merge of pieces that the vocabulary lacks.
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{merges_path} does not belong to {path} ({error}); give both as published.") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ROBERTA_SPECIALS if is_roberta else [piece for piece in (END_OF_TEXT,) if piece in vocabulary]
    tokenizer.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in specials])
    return JsonTokenizer(tokenizer.to_str().encode(), str(path), needs_end)


def _merge(line: str) -> tuple[str, str]:
    first, _, second = line.rstrip("\r").partition(" ")
    return first, second
