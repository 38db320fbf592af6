"""What compiled kernels compile: the same functions as plain ones, told the same. No compiler runs here, which takes a
minute: `tests/multirank/test_kernels.py` has what it makes of them."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from pretrain.models import fp8
from pretrain.models.kernels import Kernels, compiled, plain
from pretrain.random.dropout import Drawn, Dropout

CPU = torch.device("cpu")
LEVELS = 1 << 16


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Traced by torch's compiler, and run as they were traced."""
    monkeypatch.setattr("pretrain.models.kernels.check_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    limit = torch._dynamo.config.recompile_limit
    yield compiled(CPU)
    torch._dynamo.config.recompile_limit = limit


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _drawn(x: Tensor, rows_second: bool) -> Drawn:
    site = Dropout(0.25, ("tensor",), rows_second=rows_second)
    site.place("layer", {"tensor": (0, 1)})
    torch.default_generator.manual_seed(5)
    return site.drawn(x.shape, CPU)


def test_what_remains_of_dropout_is_made_larger(fused: Kernels) -> None:
    x = torch.ones(3, 16, 32)
    drawn = _drawn(x, False)
    found = fused.dropout(x, drawn)
    assert found.unique().tolist() == [0.0, pytest.approx(LEVELS / (LEVELS - drawn.levels))]
    assert torch.equal(found, plain(CPU).dropout(x, drawn))
    x, bias, residual = _random(16, 3, 32), _random(32), torch.zeros(16, 3, 32)
    drawn = _drawn(x, True)
    for one, how in ((None, None), (bias, None), (None, drawn), (bias, drawn)):
        torch.testing.assert_close(
            fused.bias_dropout_add(x, one, residual, how), plain(CPU).bias_dropout_add(x, one, residual, how)
        )
    kept = fused.bias_dropout_add(x, bias, residual, drawn)
    torch.testing.assert_close(kept[kept != 0] * (LEVELS - drawn.levels) / LEVELS, (x + bias)[kept != 0])


@pytest.mark.parametrize("name", ["layer", "rms", "rms_zero_centered"])
def test_norms_have_the_epsilon_that_they_are_told(name: str, fused: Kernels) -> None:
    x, width = 0.1 * _random(5, 16), 16
    for eps in (1e-6, 1e-2):
        norms = [one.norm[name](SimpleNamespace(sequence_parallel=False), width, eps) for one in (fused, plain(CPU))]
        for norm in norms:
            torch.nn.init.constant_(norm.weight, 0.5)
        found, expected = (norm(x) for norm in norms)
        torch.testing.assert_close(found, expected)
        centred = x - x.mean(-1, keepdim=True) if name == "layer" else x
        by_hand = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        torch.testing.assert_close(found, by_hand * (1.5 if name == "rms_zero_centered" else 0.5))


def test_the_rest_is_what_plain_kernels_make(fused: Kernels) -> None:
    own, x = plain(CPU), _random(6, 2, 32)
    for name, activation in own.activation.items():
        gated = name.startswith("gated_")
        results = [one.bias_activation(x, _random(32), activation, gated) for one in (fused, own)]
        torch.testing.assert_close(*results)
    positions, turns = torch.arange(6).expand(2, -1), _random(4).abs()
    for interleaved in (False, True):
        results = [one.apply_rope(_random(6, 2, 3, 8), positions, turns, interleaved, 1.5) for one in (fused, own)]
        torch.testing.assert_close(*results)
    for dtype in (fp8.VALUES, fp8.GRADIENTS):
        (values, factor), (expected, its_factor) = (one.quantize(x.bfloat16(), dtype) for one in (fused, own))
        assert torch.equal(values.float(), expected.float())
        assert torch.equal(factor, its_factor)
