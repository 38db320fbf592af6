"""Faults of data: which samples a step sees, and what they say."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from data_pipeline import loader
from data_pipeline.order import blend, sample_order
from data_pipeline.recipes import base, masked, segments
from pretrain.engine.megatron import micro_batches
from tests.helpers import faults
from tests.museum.exhibit import Exhibit
from tests.museum.failing import Failing
from tests.museum.verifying import Verify


def documents_seen(patch: pytest.MonkeyPatch) -> None:
    segments = micro_batches.segments_of_documents
    patch.setattr(micro_batches, "segments_of_documents", lambda documents: segments(np.zeros_like(documents)))


def positions_of_the_row(patch: pytest.MonkeyPatch) -> None:
    def of_row(documents: Any) -> Any:
        return np.arange(documents.shape[1]) + np.zeros_like(documents)

    patch.setattr(micro_batches, "positions_within", of_row)


def order_of_the_first_epoch(patch: pytest.MonkeyPatch) -> None:
    keys = sample_order.round_keys
    patch.setattr(sample_order, "round_keys", lambda seed, source, epoch: keys(seed, source, 0))


def batches_of_every_worker(patch: pytest.MonkeyPatch) -> None:
    """Each thread of the loader reads all batches."""
    prefetched = loader._prefetched

    def repeated(make: Any, spans: Iterator[Any], workers: int, ahead: int) -> Iterator[Any]:
        return prefetched(make, (span for span in spans for _ in range(workers)), workers, ahead)

    patch.setattr(loader, "_prefetched", repeated)


def masks_of_the_first_epoch(patch: pytest.MonkeyPatch) -> None:
    generator = base.generator

    def without_epoch(seed: int, sample: np.ndarray) -> np.random.Generator:
        return generator(seed, sample * np.array([1, 0, 1]))

    for recipe in (masked, segments):
        patch.setattr(recipe, "generator", without_epoch)


def weights_rounded_to_tenths(patch: pytest.MonkeyPatch) -> None:
    units = blend._units

    def coarse(weights: Any) -> Any:
        return units([max(0.1 * (w > 0), round(10 * w / sum(weights)) / 10) for w in weights])

    patch.setattr(blend, "_units", coarse)


PACKED = {"packing": "best_fit"}
LOADER = "tests/unit/data_pipeline/test_loader.py"
PACKING = "tests/multirank/test_packing.py"
ALONE = f"{PACKING}::test_a_document_s_scores_are_those_of_it_alone_whatever_its_neighbours_are"

EXHIBITS = [
    Exhibit(
        group="data",
        title="Data ranks train on the same rows",
        threads=("stanford-crfm/mistral#194", "huggingface/datasets#5360"),
        effect="data parallelism is redundant",
        plant=faults.rows_of_another_rank,
        finder=Verify(layout="dp2", quantity="samples", stages=(0,)),
    ),
    Exhibit(
        group="data",
        title="Packed documents see each other on a later pipeline stage",
        threads=("PrimeIntellect-ai/prime-rl#3000",),
        effect="up to 0.78 of the next document's state (there through recurrent layers)",
        plant=faults.documents_lost,
        finder=Verify(layout="pp2", quantity="gradient", parameter=".", sections={"objective": PACKED}),
    ),
    Exhibit(
        group="data",
        title="Packed documents see each other",
        threads=("huggingface/nanoVLM#204", "alex-hh/profam#495"),
        effect="a document's outputs change by 0.46 with its neighbour",
        plant=documents_seen,
        finder=Failing(test=ALONE),
    ),
    Exhibit(
        group="data",
        title="Positions of packed documents are counted from the start of the row",
        threads=("huggingface/nanoVLM#201",),
        effect="not measured",
        plant=positions_of_the_row,
        finder=Failing(test=ALONE),
    ),
    Exhibit(
        group="data",
        title="Every epoch has the order of the first",
        threads=("huggingface/transformers#4398", "pytorch/pytorch#31771"),
        effect="not measured",
        plant=order_of_the_first_epoch,
        finder=Failing(test=f"{LOADER}::test_every_window_of_a_source_comes_once_an_epoch_in_another_order_each_time"),
    ),
    Exhibit(
        group="data",
        title="Every worker of a loader reads all of the data",
        threads=("huggingface/datasets#3423",),
        effect="each sample as often as there are workers",
        plant=batches_of_every_worker,
        finder=Failing(test=f"{LOADER}::test_ranks_together_get_the_one_global_order"),
    ),
    Exhibit(
        group="data",
        title="A sample is masked the same way in every epoch",
        threads=("pytorch/pytorch#5059", "facebookresearch/fairseq#1383"),
        effect="random numbers of the data repeat in every worker and epoch",
        plant=masks_of_the_first_epoch,
        finder=Failing(
            test="tests/unit/data_pipeline/recipes/test_masked.py::test_the_mask_is_another_one_in_each_epoch"
        ),
    ),
    Exhibit(
        group="data",
        title="Sources of a blend do not get their weights",
        threads=("bigscience-workshop/Megatron-DeepSpeed#97", "NVIDIA/Megatron-Energon#147"),
        effect="variation around the given weights, in the extreme case a whole source",
        plant=weights_rounded_to_tenths,
        finder=Failing(test="tests/unit/data_pipeline/order/test_blend.py"),
    ),
]
