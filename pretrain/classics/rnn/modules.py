"""Recurrent layers: a decoder that attends to its encoder (Bahdanau et al. 2014, arXiv 1409.0473; Luong et al. 2015,
arXiv 1508.04025), or a decoder alone, a language model. Padding of a source has a weight of zero.

Shapes: S positions of the encoder, L of the decoder, B rows, E width of embeddings, H units of the decoder, M width of
the encoder's states, A of what states are compared in.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn

from pretrain.attention.cache import KeyValueCache, LayerCache, Pair
from pretrain.classics.rnn.cells import Cell, DroppedEmbedding, RecurrentEncoder, State, outputs
from pretrain.classics.rnn.key import GeneralScore, cells_of
from pretrain.classics.rnn.specs import fed_width
from pretrain.config.model import Model
from pretrain.models import heads
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.layers import LayerInputs
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import FamilyParts
from pretrain.models.step_linear import StepLinear
from pretrain.models.stream import Stream


class DecoderStart(nn.Module):
    """Start of a decoder: what it makes of its encoder once, before its first step."""

    global_name = "decoder.start"
    gathers_whole = True
    """see `RecurrentEncoder`"""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        cells, hidden, linear = cells_of(model), model.hidden, megatron.kernels.linear
        self.num_states, (self.encoder_layers, self.decoder_layers) = cells.states, model.stacks
        width = cells.annotation(hidden)
        self.key = linear(width, cells.score_size(hidden)) if cells.compares_by_vector else None
        self.states: nn.ModuleList | None = None
        if cells.starts_dense:
            count = self.decoder_layers * cells.states
            self.states = nn.ModuleList(linear(width, hidden) for _ in range(count))

    def forward(self, encoded_SBM: Tensor, *ends: Tensor) -> tuple[Tensor, ...]:
        """[S, B, A] that decoder states are compared with; then the first states of all layers. `ends`: the last states
        of all encoder layers; a decoder layer starts from the encoder layer beside it, or from the last one."""
        first = list[Tensor]()
        for layer in range(self.decoder_layers):
            for state in range(self.num_states):
                end = ends[self.num_states * min(layer, self.encoder_layers - 1) + state]
                if self.states is not None:
                    linear = self.states[len(first)]
                    end = torch.tanh(linear(end.to(encoded_SBM.dtype))).to(end.dtype)
                first.append(end)
        return encoded_SBM if self.key is None else self.key(encoded_SBM), *first


class Memory(NamedTuple):
    """Tensors of the encoder that decoding reads at every step."""

    encoded_SBM: Tensor
    keys_SBA: Tensor
    """keys that decoder states are compared with"""
    mask_BS: Tensor | None
    """False: padding"""


class SourceAttention(nn.Module):
    """Weights of the encoder's positions, by the score of each with a decoder state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        score, hidden, width = cells_of(model).score, model.hidden, cells_of(model).annotation(model.hidden)
        self.query: StepLinear | None = None
        self.vector: StepLinear | None = None
        self.watch: Callable[[Tensor], None] | None = None
        """is called with the weights [B, S] of each step"""
        if cells_of(model).compares_by_vector:
            size = cells_of(model).score_size(hidden)
            self.query, self.vector = StepLinear(hidden, size, bias=False), StepLinear(size, 1, bias=False)
        elif isinstance(score, GeneralScore):
            self.query = StepLinear(hidden, width, bias=False)

    def begin(self, memory: Memory, steps: int) -> Callable[[Tensor], Tensor]:
        """Attention of `steps` decoder states [B, H], one after the other, to a context [B, M] each."""
        encoded_BSM, keys_BSA = memory.encoded_SBM.transpose(0, 1), memory.keys_SBA.transpose(0, 1)
        rows, length, _ = keys_BSA.shape
        query = None if self.query is None else self.query.begin(steps, (rows,))
        vector = None if self.vector is None else self.vector.begin(steps, (rows, length))

        def attend(state_BH: Tensor) -> Tensor:
            query_BA = state_BH if query is None else query(state_BH)
            if vector is not None:
                scores_BS1 = vector(torch.tanh(query_BA[:, None] + keys_BSA))
            else:
                scores_BS1 = torch.bmm(keys_BSA, query_BA[..., None])
            scores_BS = scores_BS1.squeeze(-1).float()
            if memory.mask_BS is not None:
                scores_BS = scores_BS.masked_fill(~memory.mask_BS, torch.finfo(torch.float32).min)
            weights_BS = torch.softmax(scores_BS, dim=-1)
            if self.watch is not None:
                self.watch(weights_BS)
            return torch.bmm(weights_BS.to(state_BH.dtype)[:, None], encoded_BSM).squeeze(1)

        return attend


