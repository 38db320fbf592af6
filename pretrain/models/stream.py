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


def of_model(model: Model, inputs: int, labels: int, tensor_ranks: int) -> Stream:
    """The whole stream, of which this rank has `inputs` and `labels` positions."""
    lengths: dict[Part, int] = {}
    if model.has_encoder:
        lengths["encoder"] = inputs // model.row_rate
    if model.upsamples:
        lengths["row"] = inputs
        if model.predicts_in_order:
            lengths["known"] = labels
    if model.has_decoder:
        lengths["decoder"] = labels if model.has_encoder else inputs
    if model.mtp is not None:
        lengths["mtp"] = model.mtp.num_layers * inputs
    return Stream(lengths | _tables(model, tensor_ranks))


def of_call(model: Model, batch: MicroBatch, cached: bool, slices: int, tensor_ranks: int) -> Stream:
    """The stream of a call with `batch`, of which each of `slices` tensor ranks has a part. If the encoder's work is
    `cached`, or the decoder has nothing to read yet, that part is missing."""
    full = of_model(model, batch.tokens_BS.shape[1] // slices, batch.labels_BL.shape[1] // slices, tensor_ranks)
    missing = {"known"} if batch.label_positions_BL is None else set()
    if batch.mtp is None:
        missing |= {"mtp"}
    if model.is_encoder_decoder:
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
