"""A stack of encoder layers, of decoder layers, or both, as one pipeline of layers; one chunk of it.

What travels from layer to layer, and so from stage to stage, is one tensor [P, B, H], the *stream*: the encoder's
positions, then the decoder's, then those that carry tables (`DistanceTables`). An encoder layer changes the first part
and hands on the rest; a decoder layer changes the second and reads the first. So a stage boundary may lie anywhere, the
encoder's output reaches every decoder stage, and its gradient comes back summed, all through megatron-core's own
schedules, for which it is a tensor like any other. Under sequence or context parallelism each rank has its slice of
each part.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.enums import ModelType
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlock,
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules, get_transformer_layer_offset
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.blocks import HiddenDropout, PlainLayer, layer_parts
from pretrain.models.embeddings import Embedding, table_of, table_positions
from pretrain.models.inputs import MicroBatch
from pretrain.models.megatron_config import MegatronConfig

Head = Callable[[Model, MegatronConfig], nn.Module]


class FinalNorm(nn.Module):
    """What follows the last layer of a pre-norm stack."""

    def __init__(self, megatron: MegatronConfig) -> None:
        super().__init__()
        self.norm, self.dropout = (
            megatron.make_norm(),
            HiddenDropout(megatron),
        )

    def forward(self, x_SBH: Tensor) -> Tensor:
        return self.dropout(self.norm(x_SBH))


class Layer(PlainLayer):
    """megatron-core's layer, on its part of the stream."""

    def __init__(
        self, config: MegatronConfig, submodules: TransformerLayerSubmodules, model: Model, **where: Any
    ) -> None:
        super().__init__(config, submodules, **where)
        self.model = model
        encoder_layers, decoder_layers = model.stacks
        self.encodes = self.layer_number <= encoder_layers
        last = self.layer_number in (encoder_layers, encoder_layers + decoder_layers)
        self.final = FinalNorm(config) if last and model.norm == "pre" else None

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """[P, B, H] -> [P, B, H]. `attention_mask`: MicroBatch's `attention_mask_BS`."""
        own, memory = self._spans(hidden_states, attention_mask)
        encoded = hidden_states[memory] if memory else None
        x, _ = super().forward(
            hidden_states[own],
            attention_mask=None if memory else attention_mask,
            context=encoded,
            context_mask=attention_mask if memory else None,
            attention_bias=self._table(hidden_states),
        )
        if self.final is not None:
            x = self.final(x)
        parts = hidden_states[: own.start], x, hidden_states[own.stop :]
        return torch.cat([part for part in parts if len(part)]) if len(x) < len(hidden_states) else x, None

    def _spans(self, stream: Tensor, visible: Tensor | None) -> tuple[slice, slice | None]:
        """Positions of its own, and those of the encoder for a decoder layer that reads it."""
        end = len(stream) - table_positions(self.model, self.tp_group.size())
        if not self.model.is_encoder_decoder:
            return slice(0, end), None
        assert visible is not None, "an encoder-decoder is told what is padding"
        ranks = self.config.context_parallel_size * (self.tp_group.size() if self.config.sequence_parallel else 1)
        border = visible.shape[1] // ranks
        return (slice(0, border), None) if self.encodes else (slice(border, end), slice(0, border))

    def _table(self, stream: Tensor) -> Tensor | None:
        stack = int(not self.encodes and self.model.is_encoder_decoder)
        return table_of(stream, stack, self.model, self.tp_group.size())


