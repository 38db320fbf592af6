"""Keys and values projected along the sequence: against sums written out, and against dense attention where nothing is
projected; the same on every layout."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.classics.linformer.key import Linformer
from pretrain.classics.linformer.modules import SequenceProjection
from pretrain.config.model import Model
from pretrain.data.synthetic import SyntheticStream
from pretrain.model_spec.parameters import num_parameters
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine

TOLERANCE = 1e-5
SHARING = ("headwise", "key_value", "layerwise")
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "tp2cp2": {"tensor": 2, "context": 2},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "tp2dp2+sp+selective": {"tensor": 2, "sequence": True, "recompute": "selective"},
    "cp2pp2+full": {"context": 2, "pipeline": 2, "recompute": "full"},
    "pp2dp2+zero1+deepspeed": {"pipeline": 2, "zero": 1, "zero_engine": "deepspeed"},
    "tp2dp2+zero3": {"tensor": 2, "zero": 3, "zero_engine": "deepspeed"},
}


def _model(sharing: str | None, projected: int = 6, **more: Any) -> dict[str, Any]:
    if sharing is None:
        return more
    return {
        "attention": {"pattern": [{"name": "linformer", "projected_length": projected, "sharing": sharing}]},
        **more,
    }


def _projection(settings: Linformer) -> None:
    from megatron.core.process_groups_config import ProcessGroupCollection

    torch.manual_seed(0)
    module = SequenceProjection(settings, 7, ProcessGroupCollection.use_mpu_process_groups())
    for table in module.parameters():
        torch.nn.init.normal_(table)
    key, value = torch.randn(2, 5, 2, 3, 4)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = module(key, value, mask)
    tables = [module.keys, module.keys if module.values is None else module.values]
    for table, x, got in zip(tables, (key, value), found, strict=True):
        for row, length in enumerate((5, 3)):
            expected = sum(table[:, s, None, None] * x[s, row] for s in range(length))
            assert torch.allclose(got[:, row], expected, atol=1e-6)
    longer = torch.cat((key, torch.randn(2, 2, 3, 4)))
    padded = torch.cat((mask, torch.zeros(2, 2, dtype=torch.bool)), dim=1)
    assert torch.allclose(module(longer, longer, padded)[0], found[0], atol=1e-6), "padding adds nothing"


def _on_one_rank(sharing: str) -> None:
    build_engine(family_config("bert"), train=False)
    _projection(Linformer(projected_length=3, sharing=sharing))  # type: ignore[arg-type]


@pytest.mark.parametrize("sharing", ["headwise", "key_value"])
def test_a_key_is_the_sum_of_all_that_are_not_padding(sharing: str) -> None:
    run_ranks(1, _on_one_rank, sharing)


def _losses_with_identity() -> tuple[list[float], list[float]]:
    """(loss, gradient norms) with projections that change nothing, and of dense attention."""
    found = []
    for sharing in ("headwise", None):
        dense = family_config("bert", optimizer={"clip_norm": 0.0})
        length = dense.model.sequence_length
        config = family_config("bert", model=_model(sharing, length), optimizer={"clip_norm": 0.0})
        engine = build_engine(config)
        randomise(engine)
        for name, part in engine.state().items():
            if ".projection." in name and name.startswith("model/"):
                part.pieces[0].value.copy_(torch.eye(length))
        batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
        whole = {"attention_mask": np.ones_like(batch.attention_mask)} if batch.attention_mask is not None else {}
        result = engine.train_step(replace(batch, **whole), 0.0, 1)
        found.append([result.loss_sum / result.token_count])
        meet_again()
    return found[0], found[1]


def test_projections_that_change_nothing_leave_dense_attention() -> None:
    ours, dense = run_ranks(1, _losses_with_identity)[0]
    assert ours == pytest.approx(dense, abs=1e-6)


def _curves(model: dict[str, Any], parallels: list[dict[str, Any]]) -> list[Any]:
    found = []
    for parallel in parallels:
        found.append(train_family(build_engine(family_config("bert", model=model, parallel=parallel)), range(1, 5)))
        meet_again()
    return found


def _departures(layouts: dict[str, dict[str, Any]], sharing: str, **more: Any) -> dict[str, float]:
    """Largest difference of losses and gradient norms from one rank."""
    model = _model(sharing, **more)
    if sharing == "layerwise":  # a parameter of several chunks of a stage is refused, as ALBERT's layers are
        layouts = {name: parallel for name, parallel in layouts.items() if "virtual" not in parallel}
    (expected,) = run_ranks(1, _curves, model, [{}])[0]
    curves = run_ranks(4, _curves, model, list(layouts.values()))[0]
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3, "weights change"
    return {name: np.abs(np.array(curve) - expected).max() for name, curve in zip(layouts, curves, strict=True)}


@pytest.mark.slow
def test_a_shared_projection_trains_alike_on_every_layout() -> None:
    departures = _departures(LAYOUTS, "layerwise")
    assert max(departures.values()) <= TOLERANCE, departures


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARING)
def test_projections_train_alike_on_more_layouts_with_dropout(sharing: str) -> None:
    departures = _departures(LAYOUTS | MORE, sharing, dropout=0.1, attention_dropout=0.1)
    assert max(departures.values()) <= TOLERANCE, departures


def test_projections_are_counted() -> None:
    base = {"family": "bert", "layers": 12, "hidden": 768, "heads": 12, "sequence_length": 512, "vocabulary": 30522,
            "segments": 2, "binary_head": True}  # fmt: skip
    dense = num_parameters(Model.model_validate(base))
    extra = {
        sharing: num_parameters(Model.model_validate({**base, **_model(sharing, 256)})) - dense for sharing in SHARING
    }
    assert extra == {"headwise": 24 * 256 * 512, "key_value": 12 * 256 * 512, "layerwise": 256 * 512}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "gpt", **_model("headwise")}, "it is for encoders alone"),
        (_model("headwise", 13), "projected_length=13 is more than model.sequence_length=12"),
        (_model("headwise", positions="alibi"), "set model.positions to learned or sinusoidal"),
        ({"attention": {"pattern": ["dense", {"name": "linformer", "projected_length": 4}]}}, "is for all layers"),
    ],
)
def test_what_does_not_suit_it_is_refused(changes: dict[str, Any], message: str) -> None:
    base = {"family": "bert", "layers": 2, "hidden": 8, "heads": 2, "sequence_length": 12, "vocabulary": 50}
    with pytest.raises(ValueError, match=message):
        Model.model_validate({**base, **changes})
