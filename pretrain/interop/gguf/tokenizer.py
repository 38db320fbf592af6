"""Facts of a tokenizer that llama.cpp needs besides its pieces: how a text is cut before bytes are merged, and which
ids begin and end texts and turns.

llama.cpp has these rules in its code, by name (`tokenizer.ggml.pre`), and takes another rule where it does not know the
name. Its converter finds the name by a digest of the ids of one text, for tokenizers that it knows; here the name
follows from tokenizer.json.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from pretrain.errors import ConfigError
from pretrain.interop.hf import chat
from pretrain.interop.hf.source_model import GENERATION, PROBE

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ONE_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_SPLITS = {
    (_WORDS + _ONE_DIGIT + _REST, False): "qwen2",
    (_WORDS + _THREE_DIGITS + _REST, True): "llama-bpe",
    (_WORDS + _THREE_DIGITS + _REST, False): "smaug-bpe",
}
"""(pattern of a text's parts, whether a part that is a piece is not merged but taken) -> llama.cpp's name"""
_DIGITS = [
    {"type": "Digits", "individual_digits": True},
    {"type": "Split", "pattern": {"Regex": _ONE_DIGIT}, "behavior": "Isolated", "invert": False},
]
"""step before GPT-2's rule in tokenizers of SmolLM's kind"""
_NORMAL = (None, "NFC")
"""normalizers: llama.cpp has none, and text is rarely in another form than NFC"""


def rule(tree: dict[str, Any]) -> str | None:
    """llama.cpp's name of how a byte-level tokenizer.json cuts a text; None: it has none, or it is of another kind."""
    first, model = tree.get("pre_tokenizer") or {}, tree["model"]
    steps = first.get("pretokenizers", [first])
    if model.get("type") != "BPE" or not steps or steps[-1].get("type") != "ByteLevel":
        return None
    *cuts, level = steps
    takes_pieces = bool(model.get("ignore_merges", False))
    if level.get("add_prefix_space") or (tree.get("normalizer") or {}).get("type") not in _NORMAL:
        return None
    if level.get("use_regex", True):
        return None if takes_pieces else "gpt-2" if not cuts else "smollm" if cuts in ([d] for d in _DIGITS) else None
    if len(cuts) == 1 and cuts[0].get("type") == "Split" and cuts[0].get("behavior") == "Isolated":
        return _SPLITS.get((str(cuts[0]["pattern"].get("Regex")), takes_pieces))
    return None


def bounds(folder: Path, turn: int | None) -> dict[str, Any]:
    """Method of the writer, without add_ -> value, for the ids that begin and end texts in an exported `folder`.
    `turn`: the id that ends a turn. Raises ConfigError where llama.cpp would put others around a text."""
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    config, ends = json.loads((folder / "config.json").read_text()), _ends_of(folder)
    end = theirs.eos_token_id if theirs.eos_token_id is not None else next(iter(ends), None)
    if end is None:
        raise ConfigError(f"the tokenizer of {folder.name} has no end of text, and llama.cpp needs one")
    begin = theirs.bos_token_id if theirs.bos_token_id is not None else next(iter(_listed(config["bos_token_id"])), end)
    plain, whole = (theirs(PROBE, add_special_tokens=added)["input_ids"] for added in (False, True))
    adds_begin, adds_end = whole[:1] == [begin] and len(whole) > len(plain), whole[-1:] == [end] and plain[-1:] != [end]
    if whole != [*[begin] * adds_begin, *plain, *[end] * adds_end]:
        raise ConfigError("the tokenizer puts other tokens around a text than one begin and one end: llama.cpp can't")
    turns = [index for index in (turn, *ends) if index is not None]
    found = {"bos_token_id": begin, "eos_token_id": end, "add_bos_token": adds_begin, "add_eos_token": adds_end}
    if (folder / chat.FILE).is_file() and turns:
        found["eot_token_id"] = turn if turn is not None else next((i for i in turns if i != end), end)
    more = [index for index in ends if index not in (end, found.get("eot_token_id"))]
    if more:
        found["eom_token_id"] = more[-1]  # the further ones llama.cpp has no key for: `ends_without_key`
    return found | ({} if theirs.pad_token_id is None else {"pad_token_id": theirs.pad_token_id})


def ends_without_key(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Names of the ends of a text in an exported `folder` that no key of a GGUF file has in its `settings`, those that
    `bounds` gives."""
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    known = {settings.get(f"{name}_token_id") for name in ("eos", "eot", "eom")}
    return [str(theirs.convert_ids_to_tokens(index)) for index in _ends_of(folder) if index not in known]


def rope_factors(rope: dict[str, Any], width: int) -> np.ndarray:
    """[width / 2] what llama.cpp divides the angles of Llama 3's scaled positions by."""
    base, context = float(rope["rope_theta"]), float(rope["original_max_position_embeddings"])
    low, high, factor = (float(rope[name]) for name in ("low_freq_factor", "high_freq_factor", "factor"))
    waves = context / (2 * np.pi * base ** (np.arange(0, width, 2) / width))  # that fit into the context
    share = np.clip((waves - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / factor + share)).astype(np.float32)


def _ends_of(folder: Path) -> list[int]:
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / GENERATION).read_text()) if (folder / GENERATION).is_file() else {}
    return _listed(generation.get("eos_token_id", config.get("eos_token_id")))


def _listed(ids: Any) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]
