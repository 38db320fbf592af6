"""Attention biases by distance: their values, and gradients as sums over thousands of positions."""

import pytest
import torch

from pretrain.attention.relative import bias_of_distances, by_distance


def _biases_and_gradient(dtype: torch.dtype, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    table = torch.randn(32, 4, generator=draw).bfloat16().to(dtype).requires_grad_()
    received = torch.randn(1, 4, queries, keys, generator=draw).add(0.1).bfloat16().to(dtype)
    biases = by_distance(
        lambda distances: bias_of_distances(table, distances, both_ways=True, largest=128),
        queries, keys, torch.device("cpu"),
    )  # fmt: skip
    biases.backward(received)
    assert table.grad is not None
    return biases.detach(), table.grad


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 4)])
def test_each_key_has_the_bias_of_its_distance(queries: int, keys: int) -> None:
    biases, gradient = _biases_and_gradient(torch.float64, queries, keys)
    draw = torch.Generator().manual_seed(1)
    table = torch.randn(32, 4, generator=draw).bfloat16().double().requires_grad_()
    received = torch.randn(1, 4, queries, keys, generator=draw).add(0.1).bfloat16().double()
    places = torch.arange(keys)
    distances = places - places[keys - queries :, None]  # queries are the last of the keys' positions
    expected = bias_of_distances(table, distances, both_ways=True, largest=128).permute(2, 0, 1)[None]
    expected.backward(received)
    assert torch.equal(biases, expected)
    torch.testing.assert_close(gradient, table.grad)


def test_half_precision_sums_the_gradients_of_a_long_sequence_in_fp32() -> None:
    """torch's own kernels made it 63% off at 2,048 positions."""
    _, exact = _biases_and_gradient(torch.float64, 2048, 2048)
    _, found = _biases_and_gradient(torch.bfloat16, 2048, 2048)
    assert (found.double() - exact).norm() < 2.0**-8 * exact.norm()
