"""What a cache gives back is what it was given, in order, of the rows that go on."""

import torch

from pretrain.attention.cache import KeyValueCache


def _pair(positions: int, rows: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    key, value = torch.randn(2, positions, rows, 2, 4, generator=random)
    return key, value


def test_positions_follow_each_other() -> None:
    cache, given = KeyValueCache(64), []
    for number, positions in enumerate((3, 1, 1, 4, 1)):
        given.append(_pair(positions, 2, number))
        begin, cache.length = cache.length, cache.length + positions
        newest = torch.arange(begin, cache.length).expand(2, -1)
        for kind, found in enumerate(cache[5].extended(*given[-1], newest)):
            assert torch.equal(found, torch.cat([pair[kind] for pair in given]))


def test_rows_of_different_lengths_each_go_on_at_their_own_position() -> None:
    cache, first, lengths = KeyValueCache(64), _pair(5, 3, 0), torch.tensor([2, 5, 0])
    cache.length = 5
    cache[1].extended(*first, torch.arange(5).expand(3, -1))
    for number in (1, 2):
        newest = _pair(1, 3, number)
        cache.length, cache.ragged = int(lengths.max()) + 1, True
        found = cache[1].extended(*newest, lengths[:, None])
        for kind, values in enumerate(found):
            assert len(values) == cache.length
            for row, length in enumerate(lengths.tolist()):
                assert torch.equal(values[length, row], newest[kind][0, row])
                kept = min(length, [2, 5, 0][row])
                assert torch.equal(values[:kept, row], first[kind][:kept, row])
        lengths = lengths + 1


def test_rows_go_on_from_others() -> None:
    cache, first, second = KeyValueCache(64), _pair(2, 3, 0), _pair(1, 4, 1)
    cache[1].memory = memory = _pair(6, 3, 2)
    cache.length = 2
    cache[1].extended(*first, torch.arange(2).expand(3, -1))
    parents = torch.tensor([2, 2, 0, 1])
    cache.take(parents, memory_changes=True)
    cache.length = 3
    for kind, found in enumerate(cache[1].extended(*second, torch.full((4, 1), 2))):
        assert torch.equal(found, torch.cat([first[kind][:, parents], second[kind]]))
    assert cache[1].memory is not None
    assert torch.equal(cache[1].memory[0], memory[0][:, parents])
    cache.take(torch.tensor([1, 0, 2, 3]), memory_changes=False)  # both are of one input
    assert torch.equal(cache[1].memory[0], memory[0][:, parents])


def test_there_is_room_for_no_more_positions_than_the_model_has() -> None:
    """The room doubles, up to these. Positions beyond them, as relative positions allow, are stored too."""
    cache, rooms = KeyValueCache(10), []
    for number, positions in enumerate((3, 1, 3, 3, 2)):
        begin, cache.length = cache.length, cache.length + positions
        newest = torch.arange(begin, cache.length).expand(2, -1)
        key, _ = cache[1].extended(*_pair(positions, 2, number), newest)
        rooms.append(key.untyped_storage().nbytes() // key[0].nbytes)
    assert rooms == [6, 6, 10, 10, 12]
