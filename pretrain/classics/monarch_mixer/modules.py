"""The layers of Monarch Mixer (Fu et al. 2023, arXiv 2310.12109; M2-BERT: HazyResearch/m2, bert/src/mm), which have no
attention: a gated convolution over the whole sequence, and a gated feed-forward layer of block-diagonal matrices.

    (a, b, v) = short(W x + c)            short: each channel of a position with those of the two before it
    y         = b * long(a * v) + long'(x)
    out       = V y + d

A long convolution weighs, channel by channel, all positions of a row by their distance, to the left and to the right:

    y_i = sum over j <= i of before[i - j] x_j, plus sum over j > i of after[j - i - 1] x_j, plus skip * x_i

Its weights are what small networks make of distances, times an exponential decay. It is computed by FFT, of twice the
model's sequence length whatever the length of the rows, in fp32.

The authors' code convolves padding too, so that a row's result depends on how far it is padded. Here padding is zero
wherever a convolution reads it: a row has the same result in a longer one.

Tensor ranks share channels: all that is between W and V is their own. Of the networks, they share the last matrix.

Shapes: S positions, B rows, H hidden size, C channels of this rank, n the model's sequence length, o filter order.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_tensor_model_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor, nn

from pretrain.attention.core import AttentionInputs
from pretrain.classics.monarch_mixer.key import Mixer, blocks_of, mixer_of
from pretrain.config.model import Model
from pretrain.models.blocks import BiasDropoutAdd, ResidualThenNorm
from pretrain.models.feed_forward import linear_of
from pretrain.models.layers import Layers
from pretrain.models.masked_head import MaskedHead
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.megatron_versions import feed_forward_builder
from pretrain.models.network import FamilyParts
from pretrain.models.parameter_gradients import add_bias
from pretrain.random.dropout import Dropout

_SHORT = 3  # positions of the short convolution
_TARGET, _FAST, _SLOW = 1e-2, 0.3, 1.5
"""part of a weight that is left after these shares of the sequence, in the channels that decay fastest and slowest"""


class MixerLayers(Layers):
    """Layers without attention. Only the feed-forward layer has a residual connection and a norm behind it."""

    def submodules(self, model: Model, megatron: MegatronConfig, number: int) -> TransformerLayerSubmodules:
        """See `Layers`."""
        return TransformerLayerSubmodules(
            self_attention=ModuleSpec(GatedLongConvolution, params={"model": model}),
            self_attn_bda=ModuleSpec(NoResidual, params={"config": megatron, "model": model}),
            mlp=feed_forward_builder(_feed_forward_of(blocks_of(model))),
            mlp_bda=ModuleSpec(ResidualThenNorm, params={"config": megatron, "model": model}),
        )


def _feed_forward_of(blocks: int) -> type[nn.Module]:
    """The feed-forward layer with so many blocks: megatron-core makes it of its config alone."""

    class OfBlocks(BlockDiagonalFeedForward):
        def __init__(self, config: MegatronConfig) -> None:
            super().__init__(config, blocks)

    return OfBlocks


class NoResidual(BiasDropoutAdd):
    """x + bias: a mixer's output takes the place of its input."""

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        x, bias = x_with_bias
        return x if bias is None else add_bias(x, bias)


class GatedLongConvolution(nn.Module):
    """In the place of a layer's self-attention, and called like it."""

    def __init__(
        self, config: MegatronConfig, layer_number: int, pg_collection: ProcessGroupCollection, model: Model, **_: Any
    ) -> None:
        super().__init__()
        settings, self.tp = mixer_of(model), pg_collection.tp
        self.channels = model.hidden // self.tp.size()
        linears = {"config": config, "init_method": config.init_method, "is_expert": False, "tp_group": self.tp}
        self.linear_qkv = linear_of(config, "qkv", "column")(
            model.hidden, 3 * model.hidden, bias=True, gather_output=False, skip_bias_add=False, **linears
        )
        self.short = ShortConvolution(3 * self.channels)
        self.filter = LongConvolution(settings, model, self.tp)
        self.residual_filter = LongConvolution(settings, model, self.tp) if settings.residual else None
        self.linear_proj = linear_of(config, "projection", "row")(
            model.hidden, model.hidden, bias=True, input_is_parallel=True, skip_bias_add=True, **linears
        )

    def forward(self, hidden_states: Tensor, attention_mask: AttentionInputs, **_: Any) -> tuple[Tensor, Tensor]:
        shown_BS = attention_mask.key_mask_BK
        hidden_SB1 = None if shown_BS is None else ~shown_BS.T[..., None]

        def without_padding(x: Tensor) -> Tensor:
            return x if hidden_SB1 is None else x.masked_fill(hidden_SB1, 0.0)

        projected, _ = self.linear_qkv(hidden_states)
        a, b, v = self.short(without_padding(projected.float())).unflatten(-1, (self.channels, 3)).unbind(-1)
        y = b * self.filter(without_padding(a * v))
        if self.residual_filter is not None:
            own = scatter_to_tensor_model_parallel_region(hidden_states, group=self.tp)
            y = y + self.residual_filter(without_padding(own.float()))
        out: tuple[Tensor, Tensor] = self.linear_proj(y.to(hidden_states.dtype))
        return out


