"""Texts -> vectors of a frozen model, in a file: what `pretrain features` writes.

Every rank tokenizes all texts. They are computed in pieces of the file, so that memory does not grow with it: data
ranks share the texts of a piece, sorted by length, and rank 0 appends the piece's vectors to the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm, prod
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.common.atomic import fsync
from data_pipeline.recipes.base import pad_rows
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, Stack
from pretrain.engine.collective import file_group, gather_on_rank_0, run_on_rank_0
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.feature_files import WRITERS, FeatureTable, FeatureWriter, TokenColumns
from pretrain.evaluate.feature_request import FeatureRequest, Texts
from pretrain.evaluate.opening import build_scorer
from pretrain.evaluate.scorers.batches import tokens_at_a_time
from pretrain.run_dir.paths import TOKENIZER

_LENGTH_MULTIPLE = 16  # of row lengths: 8-bit matrix products need it
_PIECE_VALUES = 1 << 24  # of vectors in memory at a time
_FILLER = 0  # id of padding where the objective has none: nothing that counts attends to it


@dataclass(frozen=True)
class Inputs:
    """Texts as a model reads them."""

    ids: list[NDArray[np.int64]]
    before: int
    """special tokens before each text"""
    after: int
    """special tokens after each text"""
    truncated: int
    """texts that were cut"""


@dataclass(frozen=True)
class Written:
    """Facts of the vectors that were written."""

    shape: tuple[int, ...]
    """shape of `vectors`"""
    truncated: int
    """texts that were cut"""


def write_features(
    config: RunConfig, checkpoint: Path, texts: Texts, request: FeatureRequest, out: Path
) -> Written | None:
    """Writes the vectors of `texts` to `out`, all or nothing; None on all ranks but the first. Raises ConfigError for a
    text that the model cannot read, before the weights are loaded, and RunError. Collective."""
    stack, layers = request.stack_of(config.model)
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    inputs = encode(config, tokenizer, texts, stack, request.truncate)
    shape = request.layers.shape(layers, config.model.hidden)
    table = FeatureTable(
        lines=np.array(texts.lines, np.int64),
        vector_shape=shape,
        metadata={
            "checkpoint": str(checkpoint.absolute()),
            "texts": str(texts.file.absolute()),
            "family": config.model.family,
            "stack": stack,
            "layers": request.layers.text,
            "layer_numbers": ",".join(map(str, request.layers.numbers(layers))),
            "pool": request.pool,
            "truncated": str(inputs.truncated),
        },
        tokens=_token_columns(inputs) if request.pool == "token" else None,
    )
    engine = build_scorer(config, checkpoint)
    computing = _Computing(config, tokenizer, engine, request, inputs)
    group, output, action = file_group(config.health.timeout_s), _Output(out), f"writing {out}"
    try:
        run_on_rank_0(action, lambda: output.open(table), group)
        for piece in _pieces(table, inputs):
            vectors = computing.vectors(piece, group)
            run_on_rank_0(action, partial(output.write, piece, vectors), group)
        run_on_rank_0(action, output.publish, group)
    finally:
        output.discard()
    return Written((table.vectors, *shape), inputs.truncated) if dist.get_rank() == 0 else None


def encode(config: RunConfig, tokenizer: Tokenizer, texts: Texts, stack: Stack, truncate: bool) -> Inputs:
    """Ids of each text with the special tokens of the model's training. Raises ConfigError for a text without a
    token, and unless `truncate` for one that is longer than the model reads."""
    before, after = _special_tokens(config, tokenizer)
    specials, limit = len(before) + len(after), _limit(config.model, stack)
    made, truncated = [], 0
    encoded = tokenizer.encode_batch(list(texts.texts))
    for line, ids in zip(texts.lines, encoded, strict=True):
        if not len(ids):
            raise ConfigError(f"{texts.file} line {line} has no token: a text without tokens has no vector")
        if len(ids) + specials > limit:
            if not truncate:
                raise ConfigError(
                    f"{texts.file} line {line} is {len(ids) + specials} tokens long, and the model reads {limit}: "
                    "shorten it, or cut long texts with --truncate"
                )
            ids, truncated = ids[: limit - specials], truncated + 1
        made.append(np.array([*before, *ids.tolist(), *after], np.int64))
    return Inputs(made, len(before), len(after), truncated)


def _special_tokens(config: RunConfig, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that training put before a text and after it. A causal decoder that was fine-tuned on labels read an end of
    text."""
    if config.model.shape == "decoder" or config.objective.predicts_next:
        ends = [] if config.objective.predicts_next else [config.objective.specials(tokenizer).end]
        return tokenizer.opened([]), ends
    return Prompts(config, tokenizer).around()