class Network(LanguageModule):
    """Called with a MicroBatch: the stream for the next stage, or on the last one the logits [L, B, V / tensor ranks],
    and what else `head` makes."""

    def __init__(
        self, model: Model, megatron: MegatronConfig, first: bool, last: bool, chunk: int | None, head: Head
    ) -> None:  # fmt: skip
        super().__init__(config=megatron)
        self.model, self.vp_stage = model, chunk
        self.pre_process, self.post_process = first, last
        self.share_embeddings_and_output_weights = model.tied_head
        self.encoder_layers = model.stacks[0]
        self.model_type = ModelType.encoder_or_decoder  # one pipeline, to megatron-core
        self.position_embedding_type = model.positions  # which it reads, looking for rotary ones
        if first:
            self.embedding = Embedding(model, megatron)
        self.decoder = TransformerBlock(
            megatron, _specs(model, megatron, chunk), post_layer_norm=False, pre_process=first, post_process=last,
            vp_stage=chunk,
        )  # fmt: skip
        if last:
            self.head = head(model, megatron)
            self.output_layer = megatron.kernels.column_linear(
                model.hidden,
                model.padded_vocabulary,
                config=megatron,
                init_method=lambda weight: weight,
                bias=getattr(self.head, "bias", False),
                gather_output=False,
                skip_weight_param_allocation=first and model.tied_head,
            )
        if first or last:
            self.setup_embeddings_and_output_layer()

    def set_input_tensor(self, input_tensor: list[Tensor]) -> None:
        """From the stage before: megatron-core's schedules call this."""
        self.decoder.set_input_tensor(input_tensor[0])

    def forward(self, batch: MicroBatch) -> Any:
        stream = self._stream(batch) if self.pre_process else None
        stream = self.decoder(stream, self._visible(batch))
        return self._predict(stream, batch) if self.post_process else stream

    def encode(self, batch: MicroBatch) -> Tensor:
        """The encoder's part of the stream, [S, B, H], of a model that lies on one stage."""
        stream = self._stream(batch)
        for layer in self.decoder.layers[: self.encoder_layers]:
            stream, _ = layer(stream, self._visible(batch))
        return stream[: batch.tokens_BS.shape[1]]

    def decode(self, memory_SBH: Tensor, batch: MicroBatch) -> Any:
        """What `forward` returns, with the encoder's work done before by `encode`."""
        stream = self._stream(batch, memory_SBH)
        for layer in self.decoder.layers[self.encoder_layers :]:
            stream, _ = layer(stream, self._visible(batch))
        return self._predict(stream, batch)

    def _visible(self, batch: MicroBatch) -> Tensor | None:
        if batch.attention_mask_BS is None and self.model.is_encoder_decoder:
            rows, length = batch.tokens_BS.shape
            length *= self.config.context_parallel_size
            return torch.ones(rows, length, dtype=torch.bool, device=batch.tokens_BS.device)
        return batch.attention_mask_BS

    def _stream(self, batch: MicroBatch, memory_SBH: Tensor | None = None) -> Tensor:
        embedding, parts = self.embedding, []
        if memory_SBH is not None:
            parts.append(memory_SBH)
        elif self.encoder_layers:
            parts.append(embedding.encode(batch.tokens_BS, batch.positions_BS, batch.segments_BS))
        if batch.decoder_tokens_BL is not None:
            assert batch.decoder_positions_BL is not None
            parts.append(embedding.decode(batch.decoder_tokens_BL, batch.decoder_positions_BL))
        elif not self.encoder_layers:
            parts.append(embedding.decode(batch.tokens_BS, batch.positions_BS))
        if embedding.relative is not None:
            parts.append(embedding.relative(len(batch.tokens_BS)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _predict(self, stream: Tensor, batch: MicroBatch) -> Any:
        end = len(stream) - table_positions(self.model, self.tp_group.size())
        ranks = self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1
        hidden = stream[end - batch.labels_BL.shape[1] // ranks : end]
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None

        def project(x_LBH: Tensor) -> Tensor:
            return self.output_layer(x_LBH, weight=weight)[0]

        return self.head(hidden, project)


class PlainHead(nn.Module):
    """Logits straight from the last layer, times `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, hidden_LBH: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        return project(hidden_LBH * self.scale if self.scale != 1 else hidden_LBH)


def stream_positions(model: Model, inputs: int, labels: int, slices: int, tensor_ranks: int) -> int:
    """Positions of the whole stream, which `slices` ranks share equally."""
    tables = table_positions(model, tensor_ranks) * slices
    return inputs + (labels if model.is_encoder_decoder else 0) + tables


def _specs(model: Model, megatron: MegatronConfig, chunk: int | None) -> TransformerBlockSubmodules:
    """The layers of one pipeline chunk."""
    encoder_layers = model.stacks[0]
    encoder = ModuleSpec(Layer, {"model": model}, layer_parts(model, megatron, "full", cross=False))
    decoder = ModuleSpec(Layer, {"model": model}, layer_parts(model, megatron, "causal", cross=encoder_layers > 0))
    begin = get_transformer_layer_offset(megatron, chunk)
    numbers = range(begin, begin + get_num_layers_to_build(megatron, chunk))
    return TransformerBlockSubmodules([encoder if number < encoder_layers else decoder for number in numbers])