class ShortConvolution(nn.Module):
    """Each channel of a position with those of the positions before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, _SHORT))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x_SBC: Tensor) -> Tensor:
        """In fp32."""
        weight_C3, length = self.weight.float(), len(x_SBC)
        padded = F.pad(x_SBC, (0, 0, 0, 0, _SHORT - 1, 0))
        out = self.bias.float()
        for number in range(_SHORT):
            out = out + weight_C3[:, number] * padded[number : number + length]
        return out


class LongConvolution(nn.Module):
    """See above. Weights of distances to the left and to the right come from a network each; both have the sines'
    frequencies."""

    def __init__(self, settings: Mixer, model: Model, tp: Any) -> None:
        super().__init__()
        channels = model.hidden // tp.size()
        self.length, self.features = model.sequence_length, settings.filter_features
        self.first, self.of = tp.rank() * channels, model.hidden
        self.frequency = nn.Parameter(torch.empty(settings.filter_order))
        self.skip = nn.Parameter(torch.empty(channels))
        self.before = FilterNetwork(settings, channels, tp)
        self.after = FilterNetwork(settings, channels, tp)

    def forward(self, x_SBC: Tensor) -> Tensor:
        """In fp32."""
        features_nf = positional_features(self.length, self.features, x_SBC.device)
        decay_nC = decays(self.length, self.of, x_SBC.device)[:, self.first : self.first + len(self.skip)]
        frequency = self.frequency.float()
        before_nC, after_nC = (network(features_nf, frequency) * decay_nC for network in (self.before, self.after))
        return long_convolution(x_SBC, before_nC, after_nC) + self.skip.float() * x_SBC


class FilterNetwork(nn.Module):
    """Three layers of sines and a matrix: features of positions [n, f] -> weights [n, C]. All but the matrix is the
    same on every tensor rank."""

    def __init__(self, settings: Mixer, channels: int, tp: Any) -> None:
        super().__init__()
        order, self.tp = settings.filter_order, tp
        self.first = nn.Parameter(torch.empty(order, settings.filter_features))
        self.second, self.third = (nn.Parameter(torch.empty(order, order)) for _ in range(2))
        self.first_bias, self.second_bias, self.third_bias = (nn.Parameter(torch.empty(order)) for _ in range(3))
        self.last = nn.Parameter(torch.empty(channels, order))

    def forward(self, x: Tensor, frequency: Tensor) -> Tensor:
        """In fp32."""
        layers = (self.first, self.first_bias), (self.second, self.second_bias), (self.third, self.third_bias)
        for weight, bias in layers:
            x = torch.sin(frequency * F.linear(x, weight.float(), bias.float()))
        shared = copy_to_tensor_model_parallel_region(x, group=self.tp)
        return F.linear(shared, self.last.float())


def positional_features(length: int, features: int, device: torch.device) -> Tensor:
    """[length, features]: the place in the sequence, from 0 to 1, and cosines and sines of it."""
    bands = (features - 1) // 2
    places = torch.arange(length, device=device)
    angles = torch.linspace(1e-4, bands - 1, bands, device=device) * (2 * math.pi / length * places[:, None])
    place = torch.linspace(0, 1, length, device=device)[:, None]
    return torch.cat((place, torch.cos(angles), -torch.sin(angles)), dim=1)


def decays(length: int, channels: int, device: torch.device) -> Tensor:
    """[length, channels] what weights of each distance are multiplied by."""
    rates = torch.linspace(-math.log(_TARGET) / _SLOW, -math.log(_TARGET) / _FAST, channels, device=device)
    return torch.exp(-rates * torch.linspace(0, 1, length, device=device)[:, None])


def long_convolution(x_SBC: Tensor, before_nC: Tensor, after_nC: Tensor) -> Tensor:
    """[S, B, C]: what lies `d` to the left counts before[d] times, what lies `d` + 1 to the right after[d] times."""
    out: Tensor = CircularConvolution.apply(x_SBC, torch.cat((before_nC, after_nC.flip(0))))  # type: ignore[no-untyped-call]
    return out


class CircularConvolution(torch.autograd.Function):
    """x [S, B, C], kernel [N, C], N >= 2 S -> [S, B, C]. Keeps these alone: as complex numbers they are four times as
    large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        product = torch.fft.rfft(x, n=len(kernel), dim=0) * torch.fft.rfft(kernel, dim=0)[:, None]
        found: Tensor = torch.fft.irfft(product, n=len(kernel), dim=0)[: len(x)]
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        of_x = of_kernel = None
        waves = torch.fft.rfft(gradient, n=len(kernel), dim=0)
        if ctx.needs_input_grad[0]:
            of_x = waves * torch.fft.rfft(kernel, dim=0)[:, None].conj()
            of_x = torch.fft.irfft(of_x, n=len(kernel), dim=0)[: len(x)]
        if ctx.needs_input_grad[1]:
            summed = (waves * torch.fft.rfft(x, n=len(kernel), dim=0).conj()).sum(1)
            of_kernel = torch.fft.irfft(summed, n=len(kernel), dim=0)
        return of_x, of_kernel


