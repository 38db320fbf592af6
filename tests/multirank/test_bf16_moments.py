"""Adam with moments in bf16 on several layouts: against the rule in fp64, rounded by the same random bits on whole
tensors, and across a restart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pretrain.checkpoint import store
from pretrain.checkpoint.files import Manifest
from pretrain.config.run_config import RunConfig
from pretrain.random.rounding import random_bits
from tests.helpers.breadth import slow
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, save, tiny_config, train, whole, whole_state

SAVED, STEPS = 2, 4
MOMENTS = ("exp_avg", "exp_avg_sq")
DEEPSPEED = {"zero_engine": "deepspeed"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "data 2, zero 0": (2, {"zero": 0}),
    "data 2, zero 1": (2, {"zero": 1}),
    "data 2, DeepSpeed's zero 1": (2, {"zero": 1, **DEEPSPEED}),
    "data 2, zero 2": (2, {"zero": 2, **DEEPSPEED}),
    "data 2, zero 3, offloaded": (2, {"zero": 3, "offload_optimizer": True, **DEEPSPEED}),
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "pipeline 2": (2, {"pipeline": 2}),
    "tensor 2 x data 2, zero 1": (4, {"tensor": 2}),
}
QUICK = ("data 2, zero 1", "data 2, zero 2")


def _config(moments: str, parallel: dict[str, Any], **optimizer: Any) -> RunConfig:
    settings = {"learning_rate": 1e-3, "eps": 1e-6, "beta2": 0.999, "moments": moments, **optimizer}
    return tiny_config(optimizer=settings, parallel=parallel)


def _run(layout: str, root: Path, optimizer: dict[str, Any]) -> tuple[Any, ...]:
    """(state at the start, whole gradient of each step, state at the end, the same after a restart in the middle, types
    of moments)"""
    engine = build_engine(_config("bf16", LAYOUTS[layout][1], **optimizer))
    engine.keeps_gradients = True
    initial, gradients = whole_state(engine), []
    for step in range(STEPS):
        train(engine, range(step, step + 1))
        gradients.append(whole(engine.gradients()))
        if step == SAVED - 1:
            save(root, engine, SAVED)
    final = whole_state(engine)
    again = build_engine(_config("bf16", LAYOUTS[layout][1], **optimizer))
    store.load(root / f"step-{SAVED:08d}", again.state())
    again.state_loaded(SAVED)
    train(again, range(SAVED, STEPS))
    types = {piece.value.dtype for name, p in engine.state().items() if name.startswith("exp") for piece in p.pieces}
    return initial, gradients, final, whole_state(again), types


def _rounded(x: Tensor, bits: Tensor) -> Tensor:
    """`x` in fp64 rounded to 8 bits, up in size where its fraction and the random one make 1."""
    _, exponent = torch.frexp(x)
    unit = torch.ldexp(torch.ones_like(x), exponent - 8)
    fraction = (bits.long() & 0xFFFF).view(x.shape) / 65536
    return (x.abs() / unit + fraction).floor() * unit * x.sign()


def _reference(config: RunConfig, initial: dict[str, np.ndarray], gradients: list[Any]) -> dict[str, Tensor]:
    settings, found = config.optimizer, {}
    for name in (name.removeprefix("model/") for name in initial if name.startswith("model/")):
        w = torch.from_numpy(initial[f"model/{name}"]).double()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, gradient in enumerate(gradients, 1):
            g = torch.from_numpy(gradient[f"gradient/{name}"]).double()
            decay = settings.weight_decay if w.dim() > 1 else 0.0
            if settings.name == "adam":
                g, decay = g + decay * w, 0.0
            m = settings.beta1 * m + (1 - settings.beta1) * g
            v = settings.beta2 * v + (1 - settings.beta2) * g**2
            root = (v / (1 - settings.beta2**t)) ** 0.5 + settings.eps
            step = m / (1 - settings.beta1**t) / root
            w = w * (1 - settings.learning_rate * decay) - settings.learning_rate * step
            bits = random_bits(f"moments/{config.run.seed}/{t}/{name}", (0,) * w.dim(), w.shape, torch.device("cpu"))
            m, v = _rounded(m, bits[:, 0]), _rounded(v, bits[:, 1])
        found |= {f"model/{name}": w, f"exp_avg/{name}": m, f"exp_avg_sq/{name}": v}
    return found


@pytest.mark.parametrize("layout", [name if name in QUICK else slow(name) for name in LAYOUTS])
@pytest.mark.parametrize(
    "optimizer", [{}, slow({"name": "adam"}), slow({"beta2": 0.95})], ids=["adamw", "adam", "beta2 of 0.95"]
)
def test_moments_are_rounded_alike_on_every_layout_and_a_restart_changes_nothing(
    layout: str, optimizer: dict[str, Any], tmp_path: Path
) -> None:
    initial, gradients, final, resumed, types = run_ranks(LAYOUTS[layout][0], _run, layout, tmp_path, optimizer)[0]
    assert types == {torch.bfloat16}
    expected = _reference(_config("bf16", {}, **optimizer), initial, gradients)
    assert final.keys() == expected.keys() == initial.keys() == resumed.keys()
    different = dict.fromkeys(("model", *MOMENTS), 0)
    for name, value in expected.items():
        np.testing.assert_array_equal(final[name], resumed[name], err_msg=name)
        apart, largest = (torch.from_numpy(final[name]).double() - value).abs(), float(value.abs().max())
        # Rounding of fp32 takes a few values across the random threshold, which changes later steps of their weights by
        # up to a hundredth.
        kind, of_fp32 = name.split("/")[0], 3e-6 * largest
        different[kind] += int((apart > (of_fp32 if kind == "model" else 0)).sum())
        assert float(apart.max()) <= (of_fp32 + 0.02 * 1e-3 if kind == "model" else largest / 64), name
    values = sum(value.numel() for name, value in expected.items() if name.startswith("model/"))
    assert all(count <= values / 1000 for count in different.values()), different


def _converted(root: Path) -> Any:
    """(state that moments in bf16 were saved from, the same loaded by fp32 and another layout, its state a step later,
    the same loaded by bf16)"""
    narrow = build_engine(_config("bf16", {"zero": 1}))
    train(narrow, range(SAVED))
    save(root / "narrow", narrow, SAVED)
    wide = build_engine(_config("fp32", {"tensor": 2}))
    store.load(root / "narrow" / f"step-{SAVED:08d}", wide.state())
    wide.state_loaded(SAVED)
    loaded = whole_state(wide)
    train(wide, range(SAVED, SAVED + 1))
    save(root / "wide", wide, SAVED)
    stepped, before = whole_state(wide), whole_state(narrow)
    store.load(root / "wide" / f"step-{SAVED:08d}", narrow.state())
    meet_again()
    return before, loaded, stepped, whole_state(narrow)


def test_checkpoints_of_either_precision_are_read_by_the_other_on_another_layout(tmp_path: Path) -> None:
    before, loaded, stepped, back = run_ranks(2, _converted, tmp_path)[0]
    for name, value in before.items():
        np.testing.assert_array_equal(value, loaded[name], err_msg=name)
        wide = torch.from_numpy(stepped[name])
        expected = wide if name.startswith("model/") else wide.bfloat16().float()
        np.testing.assert_array_equal(back[name], expected.numpy(), err_msg=name)
    narrow, wide = (Manifest.read(tmp_path / kind / f"step-{SAVED:08d}") for kind in ("narrow", "wide"))
    for manifest, dtype in ((narrow, "BF16"), (wide, "F32")):
        for name, stored in manifest.tensors.items():
            assert {box.dtype for box in stored.boxes} == {"F32" if name.startswith("model/") else dtype}
    sizes = [sum(d.bytes for n, d in m.files.items() if n.startswith("tensors")) for m in (narrow, wide)]
    assert 0.6 < sizes[0] / sizes[1] < 0.75  # headers are a part of files this small
