"""Measures how large activations are in the first steps of a model, for `pretrain scale coordinates`."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.data.stream import open_stream
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device, rendezvous
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.scaling.coordinates import Measured, Parametrization, Values, configs, mean_of
from pretrain.verify.scoring import without_noise

_ROWS = 4  # that activations are measured on
Activations = dict[str, list[Tensor]]


def measure(
    base: RunConfig, widths: list[int], steps: int, seeds: int, show: Callable[[str], None]
) -> list[Measured]:  # fmt: skip
    """Activations of `base` at all `widths`, standard and with muP, before the first step and after each of `steps`:
    means over so many initial weights."""
    device.install()
    store, found = HashStore(), []
    for width, parametrization, config in configs(base, widths, steps):
        show(f"width {width}, {parametrization}")
        of_seeds = []
        for seed in range(config.run.seed, config.run.seed + seeds):
            one = without_noise(config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})}))
            name = f"{width} {parametrization} {seed}"
            with rendezvous.temporary_process_group(store, name, 0, 1, config.health.timeout_s):
                of_seeds.append(_measured(one, width, parametrization, steps))
        found.append(mean_of(of_seeds))
    return found


def _measured(config: RunConfig, width: int, parametrization: Parametrization, steps: int) -> Measured:
    engine: Any = make_engine(config, plan_layout(config, 1))
    engine.initialise()
    source = open_stream(config)[0] if config.data.resolved_sources else SyntheticStream(config)
    count, rate = config.batch.sequences, config.optimizer.learning_rate
    rows = source.batch(0, min(_ROWS, count), 0, 1)
    first: Activations = {}
    sizes: Values = defaultdict(list)
    changes: Values = defaultdict(list)
    for step in range(steps + 1):
        if step:
            engine.train_step(source.batch((step - 1) * count, count, 0, 1), rate, step)
        now = _activations(engine, rows)
        first = first or now
        for name, values in now.items():
            sizes[name].append(_mean(values))
            changes[name].append(_mean([x - y for x, y in zip(values, first[name], strict=True)]))
    return Measured(width=width, parametrization=parametrization, sizes=dict(sizes), changes=dict(changes))


def _mean(values: list[Tensor]) -> float:
    total = sum(float(value.abs().double().sum()) for value in values)
    return total / sum(value.numel() for value in values)


def _activations(engine: Any, rows: Rows) -> Activations:
    """Activations by name in the order in which they are computed, of each row."""
    (network,) = engine.bare
    found: Activations = defaultdict(list)
    with _watched(network, found):
        logits, *_ = engine.logits(rows)
    return {**found, "logits": [logits]}


@contextmanager
def _watched(network: Any, found: Activations) -> Iterator[None]:
    """Inside, a forward pass adds what modules of `network` compute to `found`."""

    def keep(name: str) -> Callable[..., None]:
        def hook(_: Any, inputs: Any, output: Any) -> None:
            found[name].append(_without_bias(output).detach().clone())

        return hook

    def keep_scores(name: str, scale: float) -> Callable[..., None]:
        def hook(_: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            query, key = (x.detach() for x in inputs[:2])
            key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
            found[name].append(torch.einsum("sbhd,tbhd->bhst", query, key) * scale)

        return hook

    def keep_input(_: Any, inputs: Any) -> None:
        found["last states"].append(inputs[0].detach().clone())

    handles = [network.embedding.register_forward_hook(keep("embedding"))]
    for number, layer in enumerate(network.decoder.layers):
        core = layer.self_attention.core_attention
        handles += [
            core.register_forward_hook(keep_scores(f"scores {number}", core.scale)),
            layer.self_attention.register_forward_hook(keep(f"attention {number}")),
            layer.mlp.register_forward_hook(keep(f"feed-forward {number}")),
        ]
        if layer.reads_memory:
            handles.append(layer.cross_attention.register_forward_hook(keep(f"cross-attention {number}")))
    handles.append(network.head.register_forward_pre_hook(keep_input))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without_bias(output: Any) -> Tensor:
    """Output of a linear layer without its bias, which comes beside it, to be added later."""
    value: Tensor = output[0] if isinstance(output, tuple) else output
    return value
