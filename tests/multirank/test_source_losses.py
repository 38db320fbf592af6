"""The training loss of each of several sources: sums and counts of its own labels over the global batch, the same on
any layout, however uneven its rows are on ranks and in micro-batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import TeacherWeights
from pretrain.models import output_linear
from tests.helpers.breadth import only
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine

NAMES = ["web", "tasks", "rare"]
SOURCE_OF_ROW = np.array([0, 1, 0, 0, 1, 0, 2, 0])
"""of the global batch; the first half has no row of the last source"""
SOURCES = {"data": {"sources": [{"path": f"unused/{name}"} for name in NAMES]}}
SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "t5": {},
    "bert": {"objective": {"z_loss": 0.01}},
    "distilled": {
        "model": {"binary_head": False, "attention": {}}, "objective": {"name": "masked", "next_sentence": False},
    },
}  # fmt: skip
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 2, tensor 2": (4, {"tensor": 2, "sequence": True}),
    "data 4": (4, {"zero": 1}),
    "pipeline 2": (2, {"pipeline": 2}),
    "context 2": (2, {"context": 2}),
    "zero 3": (2, {"zero": 3, "zero_engine": "deepspeed"}),
}


def _config(kind: str, parallel: dict[str, Any]) -> RunConfig:
    settings: dict[str, Any] = {"batch": {"micro_sequences": 2}, **SETTINGS[kind], **SOURCES}
    if kind != "distilled":
        return family_config(kind, parallel=parallel, **settings)
    config = family_config("bert", parallel=parallel, **settings)
    teacher = {"teacher": "unused", "teacher_model": config.model.model_dump(mode="json"), "kl_weight": 2.0}
    return RunConfig.model_validate(config.model_dump(mode="json") | {"distillation": teacher})


def _step(kind: str, parallel: dict[str, Any], at_once: int = 10**6) -> Any:
    """(loss, by source) of a step, and (sum, count) of the main term by source, from scores of the rows before it."""
    config = _config(kind, parallel)
    engine = build_engine(config)
    randomise(engine)
    if config.distillation.teacher is not None:
        engine.part(TeacherWeights).initialise()
    batch = SyntheticStream(config).batch(0, ROWS, engine.data_rank, engine.data_world)
    share = ROWS // engine.data_world
    source = SOURCE_OF_ROW[engine.data_rank * share :][:share]
    batch = replace(batch, source=source)
    scores = engine.score(batch).log_probability if engine.layout.world == 1 else np.zeros(batch.labels.shape)
    own = [source == number for number in range(len(NAMES))]
    expected = [(-(scores * batch.loss_mask)[rows].sum(), batch.loss_mask[rows].sum()) for rows in own]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_linear, "positions_at_once", lambda vocabulary: at_once)
        result = engine.train_step(batch, 1e-3, 1)
    main = result.terms["tokens"] if result.terms else (result.loss_sum, result.token_count)
    return main, dict(result.by_source), expected


@pytest.mark.parametrize("layout", only(["data 2, tensor 2", "pipeline 2"], LAYOUTS))
@pytest.mark.parametrize("kind", only(["bert"], SETTINGS))
def test_each_source_has_its_own_sum_and_count_on_any_layout(kind: str, layout: str) -> None:
    main, found, scored = run_ranks(1, _step, kind, {})[0]
    assert list(found) == NAMES
    assert len({count for _, count in found.values()}) == len(NAMES), "or counts that are mixed up go unseen"
    for (value, count), (expected, labels) in zip(found.values(), scored, strict=True):
        assert (pytest.approx(value, rel=1e-5), count) == (expected, labels)
    assert np.sum(list(found.values()), axis=0) == pytest.approx(main, rel=1e-6)
    world, parallel = LAYOUTS[layout]
    for few in (10**6, 10):
        for _, other, _ in run_ranks(world, _step, kind, parallel, few):
            assert other == {name: (pytest.approx(value, rel=1e-5), count) for name, (value, count) in found.items()}


def _without_a_source() -> Any:
    """The losses of a batch that has no row of the last source, and of one whose rows name no source."""
    engine = build_engine(_config("llama", {}))
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    alone = engine.train_step(replace(batch, source=np.zeros(ROWS, np.int64)), 0.0, 1)
    unnamed = engine.train_step(replace(batch, source=None), 0.0, 2)
    return alone.by_source, alone.loss_sum, alone.token_count, unnamed.by_source


def test_a_source_without_rows_has_no_labels() -> None:
    alone, loss_sum, count, unnamed = run_ranks(1, _without_a_source)[0]
    assert alone == {"web": (pytest.approx(loss_sum, rel=1e-6), count), "tasks": (0.0, 0), "rare": (0.0, 0)}
    assert unnamed == {}
