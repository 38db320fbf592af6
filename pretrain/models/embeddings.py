"""From token ids to the first layer's input: one token embedding for all, and of each stack what it adds to that.

Shapes: S positions (this context rank's), B rows, H width.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from megatron.core.transformer.identity_op import IdentityOp
from torch import Tensor, nn

from pretrain.attention.sinusoids import sinusoids
from pretrain.config.model import Model
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.inputs import MicroBatch
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.stream import Stream, table_values

StackPart = Callable[[Model, MegatronConfig, int], nn.Module]
"""makes what a stack of some length adds to token embeddings, called as `StackEmbedding`"""


class Embedding(nn.Module):
    """`encoder` and `decoder` are the parts of the stacks that the model has, `relative` the tables of distances."""

    def __init__(self, model: Model, megatron: MegatronConfig, part: StackPart) -> None:
        super().__init__()
        self.word_embeddings = megatron.kernels.embedding(
            model.padded_vocab_size, model.embedding_dim, init_method=lambda weight: weight, config=megatron
        )
        read = model
        if model.front_encoder is not None:  # its output takes the place of embeddings that are scaled
            read = model.model_copy(update={"embedding_scale": False})
        self.encoder = part(read, megatron, model.sequence_length) if model.has_encoder else None
        self.decoder = part(model, megatron, model.label_length) if model.has_decoder else None
        self.relative = DistanceTables(model) if model.positions.name == "relative" else None
        has_queries = model.capabilities.query_stream
        self.query = nn.Parameter(torch.empty(1, model.embedding_dim)) if has_queries else None

    def forward(self, batch: MicroBatch, stream: Stream, source_BSH: Tensor | None = None) -> Tensor:
        """The stream for the first layer, [P, B, H]; under sequence parallelism this tensor rank's. `source_BSH`: what
        takes the place of the token embeddings of `encoder`."""
        parts = []
        if "encoder" in stream:
            assert self.encoder is not None
            words_BSH = self.word_embeddings(batch.tokens_BS) if source_BSH is None else source_BSH
            if self.query is not None and batch.order_BS is not None:
                words_BSH = torch.where((batch.order_BS % 2 == 1)[..., None], self.query.to(words_BSH.dtype), words_BSH)
            parts.append(self.encoder(words_BSH, batch.positions_BS, batch.segments_BS))
        if "decoder" in stream:
            assert self.decoder is not None
            tokens, positions = batch.decoder_tokens_BL, batch.decoder_positions_BL
            if tokens is None or positions is None:  # a decoder alone reads what an encoder would
                tokens, positions = batch.tokens_BS, batch.positions_BS
            parts.append(self.decoder(self.word_embeddings(tokens), positions, None))
            if batch.mtp is not None:
                further = batch.mtp.tokens_BDS.unbind(1)
                parts += [self.decoder(self.word_embeddings(one), positions, None) for one in further]
        if self.relative is not None:
            parts.append(self.relative(parts[0].shape[1]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class StackEmbedding(nn.Module):
    """Adds positions and segments to token embeddings; then norm and dropout, and a projection to the layers' width if
    embeddings have another."""

    def __init__(self, model: Model, megatron: MegatronConfig, length: int) -> None:
        super().__init__()
        self.scale = math.sqrt(model.base_width) if model.embedding_scale else 1.0
        self.multiplier = model.input_multiplier
        self.offset, self.sinusoidal = model.position_offset, model.positions.name == "sinusoidal"
        learned = model.positions.name == "learned"
        width = model.embedding_dim
        table = megatron.kernels.table
        self.position_embeddings = table(length + self.offset, width) if learned else None
        embeds_segments = model.segments > 0 and not model.compares_segments
        self.segment_embeddings = table(model.segments, width) if embeds_segments else None
        self.norm = megatron.make_norm(width) if model.embedding_norm else IdentityOp()
        self.dropout = HiddenDropout(megatron)
        self.projection = megatron.kernels.linear(width, model.hidden) if model.embedding_size else IdentityOp()
        for parameter in self.projection.parameters():
            parameter.sequence_parallel = megatron.sequence_parallel  # type: ignore[union-attr]
        self.megatron = megatron

    def forward(self, words_BSH: Tensor, positions_BS: Tensor, segments_BS: Tensor | None) -> Tensor:
        x = words_BSH * self.scale if self.scale != 1 else words_BSH
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions_BS + self.offset)
        elif self.sinusoidal:
            x = x + sinusoids(positions_BS, x.shape[-1]).to(x.dtype)
        if self.segment_embeddings is not None:
            x = x + self.segment_embeddings(torch.zeros_like(positions_BS) if segments_BS is None else segments_BS)
        if self.multiplier != 1:
            x = x * self.multiplier
        x = x.transpose(0, 1).contiguous()
        if self.megatron.sequence_parallel:
            # It is a view, which would keep the positions of all ranks until the backward pass.
            x = scatter_to_sequence_parallel_region(x).clone()
        out: Tensor = self.projection(self.dropout(self.norm(x)))
        return out


class DistanceTables(nn.Module):
    """T5's table of attention biases of each stack, [buckets, heads], which all its layers share.

    They lie on one pipeline stage, with the embedding, and travel with the activations as additional positions: so
    their gradient comes back summed over layers and stages, and no other rank holds a copy. Tensor ranks hold those of
    their own heads.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        heads = model.heads // ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp.size()
        self.stacks = [name for name, layers in zip(("encoder", "decoder"), model.stacks, strict=True) if layers]
        for name in self.stacks:
            self.register_parameter(name, nn.Parameter(torch.empty(model.relative_num_buckets, heads)))
        self.hidden = model.hidden

    def forward(self, rows: int) -> Tensor:
        """[positions, rows, H]: all tables, one after the other."""
        flat = torch.cat([getattr(self, name).view(-1) for name in self.stacks])
        count = -(-flat.numel() // self.hidden)
        padded = torch.nn.functional.pad(flat, (0, count * self.hidden - flat.numel()))
        return padded.view(count, 1, self.hidden).expand(-1, rows, -1)


def table_of(
    tables_PBH: Tensor, part: Literal["encoder", "decoder"], model: Model, tensor_ranks: int
) -> Tensor:  # fmt: skip
    """[buckets, heads] of a stack, from the stream's tables."""
    count = table_values(model, tensor_ranks)
    first = count if part == "decoder" and model.has_encoder else 0
    flat = tables_PBH[:, 0].reshape(-1)
    return flat[first : first + count].view(model.relative_num_buckets, -1)
