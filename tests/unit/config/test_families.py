"""What does not go together in a family's config is refused, and says what to do."""

from pathlib import Path

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout

DEBUG = Path(__file__).parents[3] / "configs" / "debug"
VOCABULARY = "model.vocabulary=1000"


def _load(family: str, *overrides: str) -> RunConfig:
    return load(RunConfig, DEBUG / f"{family}.yaml", [VOCABULARY, *overrides])


@pytest.mark.parametrize(
    ("family", "override", "message"),
    [
        ("gpt", "objective.name=masked", "does not suit model.family=gpt: use causal"),
        ("gpt", "model.activation=relu", None),
        ("gpt", "objective.packing=best_fit", None),
        ("gpt", "objective.document_mask=true", None),
        ("bert", "objective.packing=best_fit", "objective.packing=best_fit does nothing with objective.name=masked"),
        ("gpt", "model.norm_type=rms", "model.norm_type=rms is not in the gpt family"),
        ("gpt", "model.segments=2", "are BERT's"),
        ("gpt", "objective.noise_density=0.3", "objective.noise_density=0.3 does nothing with objective.name=causal"),
        ("bert", "objective={name: causal}", "use masked"),
        ("bert", "objective.mean_span=2", "objective.mean_span=2 does nothing with objective.name=masked"),
        ("bert", "objective.whole_words=true", None),
        ("bert", "model.binary_head=false", "set model.segments=2 and model.binary_head=true"),
        ("bert", "model.encoder_layers=2", "is for encoder-decoders"),
        ("bert", "model.attention.pattern=[banded]", None),
        ("gpt", "model.positions=relative", "model.positions=relative is not in the gpt family: use learned or rotary"),
        ("gpt", "model.positions=rotary", None),
        ("gpt", "model.positions={base: 5000}", "base=5000 does nothing with model.positions.name=learned"),
        ("gpt", "model.kv_heads=3", "model.kv_heads=3 does not divide model.heads=4"),
        ("t5", "model.kv_heads=2", "leave it out for an encoder-decoder"),
        ("bert", "model.positions=rotary", "is not in the bert family"),
        ("bert", "batch.short={sequence_length: 128, steps: 10}", "is to be shorter than model.sequence_length"),
        ("bert", "batch.short={sequence_length: 64, steps: 600}", "training ends within batch.short.steps=600"),
        ("bert", "batch.short={sequence_length: 64, steps: 599}", None),
        ("roberta", "objective.short_fraction=0.5", "does nothing with objective.next_sentence=False"),
        ("roberta", "model.segments=1", "adds the same to every token"),
        ("t5", "batch.short={sequence_length: 64, steps: 10}", "leave it out for an encoder-decoder"),
        ("t5", "objective.whole_words=true", "does nothing with objective.name=span_corruption"),
        ("t5", "model.positions=learned", None),
        ("t5", "model.init.std=0.1", "model.init.std=0.1 does nothing with model.init.name=t5"),
        ("t5", "model.positions.num_buckets=10", "a multiple of 4"),
        ("t5", "model.positions.max_distance=16", "more than half of them"),
        ("t5", "model.encoder_layers=0", "model.target_length=32 does nothing with model.encoder_layers=0"),
        ("transformer", "model.positions.offset=2", "does nothing with model.positions.name=sinusoidal"),
        ("transformer", "model.positions.num_buckets=16", "does nothing with model.positions.name=sinusoidal"),
        ("bart", "model.encoder_layers=0", "a decoder alone, is for the t5"),
        ("bart", "data={sources: [{path: a}], mixing: {name: equal}}", "data.mixing is between data.sources"),
        ("bart", "model.segments=2", "are BERT's"),
        ("bert", "objective={name: character_spans}", "predicts at positions that each row names"),
        ("gpt", "model.embedding_size=8", "is for the bert or roberta or roformer or electra or albert family"),
        ("gpt", "model.shared_layers=true", None),
        ("bert", "model.embedding_size=8", None),
        ("roformer", "model.positions=learned", "is not in the roformer family: use rotary"),
        ("bert", "objective={name: tlm}", None),
        ("bert", "objective={name: tlm, target_language: 2}", "set model.segments=3, or more"),
        ("bert", ["objective={name: tlm}", "model.positions=relative"], "uses distances in the row"),
        ("albert", "objective.next_sentence=true", "exclude each other: set only one"),
        ("albert", "objective.whole_words=false", "objective.ngrams=3 counts words: set objective.whole_words=true"),
        ("albert", "model.binary_head=false", "objective.sentence_order makes samples of two segments"),
    ],
)
def test_what_does_not_go_together_is_refused(family: str, override: str | list[str], message: str | None) -> None:
    overrides = [override] if isinstance(override, str) else override
    if message is None:
        _load(family, *overrides)
        return
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        _load(family, *overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parallel.sequence=true", "parallel.sequence is not supported with that: set it to false"),
        ("parallel.context=2", "parallel.context is not supported"),
        ("parallel.virtual=2", "parallel.virtual is not supported"),
        ("batch.short={sequence_length: 64, steps: 10}", "batch.short is not supported"),
        ("precision=fp8", "precision=fp8 is not supported"),
        ("data.sources=[{path: a}, {path: b}]", "data.sources with several entries is not supported"),
        ("objective.packing=best_fit", "best_fit"),
        ("model.norm=pre", "model.norm=pre: use post"),
    ],
)
def test_what_memory_across_rows_cannot_hold_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, "transformer-xl/enwik8", [override])


def test_memory_is_for_a_family_whose_positions_are_distances() -> None:
    with pytest.raises(ConfigError, match=r"model\.memory_length=8 is for the transformer_xl or xlnet family"):
        _load("gpt", "model.memory_length=8")


def test_rotary_positions_turn_pairs() -> None:
    with pytest.raises(ConfigError, match="a head of 3 has an odd one"):
        _load("gpt", "model.positions=rotary", "model.head_dim=3")


def test_packed_rows_are_for_the_gpt_family() -> None:
    alone = ["model.encoder_layers=0", "model.target_length=null", "objective={name: causal, packing: best_fit}"]
    with pytest.raises(
        ConfigError, match=r"objective\.packing=best_fit is for the gpt or llama or ctrl family: leave it out for t5"
    ):
        _load("t5", *alone)


def test_targets_are_as_long_as_the_objective_makes_them() -> None:
    assert _load("t5", "model.sequence_length=512", "model.target_length=null").model.target_length == 114
    assert _load("bart", "model.target_length=null").model.target_length == 128


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("t5", ["parallel.pipeline=8"], r"2 \+ 2 layers cannot be divided into 8 chunks"),
        ("t5", ["model.target_length=31", "parallel.sequence=true"], r"does not divide model.target_length \(31\)"),
        ("bert", ["batch.short={sequence_length: 63, steps: 1}", "parallel.context=2"], "batch.short.sequence_length"),
        ("t5", ["model.ffn_dropout=0.1", "model.ffn=250"], "a multiple of 4 features of model.ffn=250"),
    ],
)
def test_a_layout_that_a_family_cannot_have_is_refused(family: str, overrides: list[str], message: str) -> None:
    config = _load(family, *overrides)
    with pytest.raises(ConfigError, match=message):
        plan_layout(config, config.parallel.model_ranks)
