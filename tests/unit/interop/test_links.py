"""What goes to Hugging Face's files, and how much of it is held at a time."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pretrain.interop.hf.export import write_tensors
from pretrain.interop.hf.links import Link, by_head, gated, one, rows, same, transposed
from tests.helpers.families import family_config
from tests.helpers.tiny import tiny_config

MODEL = family_config("bert", model={"vocabulary": 250}).model
GROUPED = tiny_config(model={"kv_heads": 2}).model
"""4 heads of 16, of which two and two share a key"""


class Held(np.ndarray):
    """An array that can be watched."""


class Reader:
    """In place of a checkpoint: notes how many of its tensors are alive when it is asked for the next."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes, self.made, self.most = shapes, list[weakref.ref[Held]](), 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def __call__(self, name: str) -> np.ndarray:
        gc.collect()
        self.most = max(self.most, sum(made() is not None for made in self.made) + 1)
        size = self.shapes[name]
        value = np.arange(np.prod(size), dtype=np.float32).reshape(size).view(Held)
        self.made.append(weakref.ref(value))
        return value


def test_one_parameter_is_held_at_a_time_and_the_file_is_safetensors(tmp_path: Path) -> None:
    width = MODEL.hidden
    shapes = {f"w{n}": (3 * width, width) for n in range(20)} | {"b": (5,)}
    chain = [one(f"w{n}", (f"a{n}", f"c{n}"), lambda x: [x[:2].T, x[2:]], torch.cat) for n in range(20)]
    reader = Reader(shapes)
    gc.freeze()  # what other tests have left need not be looked through for each tensor
    write_tensors(tmp_path / "model.safetensors", iter([*chain, same("b", "bias")]), reader)
    gc.unfreeze()
    assert reader.most <= 2, "the one that is written, and the next"
    found = load_file(tmp_path / "model.safetensors")
    assert len(found) == 41
    whole = torch.arange(3 * width * width, dtype=torch.float32).view(3 * width, width)
    assert torch.equal(found["a7"], whole[:2].T)
    assert torch.equal(found["c7"], whole[2:])


LINKS: dict[str, tuple[Callable[[], Link], tuple[int, ...]]] = {
    "same": (lambda: same("x", "y"), (6, 4)),
    "transposed": (lambda: transposed("x", "y"), (6, 4)),
    "rows": (lambda: rows("x", "y", MODEL), (256, 4)),
    "by_head": (lambda: next(by_head("x", ["q", "k", "v"], MODEL)), (3 * MODEL.hidden, 4)),
    "by_group": (lambda: next(by_head("x", ["q", "k", "v"], GROUPED)), (2 * MODEL.hidden, 4)),
    "keys": (lambda: next(by_head("x", ["k", "v"], GROUPED)), (MODEL.hidden, 4)),
    "gated": (lambda: gated("x", "g", "v"), (8, 4)),
}


@pytest.mark.parametrize("kind", LINKS)
def test_back_undoes_out(kind: str) -> None:
    make, shape = LINKS[kind]
    link, value = make(), torch.randn(shape)
    if kind == "rows":
        value[250:] = 0  # rows that pad the vocabulary
    there = link.out(value)
    assert len(there) == len(link.hf_names)
    assert torch.equal(link.back(*there)[0], value)
    assert [x.shape for x in link.out(torch.empty(shape, device="meta"))] == [x.shape for x in there]


def test_queries_of_a_group_come_before_their_key_and_value() -> None:
    link = next(by_head("x", ["q", "k", "v"], GROUPED))
    heads = torch.arange(8).repeat_interleave(16)  # as they lie here: q q k v, q q k v
    q, k, v = (part.view(-1, 16)[:, 0].tolist() for part in link.out(heads))
    assert (q, k, v) == ([0, 1, 4, 5], [2, 6], [3, 7])
