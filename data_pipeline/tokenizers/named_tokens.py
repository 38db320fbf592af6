"""Texts that name special tokens of an objective: `<extra_id_0>` a sentinel, `[MASK]` or `<mask>` a mask.

In training, such a token replaces pieces that hold the space before them, so a text that spells this space would have
one too many: white space before a name is left out, as released tokenizers leave it out (`lstrip` in a tokenizer.json).
Where a space is a token of its own (bytes, characters), it stays.
"""

from __future__ import annotations

import re

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Specials

MASKS = ("[MASK]", "<mask>")
_SPACE = r"[^\S\x1c-\x1f]"  # Unicode's White_Space, which `lstrip` drops; Python's \s has four separators more


class NamedTokens:
    """Encodes texts that name the sentinels and the mask of an objective."""

    def __init__(self, tokenizer: Tokenizer, specials: Specials, *, keeps_space: bool | None = None) -> None:
        """`keeps_space`: whether white space before a name is encoded, too; default: as in training."""
        self._tokenizer = tokenizer
        masks = dict.fromkeys(MASKS, specials.mask) if specials.mask >= 0 else {}
        self.ids = {f"<extra_id_{number}>": index for number, index in enumerate(specials.sentinels)} | masks
        """id of each name"""
        self.names = {index: name for name, index in reversed(self.ids.items())}
        """name of each id: of a mask, BERT's"""
        keeps_space = not tokenizer.spaces_begin_words if keeps_space is None else keeps_space
        before = "" if keeps_space else f"(?<!{_SPACE}){_SPACE}*"
        self._named = re.compile(f"{before}({'|'.join(map(re.escape, self.ids))})") if self.ids else None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with those that it names."""
        if self._named is None:
            return self._tokenizer.encode(text)
        parts = self._named.split(text)  # text, name, text, name, ..., text
        return [
            index
            for number, part in enumerate(parts)
            for index in ([self.ids[part]] if number % 2 else self._tokenizer.encode(part) if part else [])
        ]
