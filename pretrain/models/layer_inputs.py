"""Inputs of the layers of a call besides the stream, of most families."""

from collections.abc import Callable

from pretrain.attention.cache import KeyValueCache
from pretrain.attention.core import AttentionInputs
from pretrain.config.model import Model
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import LayerInputs
from pretrain.models.stream import Stream

InputsOfLayers = Callable[[MicroBatch, Stream, KeyValueCache | None], LayerInputs]
"""makes them of a batch and the layout of its stream"""


def layer_inputs(model: Model) -> InputsOfLayers:
    """Function that makes the inputs of layers that each see all positions of their stack."""
    return _two_stacks if model.is_encoder_decoder else _one_stack


def _one_stack(batch: MicroBatch, stream: Stream, cache: KeyValueCache | None) -> LayerInputs:
    reads = _reads(batch)
    by_stack = {"encoder": reads, "decoder": reads}
    return LayerInputs(stream, by_stack, cache=cache, before=batch.memory, routes=batch.routes)


def _two_stacks(batch: MicroBatch, stream: Stream, cache: KeyValueCache | None) -> LayerInputs:
    says = batch.positions_BS if batch.decoder_positions_BL is None else batch.decoder_positions_BL
    by_stack = {"encoder": _reads(batch), "decoder": AttentionInputs(positions_BS=says)}
    return LayerInputs(stream, by_stack, AttentionInputs(positions_BS=says, key_mask_BK=batch.attention_mask_BS), cache)


def _reads(batch: MicroBatch) -> AttentionInputs:
    return AttentionInputs(
        positions_BS=batch.positions_BS,
        key_mask_BK=batch.attention_mask_BS,
        packed=batch.packed,
        packed_with_padding=batch.packed_with_padding,
        places=batch.places,
        real_BK=batch.real_BK,
    )
