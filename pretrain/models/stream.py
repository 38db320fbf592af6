"""The stream: the one tensor [P, B, H] that travels from stage to stage. Its parts lie one behind the other and have
names: `encoder` and `decoder`, the positions of the stacks that a call is about, and `tables`, positions that carry
tables of attention biases. In a model whose layers read fewer positions than a row has, `row` and `known` are what is
read behind the layers: states of the row's own positions, and embeddings of what it predicts before each prediction.
`mtp` are embeddings of further tokens, of one depth after the other, which modules behind the layers read in training.
Between the layers of a stage they are tensors of their own.

Under sequence or context parallelism each rank has its slice of `encoder`, of `decoder` and of each depth of `mtp`, and
`tables` whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pretrain.config.model import Model
from pretrain.models.inputs import MicroBatch

Part = Literal["encoder", "decoder", "tables", "row", "known", "mtp"]


@dataclass(frozen=True)
class Stream:
    """The layout of the stream of one call, on one rank."""

    lengths: Mapping[Part, int]
    """positions of each part that there is, in their order"""

    @property
    def positions(self) -> int:
        return sum(self.lengths.values())

    def __contains__(self, part: Part) -> bool:
        return part in self.lengths

    def part(self, stream_PBH: Tensor, name: Part) -> Tensor:
        """A view of one part; of a stream that has no other, the stream itself, which costs no copy of its gradient."""
        return stream_PBH if self._is_all(name) else stream_PBH[self._span(name)]

    def apart(self, stream_PBH: Tensor) -> dict[Part, Tensor]:
        """All parts, as views."""
        return {name: self.part(stream_PBH, name) for name in self.lengths}

    def joined(self, parts: Mapping[Part, Tensor]) -> Tensor:
        """The stream of these parts."""
        values = [parts[name] for name in self.lengths]
        return torch.cat(values) if len(values) > 1 else values[0]

    def _is_all(self, name: Part) -> bool:
        return list(self.lengths) == [name]

    def _span(self, name: Part) -> slice:
        assert name in self.lengths, f"the stream has no {name}"
        names = list(self.lengths)
        begin = sum(self.lengths[before] for before in names[: names.index(name)])
        return slice(begin, begin + self.lengths[name])


class StreamParts:
    """The parts that the streams of a model have, on this many tensor ranks."""

    def __init__(self, model: Model, tensor_ranks: int) -> None:
        self._has_encoder, self._has_decoder = model.has_encoder, model.has_decoder
        self._rate, self._upsamples, self._in_order = model.row_rate, model.upsamples, model.predicts_in_order
        self._depths = 0 if model.mtp is None else model.mtp.num_layers
        self._tables: dict[Part, int] = _tables(model, tensor_ranks)

    def whole(self, inputs: int, labels: int) -> Stream:
        """The whole stream, of which this rank has `inputs` and `labels` positions."""
        lengths: dict[Part, int] = {}
        if self._has_encoder:
            lengths["encoder"] = inputs // self._rate
        if self._upsamples:
            lengths["row"] = inputs
            if self._in_order:
                lengths["known"] = labels
        if self._has_decoder:
            lengths["decoder"] = labels if self._has_encoder else inputs
        if self._depths:
            lengths["mtp"] = self._depths * inputs
        return Stream(lengths | self._tables)

    def call_stream(self, batch: MicroBatch, cached: bool, slices: int) -> Stream:
        """The stream of a call with `batch`, of which each of `slices` tensor ranks has a part. If the encoder's work
        is `cached`, or the decoder has nothing to read yet, that part is missing."""
        full = self.whole(batch.tokens_BS.shape[1] // slices, batch.labels_BL.shape[1] // slices)
        missing = {"known"} if batch.label_positions_BL is None else set()
        if batch.mtp is None:
            missing |= {"mtp"}
        if self._has_encoder and self._has_decoder:
            missing |= {"decoder"} if batch.decoder_tokens_BL is None else {"encoder"} if cached else set()
        return Stream({part: length for part, length in full.lengths.items() if part not in missing})


def table_values(model: Model, tensor_ranks: int) -> int:
    """Values in one stack's table of biases, on a tensor rank: [buckets, heads]."""
    return model.relative_num_buckets * (model.heads // tensor_ranks)


def _tables(model: Model, tensor_ranks: int) -> dict[Part, int]:
    if model.positions.name != "relative":
        return {}
    values = table_values(model, tensor_ranks) * (model.has_encoder + model.has_decoder)
    return {"tables": -(-values // model.hidden)}
