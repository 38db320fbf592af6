"""What the layers of a call read besides the stream, of most families."""

from collections.abc import Callable

from pretrain.attention.cache import KeyValueCache
from pretrain.attention.core import AttentionInputs
from pretrain.config.model import Model
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import LayerInputs
from pretrain.models.stream import Stream

InputsOfLayers = Callable[[Model, MicroBatch, Stream, KeyValueCache | None], LayerInputs]
"""makes them of a batch and the layout of its stream"""


def layer_inputs(model: Model, batch: MicroBatch, stream: Stream, cache: KeyValueCache | None) -> LayerInputs:
    """What layers read that each see all positions of their stack."""
    shown = batch.attention_mask_BS
    reads = AttentionInputs(
        positions_BS=batch.positions_BS,
        key_mask_BK=shown,
        packed=batch.packed,
        packed_with_padding=batch.packed_with_padding,
        places=batch.places,
        real_BK=batch.real_BK,
    )
    if not model.is_encoder_decoder:
        by_stack = {"encoder": reads, "decoder": reads}
        return LayerInputs(stream, by_stack, cache=cache, before=batch.memory, routes=batch.routes)
    says = batch.positions_BS if batch.decoder_positions_BL is None else batch.decoder_positions_BL
    by_stack = {"encoder": reads, "decoder": AttentionInputs(positions_BS=says)}
    return LayerInputs(stream, by_stack, AttentionInputs(positions_BS=says, key_mask_BK=shown), cache)
