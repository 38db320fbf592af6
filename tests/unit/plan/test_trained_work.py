"""What runs compute and hold that train a part of their model: counts by hand, and the planner's against those of the
engine, which a rehearsal makes (`pretrain rehearse`)."""

from typing import Any

import pytest

from pretrain.config.finetune import Finetune
from pretrain.config.load import load
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.layout.names import parse_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.gradients import PRODUCTS, model_gradients
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.rehearse.run import rehearse
from tests.helpers.breadth import slow
from tests.helpers.small_configs import small_model

H100 = find_device("h100")
MOST_OPERATIONS_OFF, MOST_MEMORY_OFF, MOST_TRAFFIC_OFF = 0.02, 0.03, 0.02
CLASSES = "objective={name: classification, labels: ['0', '1'], sequence_length: 128}"
BATCH = ("batch.sequences=16", "batch.micro_sequences=8", "batch.ramp=null", "train.steps=10", "train.tokens=null")
MODELS = {
    "bert": ("bert/base", "model.vocabulary=30522", "model.binary_head=false", "batch.short=null", CLASSES),
    "llama": (
        *("llama2/7b", "model.vocabulary=32000", "model.hidden=512", "model.heads=8", "model.ffn=1376"),
        *("model.sequence_length=128", CLASSES),
    ),
    "llama of tokens": (
        *("llama2/7b", "model.vocabulary=4000", "model.hidden=512", "model.heads=8", "model.ffn=1376"),
        "model.sequence_length=128",
    ),
    "mixture": (
        *("debug/experts", "model.vocabulary=4000", "model.hidden=256", "model.ffn=512", "model.sequence_length=512"),
        "model.experts={count: 16, top_k: 4, ffn: 256, dense_layers: 1, shared: 1}",
    ),
}
TRAINED = {
    "all": (),
    "head": ("finetune.train=head",),
    "top": ("finetune.train=top", "finetune.layers=2"),
    "lora": ("finetune.lora={rank: 8}",),
    "lora of one": ("finetune.lora={rank: 8, targets: [qkv]}",),
    "lora of a high rank": ("finetune.lora={rank: 64}",),
    "adapters": ("finetune.adapters={size: 64}",),
    "unfrozen by and by": ("finetune.unfreeze_steps=5",),
}
SEQUENCE = ("parallel.tensor=2", "parallel.sequence=true")
EVERY = [
    ("bert", "head", ()),
    ("llama", "lora", ()),
    *(slow(("bert", trained, ())) for trained in TRAINED if trained not in ("head", "lora of a high rank")),
    *(slow(("llama", trained, ())) for trained in TRAINED if trained not in ("lora", "lora of a high rank")),
    *(slow(("llama of tokens", trained, ())) for trained in ("lora", "adapters")),
    *(slow(("mixture", trained, ())) for trained in ("all", "top", "lora", "lora of one")),
    *(slow(("mixture", "lora", parallel)) for parallel in (SEQUENCE, ("parallel.tensor=2",), ("parallel.expert=2",))),
    *(slow((model, "lora of a high rank", ("parallel.tensor=2",))) for model in ("bert", "llama", "mixture")),
    *(slow((model, "lora of a high rank", SEQUENCE)) for model in ("bert", "llama", "mixture")),
    *(slow(("bert", trained, ("parallel.pipeline=2",))) for trained in ("head", "top", "lora", "adapters")),
    *(slow(("bert", trained, SEQUENCE)) for trained in ("head", "top", "lora", "adapters")),
]


@pytest.mark.parametrize(("model", "trained", "parallel"), EVERY)
def test_operations_and_peaks_are_those_of_the_engine(model: str, trained: str, parallel: tuple[str, ...]) -> None:
    name, *settings = MODELS[model]
    overrides = ["run.dir=unused", "precision=bf16", "model.layers=4", "parallel={}", *settings, *BATCH]
    config = load(RunConfig, name, [*overrides, *TRAINED[trained], *parallel])
    gpus = 2 if parallel else 1
    found = rehearse(config, gpus, ranks=("first", "last")[:gpus], device=H100, per_node=8)
    assert found.problems == []
    for rank, planned in zip(found.ranks, found.planned, strict=True):
        assert planned.flops == pytest.approx(sum(rank.flops.values()), rel=MOST_OPERATIONS_OFF)
        assert planned.peak_bytes == pytest.approx(rank.peak_bytes, rel=MOST_MEMORY_OFF)
        assert planned.parameters == rank.parameters
        if trained == "adapters":  # whose gradients are summed beside what is planned
            continue
        sent = planned.sent_bytes["tensor"]
        assert sent == pytest.approx(rank.sent_bytes.get("tensor", 0), rel=MOST_TRAFFIC_OFF)


# A layer of the small model has 48 weights of queries, keys and values, 16 of the projection behind attention, and
# twice 64 of the feed-forward layer; attention 36 multiply-adds for each position, and logits 40.
LAYER, ATTENTION, LOGITS = 48 + 16 + 64 + 64, 36, 40


