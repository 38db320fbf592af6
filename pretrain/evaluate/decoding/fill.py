"""Masked tokens found again: what an encoder that was trained on them takes for most probable."""

from collections.abc import Sequence

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.recipes.base import pad_rows
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.ranks import gather, my_items

_ROWS = 32


def masked_input(prompts: Prompts, text: str, positions: int, called: str = "the prompt") -> list[int]:
    """Ids of a prompt with masks. Raises ConfigError where it has none, or more tokens than `positions`."""
    ids = prompts.closed(prompts.encode(text))
    if prompts.specials.mask not in ids:
        raise ConfigError(f"{called} has no [MASK], and an encoder says nothing else: put one for each piece to find")
    if len(ids) > positions:
        raise ConfigError(f"{called} is {len(ids)} tokens long, and the model reads {positions}: shorten it")
    return ids


def fill(engine: Engine, prompts: Prompts, inputs: Sequence[list[int]]) -> list[list[int]]:
    """`inputs` with each mask replaced by the most probable token there, all at once. Collective over all ranks."""
    mine = list(my_items(engine, len(inputs)))
    width, mask, pad = max(map(len, inputs)), prompts.specials.mask, prompts.specials.pad
    predicted = np.full((len(mine), width), pad, np.float64)
    for first in range(0, len(mine), _ROWS):
        rows = [np.array(inputs[item]) for item in mine[first : first + _ROWS]]
        tokens, shown = pad_rows(rows, width, pad)
        batch = Rows(tokens, tokens, shown.astype(np.float32), attention_mask=shown)
        predicted[first : first + _ROWS] = np.where(tokens == mask, engine.argmax_tokens(batch), tokens)
    filled = gather(engine, predicted, len(inputs)).astype(np.int64).tolist()
    return [row[: len(ids)] for row, ids in zip(filled, inputs, strict=True)]
