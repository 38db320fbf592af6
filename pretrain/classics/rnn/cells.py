"""Recurrent cells, and the encoder that is made of them: it reads in one direction or both.

A row's result does not depend on the padding behind it: a cell keeps its state where a position is padding, so that
reading from the end begins with the last token.

Shapes: S positions, B rows, E width of embeddings, M width of the encoder's states, G gates of a cell together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.classics.rnn.key import CellSettings, LstmCell, cells_of
from pretrain.config.model import Model
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.step_linear import StepLinear

State = tuple[Tensor, ...]
"""[B, units] each: a cell's output, and of an LSTM its cell state in fp32"""
Advance = Callable[[Tensor, Tensor, State], State]
"""(what the input gives to the gates [B, G], what the state gives, the state before) -> the state after"""


def _tanh(x: Tensor, of_state: Tensor, state: State) -> State:
    return (torch.tanh(x + of_state),)


def _lstm(forget_bias: float, x: Tensor, of_state: Tensor, state: State) -> State:
    entering, forgetting, value, leaving = (x + of_state).float().chunk(4, dim=-1)
    cell = torch.sigmoid(forgetting + forget_bias) * state[1] + torch.sigmoid(entering) * torch.tanh(value)
    return (torch.sigmoid(leaving) * torch.tanh(cell)).to(x.dtype), cell


def _gru(x: Tensor, of_state: Tensor, state: State) -> State:
    units = state[0].shape[-1]
    reset, update = torch.sigmoid(x[:, : 2 * units] + of_state[:, : 2 * units]).chunk(2, dim=-1)
    value = torch.tanh(x[:, 2 * units :] + reset * of_state[:, 2 * units :])
    return (value + update * (state[0] - value),)


def advance_of(cell: CellSettings) -> Advance:
    """The equations of a cell; gates in the order of torch's."""
    if isinstance(cell, LstmCell):
        bias = cell.forget_bias
        return lambda x, of_state, state: _lstm(bias, x, of_state, state)
    return _gru if cell.name == "gru" else _tanh


class DroppedEmbedding(nn.Module):
    """Token embeddings as they are, with dropout: what a cell reads says where it stands."""

    def __init__(self, model: Model, megatron: MegatronConfig, length: int) -> None:
        super().__init__()
        self.dropout = HiddenDropout(megatron)

    def forward(self, words_BSE: Tensor, positions_BS: Tensor, segments_BS: Tensor | None) -> Tensor:
        out: Tensor = self.dropout(words_BSE.transpose(0, 1).contiguous())
        return out


class Cell(nn.Module):
    """The matrices of one cell."""

    def __init__(
        self, model: Model, megatron: MegatronConfig, inputs: int, units: int, fed: int = 0, by_step: bool = False
    ) -> None:
        """`by_step`: its inputs come one after the other."""
        super().__init__()
        cells = cells_of(model)
        self.units, self.num_states, self.advance = units, cells.states, advance_of(cells.cell)
        linear = StepLinear if by_step else megatron.kernels.linear
        self.input: Any = linear(inputs, cells.gates * units, bias=True)
        self.recurrent = StepLinear(units, cells.gates * units, bias=cells.cell.name == "gru")
        self.fed = StepLinear(fed, cells.gates * units, bias=False) if fed else None

    def zeros(self, rows: int, like: Tensor) -> State:
        """The state before the first position."""
        states = like.new_zeros(rows, self.units), like.new_zeros(rows, self.units, dtype=torch.float32)
        return states[: self.num_states]

    def run(
        self, x_SBI: Tensor, state: State, mask_SB: Tensor | None = None, backward: bool = False
    ) -> tuple[list[State], State]:  # fmt: skip
        """The states after each position, in the order of positions, and the last one read. Where `mask_SB` is False
        the state stays as it is."""
        of_input = self.input(x_SBI).unbind(0)
        product = self.recurrent.begin(len(of_input), x_SBI.shape[1:2])
        found: list[State] = [()] * len(of_input)
        for at in reversed(range(len(of_input))) if backward else range(len(of_input)):
            new = self.advance(of_input[at], product(state[0]), state)
            if mask_SB is not None:
                shown_B1 = mask_SB[at, :, None]
                new = tuple(torch.where(shown_B1, after, before) for after, before in zip(new, state, strict=True))
            found[at] = state = new
        return found, state


def outputs(states: Sequence[State]) -> Tensor:
    """[S, B, units] of the states after each of S positions."""
    return torch.stack([state[0] for state in states])


class EncoderLayer(nn.Module):
    """A cell for each direction, which read the same."""

    def __init__(self, model: Model, megatron: MegatronConfig, number: int) -> None:
        super().__init__()
        cells = cells_of(model)
        self.directions = cells.directions
        inputs = cells.annotation(model.hidden) if number else model.embedding_dim
        for direction in self.directions:
            self.add_module(f"{direction}_cell", Cell(model, megatron, inputs, cells.encoder_units(model.hidden)))
        self.dropout = HiddenDropout(megatron) if number < model.stacks[0] - 1 else None

    def forward(self, x_SBI: Tensor, mask_SB: Tensor | None) -> tuple[Tensor, State]:
        """[S, B, M], and the last states of all directions beside each other."""
        out, last = list[Tensor](), list[State]()
        for direction in self.directions:
            cell: Any = self.get_submodule(f"{direction}_cell")
            states, end = cell.run(x_SBI, cell.zeros(x_SBI.shape[1], x_SBI), mask_SB, direction == "backward")
            out.append(outputs(states))
            last.append(end)
        x_SBM = torch.cat(out, dim=-1)
        joined = tuple(torch.cat(parts, dim=-1) for parts in zip(*last, strict=True))
        return (x_SBM if self.dropout is None else self.dropout(x_SBM)), joined


class RecurrentEncoder(nn.Module):
    """All layers of the encoder."""

    global_name = "encoder"
    gathers_whole = True
    """where weights are sharded, those of the modules in it are gathered when it is called, for all of its steps"""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(model, megatron, number) for number in range(model.stacks[0]))

    def forward(self, x_SBE: Tensor, mask_SB: Tensor | None) -> tuple[Tensor, ...]:
        """[S, B, M] of the last layer; then the last states of each layer, one after the other."""
        ends = list[Tensor]()
        for layer in self.layers:
            x_SBE, end = layer(x_SBE, mask_SB)
            ends += end
        return x_SBE, *ends
