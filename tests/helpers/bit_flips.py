"""Bits that flip while an engine computes a step, as on a bad machine: in a weight, an activation or a gradient."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.models.outputs import ModelOutputs

Where = Literal["weight", "weight for a moment", "activation", "gradient"]
WHERE: tuple[Where, ...] = ("weight", "weight for a moment", "activation", "gradient")
_INTEGERS = {2: torch.int16, 4: torch.int32}


def flip_bit(x: Tensor, draw: random.Random) -> None:
    """Flips one bit of one element, in place."""
    bits = x.detach().view(_INTEGERS[x.element_size()])
    place = tuple(draw.randrange(size) for size in bits.shape)
    bit = draw.randrange(8 * x.element_size())
    value = 1 << bit
    bits[place] ^= value - (1 << 8 * x.element_size()) if bit == 8 * x.element_size() - 1 else value


@contextmanager
def planted(engine: MegatronEngine, where: Where, draw: random.Random, in_pass: int) -> Iterator[list[Any]]:
    """Inside, one bit flips at one moment of the computation with the number `in_pass` (from 0) of a step. A weight
    stays flipped, or is as it was once the module that has it has run forward. Yields a list that is not empty from
    when the flip is due until it has happened."""
    count = -1
    compute = engine._compute_gradient
    flips: list[Any] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == in_pass:
            flips.append(None)
        return compute(*arguments, **options)

    engine._compute_gradient = counted  # type: ignore[method-assign]
    modules = [module for chunk in engine.bare for module in chunk.modules()]
    if where == "gradient":
        hook = _in_gradient(engine, draw, flips)
    elif where == "activation":
        module = draw.choice([one for one in modules if not list(one.children())])
        hook = module.register_forward_hook(lambda _module, _inputs, output: _in_output(output, draw, flips))
    else:
        hook = _in_weight(modules, draw, flips, stays=where == "weight")
    try:
        yield flips
    finally:
        hook.remove()
        del engine._compute_gradient


def _in_gradient(engine: MegatronEngine, draw: random.Random, flips: list[Any]) -> Any:
    """Flips a bit of the gradient of an output, of the first or a later micro-batch."""
    chunk = draw.choice(engine.bare)
    module = draw.choice([one for one in chunk.modules() if not list(one.children()) and list(one.parameters())])
    skipped = draw.randrange(2)
    seen = 0

    def noted(_module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(flipped)
                return

    def flipped(gradient: Tensor) -> Tensor | None:
        nonlocal seen
        if not flips:
            return None
        seen += 1
        if seen <= skipped:
            return None
        flips.clear()
        bad = gradient.clone()
        flip_bit(bad, draw)
        return bad

    return module.register_forward_hook(noted)


def _in_output(output: Any, draw: random.Random, flips: list[Any]) -> None:
    floats = [one for one in _tensors(output) if one.is_floating_point() and one.numel()]
    if flips and floats:
        flips.clear()
        flip_bit(floats[0].data, draw)


def _in_weight(modules: list[nn.Module], draw: random.Random, flips: list[Any], stays: bool) -> Any:
    module = draw.choice([one for one in modules if list(one.parameters(recurse=False))])
    weight = draw.choice(list(module.parameters(recurse=False)))
    before: list[Tensor] = []

    def begins(_module: nn.Module, _inputs: Any) -> None:
        if flips:
            flips.clear()
            before.append(weight.detach().clone())
            flip_bit(weight.data, draw)

    def ends(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        if before and not stays:
            weight.data.copy_(before.pop())

    first, second = module.register_forward_pre_hook(begins), module.register_forward_hook(ends)

    class Both:
        def remove(self) -> None:
            first.remove()
            second.remove()
            if before:
                weight.data.copy_(before.pop())

    return Both()


def _tensors(output: Any) -> list[Tensor]:
    """Tensors that a module puts out itself: what a judge says of logits is its head's, not the projection's."""
    found = output.judged if isinstance(output, ModelOutputs) else output if isinstance(output, tuple) else (output,)
    return [one for one in found if isinstance(one, Tensor)]
