"""Characters as tokens."""

import numpy as np

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.characters import CharacterTokenizer


def test_kinds_of_characters_are_those_of_their_texts() -> None:
    tokenizer = CharacterTokenizer()
    for kind in ("is_special", "starts_word", "ends_sentence"):
        assert np.array_equal(getattr(tokenizer, kind)(), getattr(Tokenizer, kind)(tokenizer)), kind
