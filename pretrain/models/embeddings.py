"""From token ids to the first layer's input: one token embedding for all, and of each stack what it adds to that.

Shapes: S positions (this context rank's), B rows, H width.
"""

import math

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from megatron.core.transformer.identity_op import IdentityOp
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.blocks import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig


class Embedding(nn.Module):
    """`encoder` and `decoder` are the parts of the stacks that the model has, `relative` the tables of distances."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        self.word_embeddings = megatron.kernels.embedding(
            model.padded_vocabulary, model.hidden, init_method=lambda weight: weight, config=megatron
        )
        encoder_layers, decoder_layers = model.stacks
        self.encoder = StackEmbedding(model, megatron, model.sequence_length) if encoder_layers else None
        self.decoder = StackEmbedding(model, megatron, model.label_length) if decoder_layers else None
        self.relative = DistanceTables(model) if model.positions == "relative" else None

    def encode(self, tokens_BS: Tensor, positions_BS: Tensor, segments_BS: Tensor | None) -> Tensor:
        """[S, B, H], under sequence parallelism this tensor rank's slice of S."""
        assert self.encoder is not None, "the model has no encoder"
        return self.encoder(self.word_embeddings(tokens_BS), positions_BS, segments_BS)

    def decode(self, tokens_BS: Tensor, positions_BS: Tensor) -> Tensor:
        """Likewise."""
        assert self.decoder is not None, "the model has no decoder"
        return self.decoder(self.word_embeddings(tokens_BS), positions_BS, None)


class StackEmbedding(nn.Module):
    """Adds positions and segments to token embeddings; then norm and dropout."""

    def __init__(self, model: Model, megatron: MegatronConfig, length: int) -> None:
        super().__init__()
        self.scale = math.sqrt(model.hidden) if model.embedding_scale else 1.0
        self.offset, self.sinusoidal = model.position_offset, model.positions == "sinusoidal"
        learned = model.positions == "learned"
        self.position_embeddings = nn.Embedding(length + self.offset, model.hidden) if learned else None
        self.segment_embeddings = nn.Embedding(model.segments, model.hidden) if model.segments else None
        self.norm = megatron.make_norm() if model.embedding_norm else IdentityOp()
        self.dropout = HiddenDropout(megatron)
        self.megatron = megatron

    def forward(self, words_BSH: Tensor, positions_BS: Tensor, segments_BS: Tensor | None) -> Tensor:
        x = words_BSH * self.scale if self.scale != 1 else words_BSH
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions_BS + self.offset)
        elif self.sinusoidal:
            x = x + sinusoids(positions_BS, x.shape[-1]).to(x.dtype)
        if self.segment_embeddings is not None:
            x = x + self.segment_embeddings(torch.zeros_like(positions_BS) if segments_BS is None else segments_BS)
        x = x.transpose(0, 1).contiguous()
        if self.megatron.sequence_parallel:
            x = scatter_to_sequence_parallel_region(x)
        return self.dropout(self.norm(x))


class DistanceTables(nn.Module):
    """T5's table of attention biases of each stack, [buckets, heads], which all its layers share.

    They lie on one pipeline stage, with the embedding, and travel with the activations as additional positions: so
    their gradient comes back summed over layers and stages, and no other rank holds a copy. Tensor ranks hold those of
    their own heads.
    """

    split_dim = 1

    def __init__(self, model: Model) -> None:
        super().__init__()
        heads = model.heads // ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp.size()
        self.stacks = [name for name, layers in zip(("encoder", "decoder"), model.stacks, strict=True) if layers]
        for name in self.stacks:
            self.register_parameter(name, nn.Parameter(torch.empty(model.relative_buckets, heads)))
        self.hidden = model.hidden

    def forward(self, rows: int) -> Tensor:
        """[positions, rows, H]: all tables, one after the other."""
        flat = torch.cat([getattr(self, name).view(-1) for name in self.stacks])
        count = -(-flat.numel() // self.hidden)
        padded = torch.nn.functional.pad(flat, (0, count * self.hidden - flat.numel()))
        return padded.view(count, 1, self.hidden).expand(-1, rows, -1)


def table_positions(model: Model, tensor_ranks: int) -> int:
    """Positions that `DistanceTables` makes on a tensor rank."""
    if model.positions != "relative":
        return 0
    values = model.relative_buckets * (model.heads // tensor_ranks) * sum(layers > 0 for layers in model.stacks)
    return -(-values // model.hidden)


def table_of(stream_PBH: Tensor, stack: int, model: Model, tensor_ranks: int) -> Tensor | None:
    """[buckets, heads] of the `stack`-th stack, from the stream's last positions."""
    positions = table_positions(model, tensor_ranks)
    if not positions:
        return None
    heads = model.heads // tensor_ranks
    count = model.relative_buckets * heads
    flat = stream_PBH[-positions:, 0].reshape(-1)
    return flat[stack * count : (stack + 1) * count].view(model.relative_buckets, heads)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """[...] -> [..., width] float32: sines in the first half, cosines in the second, of wavelengths from 2 pi to
    20,000 pi (Vaswani et al. 2017, arXiv 1706.03762, section 3.5; whose halves are interleaved, which is the same up to
    an order of features)."""
    half = width // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=positions.device, dtype=torch.float32) * 2 / width)
    angles = positions[..., None].float() * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
