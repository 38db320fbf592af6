"""Cells have torch's equations, and an LSTM's cell state is kept in fp32 whatever the model computes in: in bf16 it
would not take in what is less than a 256th of it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pretrain.classics.rnn import cells
from pretrain.classics.rnn.cells import Cell, advance_of, outputs
from pretrain.classics.rnn.key import cells_of
from pretrain.models.step_linear import StepLinear
from tests.helpers.recurrent import CELLS, language_model_config, translator_config

UNITS, STEPS, ROWS = 2, 16, 3
BF16 = torch.bfloat16


class Whole(StepLinear):
    """One product of all steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def _cell(forget_bias: float = 1.0) -> Cell:
    model = language_model_config(model={"recurrent": {"cell": {"name": "lstm", "forget_bias": forget_bias}}}).model
    megatron: Any = SimpleNamespace(kernels=SimpleNamespace(linear=Whole))
    return Cell(model, cast("Any", megatron), inputs=1, units=UNITS)


@torch.no_grad()
def test_small_parts_add_up_in_a_cell_state_of_a_bf16_model() -> None:
    """The gates are constant: all is kept, and each step adds the same 2**-10 to a state of 1."""
    cell = _cell(forget_bias=30.0).to(BF16)
    cell.recurrent.weight.zero_()
    cell.input.weight.zero_()
    entering, value = 30.0, 2.0**-10
    cell.input.bias.copy_(torch.tensor([entering, 0, value, 30.0]).repeat_interleave(UNITS))
    before = cell.zeros(ROWS, torch.zeros(1, dtype=BF16))
    mask = torch.ones(STEPS, ROWS, dtype=torch.bool)
    mask[:, 1] = False
    mask[STEPS // 2 :, 2] = False
    _, (out, state) = cell.run(torch.zeros(STEPS, ROWS, 1, dtype=BF16), (before[0], before[1] + 1), mask)
    assert (out.dtype, state.dtype) == (BF16, torch.float32)
    steps = torch.tensor([STEPS, 0, STEPS // 2]) / 2**10
    assert state == pytest.approx((1 + steps)[:, None].expand(ROWS, UNITS), abs=1e-6)


def test_gates_of_a_bf16_model_are_computed_in_fp32() -> None:
    """The equations in float64, on the same inputs."""
    draw = torch.Generator().manual_seed(0)
    x, of_state = (torch.randn(ROWS, 4 * UNITS, generator=draw).to(BF16) for _ in range(2))
    state = torch.randn(ROWS, UNITS, generator=draw)
    advance = advance_of(cells_of(language_model_config().model).cell)
    out, found = advance(x, of_state, (state.to(BF16), state))
    entering, forgetting, value, leaving = (x + of_state).double().chunk(4, dim=-1)
    cell = (forgetting + 1).sigmoid() * state.double() + entering.sigmoid() * value.tanh()
    assert torch.allclose(found.double(), cell, rtol=0, atol=1e-6)
    assert torch.equal(out, (leaving.sigmoid() * cell.tanh()).to(BF16))


@torch.no_grad()
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_reads_as_torch_s_does(name: str) -> None:
    """torch's LSTM has no forget bias besides its own."""
    model = language_model_config(model={"recurrent": {"cell": {"name": name}}}).model
    cell = Cell(model, cast("Any", SimpleNamespace(kernels=SimpleNamespace(linear=Whole))), inputs=3, units=UNITS)
    theirs = CELLS[name](3, UNITS)
    draw = torch.Generator().manual_seed(0)
    for value in cell.parameters():
        value.copy_(torch.randn(value.shape, generator=draw))
    theirs.weight_ih_l0.copy_(cell.input.weight)
    theirs.weight_hh_l0.copy_(cell.recurrent.weight)
    theirs.bias_ih_l0.copy_(cell.input.bias)
    theirs.bias_hh_l0.copy_(torch.zeros(1) if cell.recurrent.bias is None else cell.recurrent.bias)
    if name == "lstm":
        theirs.bias_hh_l0[UNITS : 2 * UNITS] = 1.0  # ours
    x = torch.randn(STEPS, ROWS, 3, generator=draw)
    states, last = cell.run(x, cell.zeros(ROWS, x))
    expected, end = theirs(x)
    assert torch.allclose(outputs(states), expected, atol=1e-6)
    for ours, one in zip(last, end if name == "lstm" else (end,), strict=True):
        assert torch.allclose(ours, one[0], atol=1e-6)


def test_all_layers_of_an_encoder_but_the_last_drop_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder has more layers than the decoder, so counting the decoder's would be wrong."""
    monkeypatch.setattr(cells, "HiddenDropout", lambda megatron: torch.nn.Identity())
    model = translator_config({"cell": "lstm"}, model={"encoder_layers": 3, "layers": 1}).model
    megatron: Any = SimpleNamespace(kernels=SimpleNamespace(linear=Whole))
    layers = [cells.EncoderLayer(model, megatron, number) for number in range(3)]
    assert [layer.dropout is not None for layer in layers] == [True, True, False]
