"""Documents side by side in a row do not see each other, on one rank or many."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.config import TokenizerConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.recipes.causal import Causal
from pretrain.attention.packed import segments_of_documents
from pretrain.engine.megatron import micro_batches
from pretrain.evaluate.heldout import heldout_loss
from tests.helpers.breadth import slow
from tests.helpers.families import train_family
from tests.helpers.hf import randomise
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import LENGTH, VOCABULARY, build_engine, tiny_config

PACKED = {"packing": "best_fit"}
SIZES = (12, 9, 7)  # of the documents in a row; the rest is padding
BOUNDS = [(0, 12), (12, 21), (21, 28)]
TOLERANCE = 1e-5
_MODEL = tiny_config().model.model_dump()


def _row(changed: int | None = None) -> Rows:
    """One row; with the tokens and labels of one document, or of the padding (3), changed."""
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, VOCABULARY, (2, 1, LENGTH))
    documents = np.repeat([0, 1, 2, -1], [*SIZES, LENGTH - sum(SIZES)])[None]
    if changed is not None:
        there = documents == (-1 if changed == 3 else changed)
        tokens, labels = (np.where(there, (values + 17) % VOCABULARY, values) for values in (tokens, labels))
    return Rows(tokens, labels, (documents >= 0).astype(np.float32), documents=documents)


def _alone(document: int) -> Rows:
    """A document at the beginning of a row that is told nothing about documents."""
    begin, end = BOUNDS[document]
    row = _row()
    tokens, labels = (
        np.pad(values[:, begin:end], ((0, 0), (0, LENGTH + begin - end))) for values in (row.tokens, row.labels)
    )
    return Rows.of(tokens, labels)


def _everything_seen(documents_BS: np.ndarray) -> Any:
    return segments_of_documents(np.zeros_like(documents_BS))


def _positions_of_the_row(documents_BS: np.ndarray) -> np.ndarray:
    return np.arange(documents_BS.shape[1]) + np.zeros_like(documents_BS)


FAULTS = {
    "mask lost": (micro_batches, "segments_of_documents", _everything_seen),
    "positions of the row": (micro_batches, "positions_within", _positions_of_the_row),
}


def _scores(fault: str | None, precision: str) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Log probabilities [positions]: of the row, of the row with each part changed, of each document alone."""
    engine = build_engine(tiny_config(precision=precision), train=False)
    randomise(engine)
    with pytest.MonkeyPatch.context() as patch:
        if fault:
            patch.setattr(*FAULTS[fault])
        row, *others = (engine.score(_row(part)).log_probability[0] for part in (None, 0, 1, 2, 3))
    return row, others, [engine.score(_alone(document)).log_probability[0] for document in range(3)]


def seen(fault: str | None = None, precision: str = "fp32") -> tuple[bool, float]:
    """Whether a change elsewhere changes any bit of a document's scores; how far they are from those of it alone."""
    row, others, alone = run_ranks(1, _scores, fault, precision)[0]
    assert np.isfinite([row, *others]).all(), "padding too"
    leaks, apart = False, 0.0
    for document, (begin, end) in enumerate(BOUNDS):
        for part, other in enumerate(others):
            same = np.array_equal(other[begin:end], row[begin:end])
            assert not (same and part == document), "its own change shows"
            leaks |= part != document and not same
        apart = max(apart, float(np.abs(alone[document][: end - begin] - row[begin:end]).max()))
    return leaks, apart


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-6), ("bf16", 0.1)])
def test_a_document_s_scores_are_those_of_it_alone_whatever_its_neighbours_are(precision: str, bound: float) -> None:
    leaks, apart = seen(precision=precision)
    assert not leaks
    assert apart <= bound


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_would_show(fault: str) -> None:
    leaks, apart = seen(fault)
    assert leaks == (fault == "mask lost")
    assert apart > 1e-3


