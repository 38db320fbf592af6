"""What a cache gives back is what it was given, in order, of the rows that go on."""

import torch

from pretrain.attention.cache import KeyValueCache


def _pair(positions: int, rows: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    key, value = torch.randn(2, positions, rows, 2, 4, generator=random)
    return key, value


def test_positions_follow_each_other() -> None:
    cache, given = KeyValueCache(), []
    for number, positions in enumerate((3, 1, 1, 4, 1)):
        given.append(_pair(positions, 2, number))
        for kind, found in enumerate(cache[5].extended(*given[-1])):
            assert torch.equal(found, torch.cat([pair[kind] for pair in given]))
    assert cache[5].length == 10


def test_rows_go_on_from_others() -> None:
    cache, first, second = KeyValueCache(), _pair(2, 3, 0), _pair(1, 4, 1)
    cache[1].memory = memory = _pair(6, 3, 2)
    cache[1].extended(*first)
    parents = torch.tensor([2, 2, 0, 1])
    cache.take(parents, memory_changes=True)
    for kind, found in enumerate(cache[1].extended(*second)):
        assert torch.equal(found, torch.cat([first[kind][:, parents], second[kind]]))
    assert cache[1].memory is not None
    assert torch.equal(cache[1].memory[0], memory[0][:, parents])
    cache.take(torch.tensor([1, 0, 2, 3]), memory_changes=False)  # both are of one input
    assert torch.equal(cache[1].memory[0], memory[0][:, parents])