def trained_by(finetune: dict[str, Any], **shape: Any) -> Model:
    """A model of three layers, or of this `shape`, in a run that trains a part of it."""
    return small_model(**{"layers": 3, **shape}).trained_by(Finetune(**finetune))


def per_token(finetune: dict[str, Any], **shape: Any) -> float:
    """Multiply-adds per token."""
    return training_flops_per_token(trained_by(finetune, **shape)) / 2


TOP = {"train": "top", "layers": 1}


class TestModelFlops:
    def test_of_everything_are_thrice_those_of_the_forward_pass(self) -> None:
        assert per_token({}) == 3 * (3 * (LAYER + ATTENTION) + LOGITS)

    def test_layers_below_the_lowest_trained_one_have_a_forward_pass_alone(self) -> None:
        # The norm before the first trained layer's queries is trained, so that all of its inputs have a gradient.
        assert per_token(TOP, tie_word_embeddings=False) == (2 + 3) * (LAYER + ATTENTION) + 3 * LOGITS

    def test_without_such_a_norm_the_input_of_queries_has_no_gradient(self) -> None:
        found = per_token(TOP, tie_word_embeddings=False, norm="post")
        assert found == (2 + 3) * (LAYER + ATTENTION) + 3 * LOGITS - 48

    def test_lora_needs_no_gradients_of_large_weights(self) -> None:
        # A of rank 2 multiplies 4 features and B makes 12 of them. In the lowest layer, nothing has a gradient before
        # the queries, keys and values.
        found = per_token({"lora": {"rank": 2, "targets": ["qkv"]}})
        of_lora = 3 * 2 * (3 * 4 + 3 * 12)
        assert found == 3 * (2 * LAYER + 3 * ATTENTION) + 2 * LOGITS + of_lora - 48 - 2 * 4

    def test_below_the_lowest_update_even_attention_has_no_backward_pass(self) -> None:
        found = per_token({"lora": {"rank": 2, "targets": ["fc2"]}})
        of_lora = 3 * 2 * (3 * 16 + 3 * 4)
        below = LAYER + 2 * ATTENTION + 2 * 16  # of the first layer
        assert found == 3 * (2 * LAYER + 3 * ATTENTION) + 2 * LOGITS + of_lora - below

    def test_each_expert_of_a_token_has_an_update_and_so_have_shared_ones(self) -> None:
        # Two of five experts with 6 features, and one of 6 for all: 18 features, of which gates and values are made.
        shape = {
            **{"family": "llama", "norm_type": "rms", "bias": False, "activation": "gated_silu", "ffn": 6},
            **{"positions": "rotary", "experts": {"count": 5, "top_k": 2, "shared": 1}},
        }
        of_one, of_two = (per_token({"lora": {"rank": rank, "targets": ["fc1", "fc2"]}}, **shape) for rank in (1, 2))
        of_layer = 3 * 3 * 4 + 3 * 36 + 3 * 18 + 3 * 3 * 4
        assert of_two - of_one == 3 * of_layer - 3 * 4  # nothing is trained before the first matrices

    def test_adapters_are_counted(self) -> None:
        # The first norm is trained. Two adapters in each of three layers have two matrices each, in three passes.
        found = per_token({"adapters": {"size": 5}})
        assert found == 3 * (2 * LAYER + 3 * ATTENTION) + 2 * LOGITS + 3 * 2 * 2 * 4 * 5 * 3


def test_an_encoder_that_is_frozen_gets_no_gradient_of_its_states() -> None:
    shape = {"family": "t5", "positions": "relative", "encoder_layers": 2, "target_length": 3, "layers": 2}
    first, last = (model_gradients(trained_by(TOP, **shape)).layers[number] for number in (0, -1))
    assert first.inputs == first.weights == frozenset()
    assert ("cross_kv" in last.inputs, "cross_kv" in last.weights) == (False, True)
    for layer in model_gradients(small_model(**shape)).layers[2:]:
        assert layer.inputs == set(PRODUCTS) - {"distances"}


def test_a_stage_sends_a_gradient_back_through_layers_that_are_frozen() -> None:
    """The head alone is trained: the first of two stages has no backward pass, and the last one that of inputs."""
    name, *settings = MODELS["llama"]
    config = load(RunConfig, name, ["run.dir=x", "model.layers=4", *settings, *BATCH, *TRAINED["head"]])
    layouts = [LayoutChoice(parse_layout(name, zero=0), 1, "none") for name in ("dp1", "pp2")]
    (stack,) = WorkloadBuilder(config, H100, 8).build(layouts).stacks
    assert stack.layers.tolist() == [[4, 0], [2, 2]]
    assert stack.backward_layers.tolist() == stack.with_input_gradient("fc1").tolist() == [[0, 0], [0, 2]]
    assert stack.trained_layers.tolist() == [[0, 0], [0, 0]]