def _heldout_and_alone(directory: Path) -> tuple[float, int, float, int]:
    """(loss sum, labels) of the packed held-out split, and of its documents, one in each row."""
    dataset = Dataset(directory)
    tokenizer = dataset.tokenizer()
    engine = build_engine(tiny_config(model={**_MODEL, "vocabulary": tokenizer.vocabulary_size}), train=False)
    randomise(engine)
    packed = heldout_loss(engine, dataset, Causal(packing="best_fit").recipe(tokenizer, LENGTH), rank_rows=3)
    loss_sum, count = 0.0, 0
    for _, document in dataset.documents("validation"):
        ids = np.append(document, tokenizer.end_of_text)
        for begin in range(0, len(ids) - 1, LENGTH):
            piece = ids[begin : begin + LENGTH + 1]
            size = len(piece) - 1
            tokens, labels = (np.pad(part, (0, LENGTH - size))[None] for part in (piece[:-1], piece[1:]))
            loss_sum -= float(engine.score(Rows.of(tokens, labels)).log_probability[0, :size].sum(dtype=np.float64))
            count += size
    return packed.loss_sum, packed.token_count, loss_sum, count


def test_the_held_out_loss_is_the_sum_over_documents_scored_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["ab", "cde", "f", "gh"], random.integers(1, 40))) for _ in range(60)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    config = BuildConfig(
        input=str(tmp_path / "text.txt"),
        output=tmp_path / "set",
        txt_documents="paragraph",
        validation_fraction=0.2,
        tokenizer=TokenizerConfig(vocabulary=280),
    )
    assert build(config)
    for world in (1, 2):
        for loss_sum, token_count, expected, count in run_ranks(world, _heldout_and_alone, tmp_path / "set"):
            assert token_count == count > 100
            assert loss_sum == pytest.approx(expected, rel=1e-6)


LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "tp2cp2": {"tensor": 2, "context": 2},
    "pp2dp2+vp2": {"pipeline": 2, "virtual": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "tp2pp2+sp+recompute": {"tensor": 2, "pipeline": 2, "sequence": True, "recompute": "full"},
    "tp2dp2+sp+selective": {"tensor": 2, "sequence": True, "recompute": "selective"},
    "cp2pp2": {"context": 2, "pipeline": 2},
    "pp2dp2+zero3": {"pipeline": 2, "zero": 3, "zero_engine": "deepspeed"},
}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


def _curves(sections: dict[str, Any], parallels: list[dict[str, Any]]) -> list[Any]:
    found = []
    for parallel in parallels:
        found.append(train_family(build_engine(tiny_config(**sections, parallel=parallel)), range(1, 5)))
        meet_again()
    return found


def _departures(layouts: dict[str, dict[str, Any]], **sections: Any) -> dict[str, float]:
    """Largest difference of losses and gradient norms from one rank."""
    sections = {"objective": PACKED, **sections}
    (expected,) = run_ranks(1, _curves, sections, [{}])[0]
    curves = run_ranks(4, _curves, sections, list(layouts.values()))[0]
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3, "weights change"
    return {name: np.abs(np.array(curve) - expected).max() for name, curve in zip(layouts, curves, strict=True)}


@pytest.mark.parametrize("names", [["tp2cp2", "pp2dp2+vp2"], slow((["tp2pp2"],))], ids=["some", "others"])
def test_packed_rows_train_alike_on_every_layout(names: list[str]) -> None:
    departures = _departures({name: LAYOUTS[name] for name in names})
    assert max(departures.values()) <= TOLERANCE, departures


@pytest.mark.slow
def test_packed_rows_train_alike_on_more_layouts_with_dropout() -> None:
    departures = _departures(LAYOUTS | MORE, model={**_MODEL, **DROPOUT})
    assert max(departures.values()) <= TOLERANCE, departures


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_windows_of_masked_documents_train_alike_on_every_layout(family: str) -> None:
    llama = {"positions": {"name": "rotary"}, "family": "llama", "activation": "gated_silu", "norm_type": "rms"}
    model = {**_MODEL, **(llama if family == "llama" else DROPOUT)}
    departures = _departures(LAYOUTS | MORE, model=model, objective={"document_mask": True})
    assert max(departures.values()) <= TOLERANCE, departures


def test_what_passes_over_to_hugging_face_is_asked_without_documents() -> None:
    """A model trained on packed rows is checked without document numbers too, because each row holds one document."""
    from pretrain.interop.hf.gate import rows_for

    packed = rows_for(tiny_config(objective=PACKED))
    assert packed.documents is None
    assert packed.tokens.shape == (2, LENGTH)