class _Computing:
    """Vectors of inputs, computed by the ranks of an engine."""

    def __init__(
        self, config: RunConfig, tokenizer: Tokenizer, engine: Engine, request: FeatureRequest, inputs: Inputs
    ) -> None:
        self._model, self._engine, self._request, self._inputs = config.model, engine, request, inputs
        self._stack, layers = request.stack_of(config.model)
        self._layers = request.layers.numbers(layers)
        self._limit = _limit(config.model, self._stack)
        self._multiple = lcm(_LENGTH_MULTIPLE, engine.layout.context)
        self._known = config.objective.specials(tokenizer)
        self._masks_padding = config.model.has_encoder or (
            config.model.shape == "prefix_decoder" and not config.objective.predicts_next
        )
        self._segment = getattr(config.objective, "source_language", 0)
        tensor, context, _, pipeline = engine.layout.coordinates(dist.get_rank())
        self._reports = tensor == context == pipeline == 0

    def vectors(self, piece: slice, group: dist.ProcessGroup) -> NDArray[np.float32]:
        """The vectors of a piece, in the order of its texts; of tokens, those of all texts one after the other. Empty
        on all ranks but the first. Collective. Raises RunError where a value is not a number."""
        ids = self._inputs.ids
        longest_first = sorted(range(piece.start, piece.stop), key=lambda text: -len(ids[text]))
        mine = longest_first[self._engine.data_rank :: self._engine.data_world]
        found = {text: vector for batch in self._batches(mine) for text, vector in self._computed(batch)}
        if self._engine.any(not all(np.isfinite(vector).all() for vector in found.values())):
            raise RunError("the model's hidden states are not numbers: it diverged, or its checkpoint is damaged")
        everyone = gather_on_rank_0(found if self._reports else {}, group)
        all_found = {text: vector for one in everyone for text, vector in one.items()}
        ordered = [all_found[text] for text in sorted(all_found)]
        return np.concatenate(ordered) if ordered else np.empty(0, np.float32)

    def _batches(self, texts: Sequence[int]) -> Iterator[Sequence[int]]:
        """Texts, the longest first, in batches."""
        begin, positions = 0, tokens_at_a_time()
        while begin < len(texts):
            count = self._request.batch or max(1, positions // self._width(texts[begin]))
            yield texts[begin : begin + count]
            begin += count

    def _width(self, longest: int) -> int:
        """Positions of a row that holds this text, and no longer one. Where layers read fewer
        positions than a row has, the last of these is dropped, so that rows all have one length."""
        if self._model.downsampling is not None:
            return self._limit
        return min(self._limit, -(-len(self._inputs.ids[longest]) // self._multiple) * self._multiple)

    def _computed(self, texts: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(text, its vectors [1 or tokens, ...]) of a batch whose first text is the longest."""
        ids = [self._inputs.ids[text] for text in texts]
        by_token = self._request.pool == "token"
        batch = self._rows(ids, self._width(texts[0]))
        states = self._engine.hidden_states(batch, self._stack, self._layers, pooled=not by_token)
        vectors = self._request.layers.combine(states)
        for text, row, own in zip(texts, vectors, ids, strict=True):
            yield text, row[: len(own)].copy() if by_token else row[None]

    def _rows(self, ids: Sequence[NDArray[np.int64]], width: int) -> Rows:
        """Rows of `width` whose loss mask marks the positions that are pooled."""
        tokens, shown = pad_rows(ids, width, max(self._known.pad, _FILLER))
        lengths, positions = np.array([len(own) for own in ids])[:, None], np.arange(width)
        match self._request.pool:
            case "mean":
                pooled = (positions >= self._inputs.before) & (positions < lengths - self._inputs.after)
            case "first":
                pooled = np.broadcast_to(positions == 0, tokens.shape)
            case "last":
                pooled = positions == lengths - 1
            case "token":
                pooled = shown
        decoder_tokens = None
        if self._stack == "decoder" and self._model.has_encoder:
            decoder_tokens = np.full_like(tokens, self._known.start)
            decoder_tokens[:, 1:] = tokens[:, :-1]
        return Rows(
            tokens,
            tokens,
            pooled.astype(np.float32),
            decoder_tokens=decoder_tokens,
            attention_mask=shown if self._masks_padding else None,
            segments=np.full_like(tokens, self._segment) if self._model.segments else None,
        )


class _Output:
    """The file, which has another name until it is complete. For the first rank."""

    def __init__(self, out: Path) -> None:
        self._out, self._scratch = out, out.with_name(f"{out.name}.tmp")
        self._writer: FeatureWriter | None = None

    def open(self, table: FeatureTable) -> None:
        """Begins the file."""
        self._writer = WRITERS[self._out.suffix](self._scratch, table)

    def write(self, texts: slice, vectors: NDArray[np.float32]) -> None:
        """Adds the vectors of the next `texts`."""
        assert self._writer is not None
        self._writer.write(texts, vectors)

    def publish(self) -> None:
        """Completes the file and gives it its name."""
        assert self._writer is not None
        self._writer.close()
        fsync(self._scratch)
        self._scratch.replace(self._out)
        self._writer = None

    def discard(self) -> None:
        """Removes what is not complete."""
        if self._writer is not None:
            self._scratch.unlink(missing_ok=True)


def _limit(model: Model, stack: Stack) -> int:
    """Positions that a stack reads."""
    return min(model.sequence_length, model.label_length) if stack == "decoder" else model.sequence_length


def _token_columns(inputs: Inputs) -> TokenColumns:
    lengths = [len(ids) for ids in inputs.ids]
    special = [np.r_[np.ones(inputs.before), np.zeros(length - inputs.before - inputs.after), np.ones(inputs.after)]
               for length in lengths]  # fmt: skip
    return TokenColumns(
        offsets=np.append(0, np.cumsum(lengths)).astype(np.int64),
        token_ids=np.concatenate(inputs.ids).astype(np.int32),
        special=np.concatenate(special).astype(np.bool_),
    )


def _pieces(table: FeatureTable, inputs: Inputs) -> Iterator[slice]:
    """Consecutive texts whose vectors are held in memory at a time."""
    begin = values = 0
    for text, ids in enumerate(inputs.ids):
        size = prod(table.vector_shape) * (len(ids) if table.tokens is not None else 1)
        if begin < text and values + size > _PIECE_VALUES:
            yield slice(begin, text)
            begin, values = text, 0
        values += size
    yield slice(begin, len(inputs.ids))
