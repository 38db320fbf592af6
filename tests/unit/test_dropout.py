"""Which elements drop out depends on seed, step, row, site and position alone, and looks like chance."""

import hashlib
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.random.dropout import Dropout, key

SHAPE = (4, 6, 32, 50)  # rows, heads, queries, keys
PINNED_DIGEST = "a206d545e424f53d"


def site(
    name: str = "layer", probability: float = 0.5, shared_by: tuple[str, ...] = ("tensor",), **axes: tuple[int, int]
) -> Dropout:
    dropout = Dropout(probability, shared_by)
    dropout.place(name, {"tensor": (0, 1), "context": (0, 1), **axes})
    return dropout


def mask(dropout: Dropout, first_row: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    torch.manual_seed((key("7/3") + first_row) % 2**64)
    return dropout.drawn(torch.Size(shape), torch.device("cpu")).mask(torch.Size(shape))


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_as_many_drop_out_as_asked_and_the_rest_make_up_for_them(probability: float) -> None:
    dropout, x = site(probability=probability), torch.ones(8, 4, 128, 256, requires_grad=True)
    out = dropout(x)
    share = (out == 0).double().mean().item()
    assert abs(share - probability) < 4 * math.sqrt(probability * (1 - probability) / x.numel()) + 2**-16
    assert out[out != 0].unique().tolist() == pytest.approx(
        [1 / (1 - probability)], abs=2**-16 / (1 - probability) ** 2
    )
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out), "what drops out forward drops out backward"


def test_nothing_happens_in_evaluation_or_at_probability_zero() -> None:
    x = torch.ones(2, 3, 4)
    assert site().eval()(x) is x
    assert site(probability=0.0)(x) is x


def test_every_coordinate_gives_other_elements() -> None:
    """Masks that differ in one coordinate are independent: correlations within four standard errors of zero."""
    whole = mask(site())
    others = {
        "site": mask(site("other")),
        "row": mask(site(), first_row=1),
        "far row": mask(site(), first_row=1 << 40),
        "head": mask(site(tensor=(1, 2))),
    }
    torch.manual_seed(key("7/4"))
    others["step"] = site().drawn(whole.shape, whole.device).mask(whole.shape)
    torch.manual_seed(key("8/3"))
    others["seed"] = site().drawn(whole.shape, whole.device).mask(whole.shape)
    for one, other in combinations({"itself": whole, **others}.items(), 2):
        if {one[0], other[0]} != {"itself", "row"}:  # these share rows, as they should: see below
            assert_independent(one[1], other[1], (one[0], other[0]))
    assert_independent(whole[0], others["row"][0], "row")


@pytest.mark.parametrize("dim", range(len(SHAPE)))
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_neighbours_are_independent(dim: int, lag: int) -> None:
    whole = mask(site(), shape=(8, 8, 64, 64))
    count = whole.shape[dim] - lag
    assert_independent(whole.narrow(dim, 0, count), whole.narrow(dim, lag, count), (dim, lag))


def assert_independent(one: Tensor, other: Tensor, what: object) -> None:
    pair = torch.stack([one.flatten(), other.flatten()]).double()
    assert abs(torch.corrcoef(pair)[0, 1]) < 4 / math.sqrt(one.numel()), what


def test_any_micro_batch_and_any_rank_has_its_part_of_the_whole() -> None:
    whole = mask(site())
    for first in range(3):
        assert torch.equal(mask(site(), first, (2, *SHAPE[1:])), whole[first : first + 2])
    for rank in range(3):
        assert torch.equal(mask(site(tensor=(rank, 3)), shape=(4, 2, 32, 50)), whole[:, 2 * rank : 2 * rank + 2])
        for inner in range(2):
            axes = {"tensor": (rank, 3), "context": (inner, 2)}
            found = mask(site(shared_by=("tensor", "context"), **axes), shape=(4, 1, 32, 50))
            assert torch.equal(found, whole[:, [2 * rank + inner]]), "context ranks share a tensor rank's part"
    assert torch.equal(mask(site(shared_by=(), tensor=(1, 2))), whole), "tensor ranks that share nothing agree"


def test_hash_is_splitmix64() -> None:
    """Against unsigned arithmetic, which numpy has: the bits of one row's third head, query 5, keys 8 to 11."""

    def mix(x: np.uint64) -> np.uint64:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    with np.errstate(over="ignore"):
        word = mix(np.uint64((key("7/3") + key("layer") + 1) % 2**64))
        for coordinate in (2, 5, 2):
            word = mix(word + np.uint64(0x9E3779B97F4A7C15) * np.uint64(coordinate))
    lanes = [((int(word) >> shift & 0xFFFF) + 2**15) % 2**16 for shift in (0, 16, 32, 48)]
    for probability in (0.1, 0.3, 0.5, 0.7, 0.9):
        expected = [lane < int(probability * 2**16) for lane in lanes]
        assert mask(site(probability=probability))[1, 2, 5, 8:12].tolist() == expected


def test_elements_are_those_of_every_earlier_version() -> None:
    """A pinned digest: another one would change every run that goes on with dropout."""
    found = mask(site(probability=0.1), first_row=5).numpy()
    assert hashlib.sha256(np.packbits(found).tobytes()).hexdigest()[:16] == PINNED_DIGEST