class BlockDiagonalFeedForward(nn.Module):
    """W2 (activation(Wg x) * Wv x), where [Wg; Wv] and W2 are block-diagonal matrices of so many blocks: the first
    half of the blocks makes gates of the first half of x, the second half values of the second."""

    def __init__(self, config: MegatronConfig, blocks: int) -> None:
        super().__init__()
        self.tp = ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp
        self.config = config
        self.gates, self.out = Gates(config, blocks, self.tp), BlockDiagonal(config, blocks, self.tp)
        self.dropout = Dropout(
            config.ffn_dropout, ("context",), ("tensor",), rows_second=True, compute=config.kernels.dropout
        )

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        gate, value = self.gates(copy_to_tensor_model_parallel_region(hidden_states, group=self.tp))
        out = self.out(self.dropout(self.config.activation_func(gate) * value))
        return gather_from_tensor_model_parallel_region(out, group=self.tp), self.out.bias


class Gates(nn.Module):
    """Wg and Wv: the weights [F, 2, H / blocks] of each feature's gate and value, of which tensor ranks share F."""

    def __init__(self, config: MegatronConfig, blocks: int, tp: Any) -> None:
        super().__init__()
        own, half = config.ffn_hidden_size // tp.size(), blocks // 2
        of_block, self.width = config.ffn_hidden_size // half, config.hidden_size // blocks
        self.groups, self.num_gates = max(1, own // of_block), half
        self.block = tp.rank() * own // of_block
        """the first block that this rank's features are of"""
        self.weight = nn.Parameter(torch.empty(own, 2, self.width))

    def forward(self, x_SBH: Tensor) -> tuple[Tensor, Tensor]:
        weight_gf2h = self.weight.unflatten(0, (self.groups, -1))
        made = []
        for number, block in enumerate((self.block, self.num_gates + self.block)):
            read = x_SBH[..., block * self.width : (block + self.groups) * self.width]
            grouped = read.unflatten(-1, (self.groups, self.width))
            made.append(torch.einsum("sbgh,gfh->sbgf", grouped, weight_gf2h[:, :, number]).flatten(-2))
        return made[0], made[1]


class BlockDiagonal(nn.Module):
    """W2 [H, F / blocks], of which tensor ranks share H: they have whole blocks."""

    def __init__(self, config: MegatronConfig, blocks: int, tp: Any) -> None:
        super().__init__()
        self.blocks, read = blocks // tp.size(), config.ffn_hidden_size // blocks
        self.weight = nn.Parameter(torch.empty(config.hidden_size // tp.size(), read))
        self.bias = nn.Parameter(torch.empty(config.hidden_size))

    def forward(self, x_SBF: Tensor) -> Tensor:
        blocks = x_SBF.unflatten(-1, (self.blocks, -1))
        return torch.einsum("sbgf,gof->sbgo", blocks, self.weight.unflatten(0, (self.blocks, -1))).flatten(-2)


PARTS = FamilyParts(head=partial(MaskedHead, activation="gelu"), layers=MixerLayers)
