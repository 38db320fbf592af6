"""What is compared of activations at several widths; measured on real models by `make test-slow`."""

import json
from pathlib import Path

import pytest

from pretrain.errors import ConfigError
from pretrain.scaling.coordinates import (
    PARAMETRIZATIONS,
    Measured,
    check_widths,
    configs,
    kinds,
    lines,
    mean_of,
    of,
    worst,
)
from pretrain.scaling.report.coordinates import draw
from pretrain.scaling.shape import at_width
from tests.helpers.command import run
from tests.helpers.tiny import tiny_config


def _measured() -> list[Measured]:
    """Attention of two layers that grows with the width under the standard parametrization; with muP, logits fall."""
    found = []
    for width in (64, 128):
        for kind, growth, fall in (("standard", width / 64, 1.0), ("muP", 1.1 if width > 64 else 1.0, 64 / width)):
            sizes = {"attention 0": [1.0, 2.0], "attention 1": [1.0, 3.0 * growth], "logits": [fall, 1.0]}
            found.append(Measured(width=width, parametrization=kind, sizes=sizes, changes=sizes))  # type: ignore[arg-type]
    return found


def test_the_worst_layer_and_step_count() -> None:
    standard, with_mup = (
        [one for one in _measured() if one.parametrization == parametrization]
        for parametrization in ("standard", "muP")
    )
    assert kinds(standard) == ["attention", "logits"]
    assert (worst(standard, "attention", 0), worst(with_mup, "attention", 0)) == pytest.approx((2.0, 1.1))
    assert (worst(with_mup, "logits", 0), worst(with_mup, "logits", 1)) == pytest.approx((2.0, 1.0))


def test_the_table_says_what_is_equal_after_the_last_step(tmp_path: Path) -> None:
    said = lines(_measured())
    assert said[0] == "largest / smallest mean |x| over the widths 64, 128, 1 steps"
    assert said[-1] == "muP: all within 1.5 times between widths after 1 steps"
    rows = [row.split() for row in said if row.startswith("attention")]
    assert rows == [["attention", "standard", "2.00", "2.00", "2.00"], ["attention", "muP", "1.10", "1.10", "1.10"]]
    assert draw(_measured(), tmp_path).stat().st_size > 1000


def test_figures_are_means_over_initial_weights() -> None:
    one, other = (
        Measured(width=8, parametrization="muP", sizes={"logits": [1.0, by]}, changes={"logits": [0.0, by]})
        for by in (1.0, 3.0)
    )
    assert mean_of([one, other]).sizes == {"logits": [1.0, 2.0]}
    assert mean_of([one, other]).changes == {"logits": [0.0, 2.0]}


def test_each_width_is_standard_and_with_mup() -> None:
    found = configs(tiny_config(parallel={"tensor": 2}), [128, 64], steps=3)
    assert [(width, kind) for width, kind, _ in found] == [
        (64, "standard"), (64, "muP"), (128, "standard"), (128, "muP"),
    ]  # fmt: skip
    wide = found[-1][2]
    assert (wide.model.hidden, wide.model.heads, wide.model.dim_per_head) == (128, 8, 16)
    assert (wide.model.base_width, wide.model.width_ratio, wide.parallel.tensor) == (64, 2.0, 1)
    assert found[-2][2].model.mup is None


def test_a_width_needs_whole_heads_and_another() -> None:
    with pytest.raises(ConfigError, match="use multiples of 16"):
        at_width(tiny_config().model, 72)
    with pytest.raises(ConfigError, match="name at least two"):
        check_widths([64, 64])


@pytest.mark.slow
def test_activations_of_real_models_keep_their_size_with_mup_and_grow_without(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sections = ["model.vocabulary=512", "batch.sequences=8", "batch.micro_sequences=8", "model.sequence_length=32"]
    shape = ["model.tie_word_embeddings=false", "model.mup={base_width: 32, zero_head: true}"]
    options = ["--widths", "32,128", "--steps", "2", "--seeds", "1", "--out", str(out), "optimizer.learning_rate=2e-3"]
    done = run("scale", "coordinates", "debug/ladder", *sections, *shape, *options)
    assert done.returncode == 0, done.stderr
    assert (out / "coordinates.png").is_file()
    found = [Measured(**one) for one in json.loads((out / "coordinates.json").read_text())["measured"]]
    standard, with_mup = (of(found, parametrization) for parametrization in PARAMETRIZATIONS)
    for kind in ("attention", "feed-forward"):
        assert worst(with_mup, kind, 0) < 1.7 < 3 < worst(standard, kind, 0)
    assert len(found[0].sizes["logits"]) == 3