class _StepDropout:
    """Dropout of [L, B, ...], one of L steps at a time."""

    def __init__(self, dropout: HiddenDropout | None, shape: Sequence[int], like: Tensor) -> None:
        self._dropped: Tensor | None = None
        if dropout is not None and dropout.active:
            drawn = dropout.drawn(torch.Size(shape), like.device)
            self._dropped, self._scale = drawn.mask(torch.Size(shape)), drawn.scale

    def __call__(self, x: Tensor, step: int) -> Tensor:
        return x if self._dropped is None else x.masked_fill(self._dropped[step], 0.0) * self._scale


class DecoderLayer(nn.Module):
    """A cell, and dropout between it and the layer above."""

    def __init__(self, model: Model, megatron: MegatronConfig, number: int) -> None:
        super().__init__()
        inputs, by_step = (model.hidden, cells_of(model).score is not None) if number else (model.embedding_dim, False)
        self.cell = Cell(model, megatron, inputs, model.hidden, 0 if number else fed_width(model), by_step)
        self.dropout = HiddenDropout(megatron) if number < model.stacks[1] - 1 else None


class RecurrentDecoder(nn.Module):
    """All layers of the decoder, with attention and what follows it."""

    global_name = "decoder"
    gathers_whole = True
    """see `RecurrentEncoder`"""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        cells, hidden, width = cells_of(model), model.hidden, model.embedding_dim
        self.layers = nn.ModuleList(DecoderLayer(model, megatron, number) for number in range(model.stacks[1]))
        self.feeds, self.reads_context, self.width = cells.feeds, cells.reads_context, width
        self.attention = None if cells.score is None else SourceAttention(model)
        self.readout: nn.Module | None = None
        if cells.score is not None:
            inputs = hidden + cells.annotation(hidden)
            # What the next step reads is made step by step, anything else for all steps at once.
            linear = StepLinear if cells.feeds else megatron.kernels.linear
            self.readout = linear(inputs, width, bias=True)
        elif width != hidden:
            self.readout = megatron.kernels.linear(hidden, width)
        self.dropout = HiddenDropout(megatron)

    def forward(
        self, x_LBE: Tensor, states: Sequence[State], memory: Memory | None, fed_BE: Tensor | None
    ) -> tuple[Tensor, list[list[State]]]:
        """[L, B, E] for the output layer, which is also what the next steps read if the decoder feeds it, and the
        states of each layer after each position. `states`: those before the first one; `fed_BE`: what the step before
        it put out."""
        if self.attention is None:
            return self._without_attention(x_LBE, states)
        assert memory is not None
        return self._with_attention(x_LBE, list(states), memory, fed_BE)

    @property
    def own_layers(self) -> list[DecoderLayer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def _without_attention(self, x: Tensor, states: Sequence[State]) -> tuple[Tensor, list[list[State]]]:
        every = []
        for layer, state in zip(self.own_layers, states, strict=True):
            found, _ = layer.cell.run(x, state)
            every.append(found)
            x = outputs(found)
            if layer.dropout is not None:
                x = layer.dropout(x)
        return self.dropout(x if self.readout is None else self.readout(x)), every

    def _with_attention(
        self, x_LBE: Tensor, states: list[State], memory: Memory, fed_BE: Tensor | None
    ) -> tuple[Tensor, list[list[State]]]:
        assert self.attention is not None
        assert self.readout is not None
        steps, rows, _ = x_LBE.shape
        first = self.own_layers[0]
        of_input = first.cell.input(x_LBE).unbind(0)
        attend = self.attention.begin(memory, steps)
        products = [layer.cell.recurrent.begin(steps, (rows,)) for layer in self.own_layers]
        feed = None if first.cell.fed is None else first.cell.fed.begin(steps, (rows,))
        inputs = [layer.cell.input.begin(steps, (rows,)) for layer in self.own_layers[1:]]
        between = [_StepDropout(layer.dropout, (steps, rows, first.cell.units), x_LBE) for layer in self.own_layers]
        read = self.readout.begin(steps, (rows,)) if isinstance(self.readout, StepLinear) else None
        drop = _StepDropout(self.dropout, (steps, rows, self.width), x_LBE)
        fed = x_LBE.new_zeros(rows, self.width) if self.feeds and fed_BE is None else fed_BE
        every: list[list[State]] = [[] for _ in self.own_layers]
        found = list[Tensor]()
        for step in range(steps):
            context = attend(states[-1][0]) if self.reads_context else None
            entering = of_input[step]
            if feed is not None:
                feeding = context if self.reads_context else fed
                assert feeding is not None, "a decoder that is fed begins with zeros"
                entering = entering + feed(feeding)
            for number, layer in enumerate(self.own_layers):
                if number:
                    entering = inputs[number - 1](between[number - 1](states[number - 1][0], step))
                states[number] = layer.cell.advance(entering, products[number](states[number][0]), states[number])
                every[number].append(states[number])
            context = attend(states[-1][0]) if context is None else context
            both = torch.cat((states[-1][0], context), dim=-1)
            if read is not None:
                both = fed = drop(torch.tanh(read(both)), step)
            found.append(both)
        out = torch.stack(found)
        return (out if read is not None else self.dropout(torch.tanh(self.readout(out)))), every


class RecurrentLayers(nn.Module):
    """All layers of a model, in the place of `layers.Layers`: a recurrent model has one pipeline stage."""

    def __init__(self, model: Model, megatron: MegatronConfig, chunk: int | None, final: Any, last: bool) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(model, megatron) if model.has_encoder else None
        self.start = DecoderStart(model, megatron) if model.has_encoder else None
        self.decoder = RecurrentDecoder(model, megatron)
        self.layers: tuple[nn.Module, ...] = ()  # that megatron-core numbers micro-batches for
        self.num_states = cells_of(model).states
        self.recomputes = megatron.recompute_granularity == "full"

    def output_stream(self, stream: Stream) -> Stream:
        """Stream that `forward` returns for `stream`: the decoder's part, where there is one."""
        return Stream({"decoder": stream.lengths["decoder"]}) if "decoder" in stream else stream

    def forward(self, stream_PBE: Tensor, inputs: LayerInputs, head: bool = True) -> Tensor:
        """[L, B, E], from which tokens are predicted; or of a call that reads the encoder's input alone, the encoder's
        output: what decoding reads of it is left in the cache."""
        parts, cache = inputs.stream.apart(stream_PBE), inputs.cache
        if self.encoder is None or self.start is None:
            cells = [layer.cell for layer in self.decoder.own_layers]
            first = [cell.zeros(stream_PBE.shape[1], stream_PBE) for cell in cells]
            return self._decoded(parts["decoder"], None, first, inputs)
        assert inputs.memory is not None
        mask_BS = inputs.memory.key_mask_BK
        if "encoder" in parts:
            mask_SB = None if mask_BS is None else mask_BS.T
            encoder: Any = partial(self.encoder, mask_SB=mask_SB)
            encoded_SBM: Tensor
            encoded_SBM, *ends = self._computed(encoder, parts["encoder"])
            keys_SBA, *first_states = self.start(encoded_SBM, *ends)
            first = self._by_layer(first_states)
            if "decoder" not in parts:
                assert cache is not None, "an encoder alone predicts nothing"
                cache[0].memory = encoded_SBM, keys_SBA
                for number, state in enumerate(first, 1):
                    cache[number].memory = state[0][None], state[-1][None]
                return encoded_SBM
        else:
            assert cache is not None
            encoded_SBM, keys_SBA = _remembered(cache, 0)
            layers = range(1, len(self.decoder.own_layers) + 1)
            first = [tuple(value[0] for value in _remembered(cache, n)[: self.num_states]) for n in layers]
        return self._decoded(parts["decoder"], Memory(encoded_SBM, keys_SBA, mask_BS), first, inputs)

    @contextmanager
    def watching_attention(self, watch: Callable[[Tensor], None]) -> Iterator[None]:
        """Inside, `watch` is called with the attention weights [B, S] of each step."""
        attention = self.decoder.attention
        assert attention is not None, "without attention there are no weights"
        attention.watch = watch
        try:
            yield
        finally:
            attention.watch = None

    def remember(self, memory_SBH: Tensor, cache: KeyValueCache) -> None:
        """`forward` does, as it has the encoder's last states, too."""

    def _decoded(self, x_LBE: Tensor, memory: Memory | None, first: list[State], inputs: LayerInputs) -> Tensor:
        """The decoder's output. With a cache, it begins with the states before the first position, and leaves those
        after each."""
        if inputs.cache is None:
            flat = [value for state in first for value in state]
            mask_BS = None if memory is None else memory.mask_BS
            read = [] if memory is None else [memory.encoded_SBM, memory.keys_SBA]

            def decode(x_LBE: Tensor, *tensors: Tensor) -> Tensor:
                states = self._by_layer(tensors[len(read) :])
                again = Memory(tensors[0], tensors[1], mask_BS) if read else None
                out: Tensor = self.decoder(x_LBE, states, again, None)[0]
                return out

            out: Tensor = self._computed(decode, x_LBE, *read, *flat)
            return out
        cache, positions_BL = inputs.cache, inputs.own["decoder"].positions_BS
        before_B = positions_BL[:, 0] - 1
        begin = [_before(cache[number], before_B, state) for number, state in enumerate(first, 1)]
        fed_BE = None
        if self.decoder.feeds:
            (fed_BE,) = _before(cache[0], before_B, (x_LBE.new_zeros(x_LBE.shape[1], self.decoder.width),))
        out, every = self.decoder(x_LBE, begin, memory, fed_BE)
        for number, states in enumerate(every, 1):
            values = [torch.stack(list(of_state)) for of_state in zip(*states, strict=True)]
            cache[number].extended(values[0], values[-1], positions_BL)
        if self.decoder.feeds:
            cache[0].extended(out, out[..., :0], positions_BL)
        return out

    def _by_layer(self, values: Sequence[Tensor]) -> list[State]:
        count = self.num_states
        return [tuple(values[begin : begin + count]) for begin in range(0, len(values), count)]

    def _computed(self, compute: Callable[..., Any], x: Tensor, *others: Tensor) -> Any:
        """Output of `compute` for `x` and `others`; recomputed in the backward pass if the config says so."""
        if not (self.recomputes and self.training):
            return compute(x, *others)
        if not x.requires_grad:  # after frozen embeddings: autograd sees no other inputs
            x = x.detach().requires_grad_()
        return tensor_parallel.checkpoint(compute, False, x, *others)


def _remembered(cache: KeyValueCache, number: int) -> Pair:
    memory = cache[number].memory
    assert memory is not None, "decoding begins with the encoder's work"
    return memory


def _before(cache: LayerCache, at_B: Tensor, first: State) -> State:
    """The state after position `at_B` of each row; where that is -1, the `first` one."""
    held = cache.at(at_B.clamp(min=0))
    if held is None:
        return first
    begins_B1 = (at_B < 0)[:, None]
    return tuple(torch.where(begins_B1, one, kept) for one, kept in zip(first, held, strict=False))


PARTS = FamilyParts(head=heads.plain, embedding=DroppedEmbedding, layers=RecurrentLayers)
