"""Latent attention by itself: DeepSeek's attention in fp64, and faults that `pretrain verify` finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.attention.core import AttentionInputs
from pretrain.errors import ConfigError, RunError
from pretrain.models import latent_attention, products
from pretrain.models.latent_attention import LatentSelfAttention
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise, with_weights_of
from tests.helpers.hf_folders import changed, tensors, write
from tests.helpers.planted import Fault, check_found, check_sound, of_fault, table
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, build_engine
from tests.multirank.test_hf import SPECIALS, VOCABULARY

LAYOUTS = ("tp2", "tp2+sp", "cp2", "pp2", "dp2+zero3", "tp2cp2+sp")


def _of_both(family: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Outputs of a layer's attention and all its gradients: ours and those of transformers, in fp64."""
    products._multiplies = lambda dtype: True  # as torch does fp64, in which no run computes
    config = family_config(family, model={"vocabulary": VOCABULARY})
    engine = build_engine(config)
    randomise(engine)
    theirs, links = with_weights_of(engine, config, SPECIALS)
    (ours,) = [
        layer
        for chunk in engine.chunks
        for layer in chunk.modules()
        if isinstance(layer, LatentSelfAttention) and layer.core_attention.heads.layer == 1
    ]
    other = theirs.model.layers[1].self_attn.double()
    rotary = theirs.model.rotary_emb
    ours = ours.double()
    x = torch.randn(LENGTH, 2, config.model.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH).expand(2, -1)
    pair = [x.clone().requires_grad_(), x.transpose(0, 1).clone().requires_grad_()]
    mask = torch.full((LENGTH, LENGTH), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    out, _ = ours(pair[0], AttentionInputs(positions_BS=positions))
    angles = rotary(pair[1], positions)
    expected, _ = other(pair[1], position_embeddings=angles, attention_mask=mask)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    (expected * weights.transpose(0, 1)).sum().backward()
    assert pair[0].grad is not None
    assert pair[1].grad is not None
    found = {"output": (out, expected.transpose(0, 1)), "input": (pair[0].grad, pair[1].grad.transpose(0, 1))}
    prefix = "decoder.layers.1.self_attention."
    named, others = dict(ours.named_parameters()), dict(other.named_parameters())
    for link in links:
        if (name := link.mcore_names[0]).startswith(prefix):
            gradient = others[link.hf_names[0].partition("self_attn.")[2]].grad
            assert gradient is not None
            own = named[name.removeprefix(prefix)].grad
            assert own is not None
            found[name] = own, gradient
    return {name: (a.detach().numpy(), b.detach().numpy()) for name, (a, b) in found.items()}


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_attention_is_that_of_transformers_in_fp64(family: str) -> None:
    """Both compute angles in fp32, and transformers norms."""
    found = run_ranks(1, _of_both, family)[0]
    assert len(found) == {"deepseek_v2": 7, "deepseek_v3": 9}[family]
    for name, (ours, theirs) in found.items():
        assert ours.dtype == np.float64
        assert np.abs(ours - theirs).max() <= 2e-6 * np.abs(theirs).max(), name


def _recomputed(family: str, recomputes: list[str]) -> list[tuple[list[Any], int]]:
    """Losses and gradient norms of two steps with each recomputation, and how often attention was computed."""
    found = []
    for recompute in recomputes:
        engine = build_engine(family_config(family, parallel={"tensor": 2, "sequence": True, "recompute": recompute}))
        computed = []
        for chunk in engine.chunks:
            for layer in chunk.modules():
                if isinstance(layer, LatentSelfAttention):
                    layer.core_attention.register_forward_hook(lambda *_, made=computed: made.append(1))
        found.append((train_family(engine, range(1, 3)), len(computed)))
    return found


@pytest.mark.parametrize("family", ["latent", slow("deepseek_v3")])
def test_what_is_recomputed_has_the_same_bits(family: str) -> None:
    """Two tensor ranks share the key of all heads and, with experts, their routes."""
    kinds = ["none", "selective", "full"]
    plain, *others = run_ranks(2, _recomputed, family, kinds)[0]
    for kind, (curve, computed) in zip(kinds[1:], others, strict=True):
        assert curve == plain[0], kind
        assert computed == 2 * plain[1] > 0, kind


def _part_of_the_key_s_gradient(patch: pytest.MonkeyPatch) -> None:
    """Each tensor rank keeps the gradient of its own heads."""
    patch.setattr(LatentSelfAttention, "_on_all_tensor_ranks", lambda self, x_SBR: x_SBR)


def _latents_of_its_own_positions(patch: pytest.MonkeyPatch) -> None:
    """Gradients of what makes latents are not summed over tensor ranks, which share positions."""
    made = latent_attention._replicated

    def unmarked(*arguments: Any) -> nn.Module:
        linear = made(*arguments)
        linear.weight.sequence_parallel = False
        return linear

    patch.setattr(latent_attention, "_replicated", unmarked)


def _positions_of_the_first_context_rank(patch: pytest.MonkeyPatch) -> None:
    """Every context rank turns its queries and keys as if its positions were the first ones."""
    made = LatentSelfAttention._query_key_value

    def from_zero(self: LatentSelfAttention, x_SBH: Tensor, positions_BS: Tensor) -> tuple[Tensor, ...]:
        return made(self, x_SBH, positions_BS - (positions_BS[:, :1] if dist.get_rank() else 0))

    patch.setattr(LatentSelfAttention, "_query_key_value", from_zero)


FAULTS: list[tuple[Fault, str]] = [
    (_part_of_the_key_s_gradient, "tp2"),
    (_latents_of_its_own_positions, "tp2+sp"),
    (_positions_of_the_first_context_rank, "cp2"),
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", ["latent", "deepseek_v3"])
def test_layouts_are_the_same_run_in_both_precisions(family: str, tmp_path: Path) -> None:
    check_sound(table(family_config(family, precision="bf16"), tmp_path, LAYOUTS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_faults_are_found(tmp_path: Path) -> None:
    rows = table(family_config("latent"), tmp_path, [layout for _, layout in FAULTS], FAULTS)
    check_sound(rows)
    for fault, layout in FAULTS:
        check_found(of_fault(rows, fault, layout), 1, "gradient")


def _imported(folders: dict[int, Path], root: Path) -> dict[int, list[str] | str]:
    """Warnings of each import, or the sentence that refuses it."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[int, list[str] | str] = {}
    for layers, folder in folders.items():
        warnings: list[str] = []
        try:
            config = read_config(folder, root / f"run-{layers}")
            import_hf(folder, config, build_empty(config), warnings.append)
            found[layers] = warnings
        except (ConfigError, RunError) as error:
            found[layers] = str(error)
    return found


@pytest.mark.slow
def test_a_layer_that_predicts_further_tokens_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """transformers ignores it in a model of 61 layers, and in others has no place for it."""

    def with_another(layers: int) -> Path:
        kind = "deepseek-61" if layers == 61 else "deepseek"
        name = f"model.layers.{layers}.enorm.weight"
        add = tensors(lambda values: values.update({name: torch.ones(32)}))
        return changed(write(kind, tmp_path / kind), tmp_path / f"with-{layers}", add)

    found = run_ranks(1, _imported, {layers: with_another(layers) for layers in (2, 61)}, tmp_path)[0]
    assert "has a tensor that the model has no place for, model.layers.2.enorm.weight" in found[2]
    (warning,) = found[61]
    assert warning.endswith("1 tensors of model.layers.61, which predicts further tokens")
