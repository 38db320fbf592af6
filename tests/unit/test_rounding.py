"""Stochastic rounding: the same bits for any part of a tensor, and right on average."""

import torch

from pretrain.random.rounding import random_bits, round_into

CPU = torch.device("cpu")


def test_any_box_has_the_bits_that_its_elements_have_in_the_whole_tensor() -> None:
    whole = random_bits("a", (0, 0, 0), (6, 5, 7), CPU).view(6, 5, 7, 4)
    torch.testing.assert_close(random_bits("a", (2, 1, 3), (2, 4, 4), CPU), whole[2:4, 1:5, 3:].reshape(-1, 4))
    assert (random_bits("b", (0, 0, 0), (6, 5, 7), CPU).view(6, 5, 7, 4) != whole).float().mean() > 0.99


def test_a_value_becomes_either_neighbour_and_itself_on_average() -> None:
    count = 1 << 16
    bits = random_bits("a", (0,), (count,), CPU)
    for value in (1.001, -1.001, 3e-30, 1 / 3, 1e-40, -2.0):
        rounded = torch.empty(count, dtype=torch.bfloat16)
        round_into(rounded, torch.full((count,), value), bits[:, 0])
        exact = float(torch.tensor(value))
        neighbours, found = sorted(set(rounded.tolist())), rounded.double()
        assert neighbours[0] <= exact <= neighbours[-1]
        assert len(neighbours) == (1 if exact == float(torch.tensor(value).bfloat16()) else 2)
        # Five times what chance moves the mean of so many roundings by.
        assert abs(float(found.mean()) - exact) <= 5 * float(found.std()) / count**0.5


def test_neighbours_are_next_to_each_other() -> None:
    rounded = torch.empty(1 << 10, dtype=torch.bfloat16)
    round_into(rounded, torch.full((1 << 10,), 1.001), random_bits("a", (0,), (1 << 10,), CPU)[:, 1])
    assert set(rounded.tolist()) == {1.0, 1.0078125}


def test_what_is_not_finite_and_zero_stay() -> None:
    values = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0])
    rounded = torch.empty(5, dtype=torch.bfloat16)
    for number in range(50):
        round_into(rounded, values.clone(), random_bits(str(number), (0,), (5,), CPU)[:, 0])
        torch.testing.assert_close(rounded.float(), values, rtol=0, atol=0, equal_nan=True)
