"""`pretrain verify` on a model with each part that GPT has not: one run on every kind of layout, in fp32 and bf16."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.families import family_config, needs_one_chunk
from tests.helpers.planted import check_sound, table
from tests.helpers.recurrent import language_model_config, translator_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TWO_RANKS = ("tp2+sp", "pp2")
LAYOUTS = ("tp2pp2+sp", "pp2+vp2", "cp2", "tp2+sp", "dp2", "dp2+zero2", "pp2dp2+zero3")
PARTS = {
    "albert": "layers shared by name, narrow embeddings, order of segments",
    "roformer": "interleaved rotary positions in an encoder",
    "tlm": "languages, positions that begin anew",
    "t5": "distances in buckets, an encoder and a decoder",
    "bloom": "ALiBi",
    "ctrl": "control codes, logits with a bias",
    "gemma": "norms on both sides and of queries and keys, zero-centred, bases by layer, one head of keys",
    "gemma2": "caps of scores and logits, z-loss",
    "adaptive": "clusters of words, distances",
    "qwen2": "bias of queries and keys, SwiGLU, grouped heads, an output of its own",
}


@pytest.mark.parametrize("family", PARTS)
def test_a_model_with_these_parts_is_the_same_run(family: str, tmp_path: Path) -> None:
    config = family_config(family, precision="bf16")
    # Chunks of layers that share parameters would each have a copy.
    rows = table(config, tmp_path, [text for text in LAYOUTS if not (needs_one_chunk(family) and "vp" in text)])
    check_sound(rows)
    assert {row.job.config.precision for row in rows} == {"fp32", "bf16"}


# Other tests have each of these on more layouts, against one rank: test_shared_layers, test_packing.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    # But for ReLU: at its kink, rounding decides on whole gradients.
    "sentences left out": ("pegasus", {"model": {"activation": "gelu"}}),
    "one set of weights for an encoder and a decoder": ("t5", {"model": {"tie_encoder_decoder": True}}),
    "documents apart in plain windows": ("llama", {"objective": {"name": "causal", "document_mask": True}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_model_with_these_settings_is_the_same_run(name: str, tmp_path: Path) -> None:
    family, settings = SETTINGS[name]
    check_sound(table(family_config(family, **settings), tmp_path, TWO_RANKS))


def test_attention_that_adds_scores_is_the_same_run(tmp_path: Path) -> None:
    """From small weights, of which the gradients of some parameters are 1e-8 and less of those of others."""
    config = load(RunConfig, "rnn/bahdanau", ["precision=bf16"])
    check_sound(table(config, tmp_path, ["dp2+zero1"]))


@pytest.mark.parametrize("encodes", [False, True], ids=["language model", "translator"])
def test_recurrent_networks_are_the_same_run_on_data_ranks(encodes: bool, tmp_path: Path) -> None:
    config = (
        translator_config({"cell": "lstm"}, precision="bf16") if encodes else language_model_config(precision="bf16")
    )
    check_sound(table(config, tmp_path, ["dp2", "dp2+zero1", "dp2+zero2", "dp2+zero3"]))


def test_sources_with_objectives_of_their_own_are_the_same_run(tmp_path: Path) -> None:
    """On their own data; the loss of each source is compared, too."""
    path = str(build_dataset(make_documents(0, 80), tmp_path, "text").directory)
    denoisers = {"short": (3.0, 0.15), "long": (8.0, 0.15)}  # verify makes rows longer, and targets hardly
    sources = [
        {"path": path, "name": name, "objective": {"name": "span_corruption", "mean_span": span, "noise_density": part}}
        for name, (span, part) in denoisers.items()
    ]
    model = {"vocabulary": None, "target_length": 34}
    config = resolve(family_config("t5", model=model, data={"sources": sources}))
    check_sound(table(config, tmp_path, TWO_RANKS))


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_rows_that_continue_each_other_are_the_same_run(family: str, tmp_path: Path) -> None:
    """Rows are scored each by itself, whatever lies before them in training."""
    config = family_config(family, model={"memory_length": 20})
    check_sound(table(config, tmp_path, ["tp2pp2", "dp2+zero2"]))
