"""Our GPT against Hugging Face's, written independently of it: the same logits, and the same training run.

Weights are random everywhere (biases and norms too), so that a term left out or put in the wrong place shows.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from tests.helpers.breadth import slow
from tests.helpers.hf import randomise, save
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, VOCABULARY, build_engine, rows, tiny_config, whole_state

TOLERANCE = 1e-4  # of logits of size 1 to 10, fp32
CURVE_TOLERANCE = 1e-5  # of losses, and relative of gradient norms
STEPS = 6
SPECIALS = Specials(pad=0, cls=0, sep=0, mask=0, start=0, end=1, sentinels=(), vocabulary=VOCABULARY)
DENSE = {"attention": {"pattern": ["dense"]}}


def _config(model: dict[str, Any] = DENSE, parallel: dict[str, Any] | None = None) -> RunConfig:
    tree = {**tiny_config().model.model_dump(), **model}
    return tiny_config(model=tree, parallel=parallel or {}, batch={"micro_sequences": 2})


def _tokens(vocabulary: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, vocabulary, (4, LENGTH))


def _rows(vocabulary: int) -> Rows:
    return Rows.of(_tokens(vocabulary), _tokens(vocabulary))


def _rate(step: int) -> float:
    return 1e-3 * (step + 1) / STEPS


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _export(config: RunConfig, tokenizer: Path, directory: Path) -> Any:
    """(what the gate measured, our logits)."""
    from pretrain.interop.hf.export import export

    engine = build_engine(config, train=False)
    randomise(engine)
    checkpoint = save(engine, config, tokenizer, directory.parent / "checkpoints")
    (logits,) = engine.logits(_rows(config.model.vocabulary or 0))
    return export(checkpoint, config, directory, lambda: engine).difference, logits.numpy()


def _logits(config: RunConfig, zero: str) -> Any:
    """(logits, weights)."""
    engine = build_engine(config, train=False)
    randomise(engine, zero)
    weights = {name.removeprefix("model/"): value for name, value in whole_state(engine).items()}
    return engine.logits(_rows(VOCABULARY))[0].numpy(), weights


def _train(config: RunConfig) -> list[tuple[float, float]]:
    engine = build_engine(config)
    randomise(engine)
    results = [engine.train_step(rows(engine, step, masked=True), _rate(step), step) for step in range(STEPS)]
    return [(result.loss_sum / result.token_count, result.grad_norm) for result in results]


# What Hugging Face says.


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(["abcd efgh ijkl " * 50], "wordpiece", 37).save(path)  # fewer ids than the model has
    return path


@pytest.fixture(scope="session")
def hf_curve(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The run of `_train`, in plain torch on an exported model: no decay on vectors, each batch at once."""
    from transformers import GPT2LMHeadModel

    directory = tmp_path_factory.mktemp("exported") / "hf"
    run_ranks(1, _export, _config(), tokenizer, directory)
    model = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32).train()
    optimizer, parameters = tiny_config().optimizer, list(model.parameters())
    adam = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.eps,
    )
    curve = []
    for step in range(STEPS):
        batch = rows(SimpleNamespace(data_rank=0, data_world=1), step, masked=True)
        tokens, labels, mask = map(torch.from_numpy, (batch.tokens, batch.labels, batch.loss_mask))
        losses = F.cross_entropy(model(tokens).logits.transpose(1, 2), labels, reduction="none")
        loss = (losses * mask).sum() / mask.sum()
        adam.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, optimizer.clip_norm)
        for group in adam.param_groups:
            group["lr"] = _rate(step)
        adam.step()
        curve.append((loss.item(), norm.item()))
    return np.array(curve)


def _hf_logits(model: nn.Module, weights: dict[str, Tensor], vocabulary: int) -> np.ndarray:
    """Logits of a Hugging Face model with these weights, all of which it must use."""
    found = model.load_state_dict(weights, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    with torch.no_grad():
        return model.eval()(torch.from_numpy(_tokens(vocabulary))).logits.numpy()


def _by_head(fused: Tensor) -> Tensor:
    """[heads * (q, k, v) * width, ...] -> [3, hidden, ...]."""
    model = _config().model
    return fused.view(model.heads, 3, model.dim_per_head, *fused.shape[1:]).transpose(0, 1).flatten(1, 2)


def _renamed(weights: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, Tensor]:
    """Each weight under its new name."""
    renamed = {}
    for name, value in weights.items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = torch.from_numpy(value)
    return renamed


# The tests.


@pytest.mark.parametrize("tie_word_embeddings", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("vocabulary", [250, 256], ids=["padded", "unpadded"])
def test_exported_gpt2_gives_our_logits(
    vocabulary: int, tie_word_embeddings: bool, tokenizer: Path, tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    config = _config({**DENSE, "vocabulary": vocabulary, "tie_word_embeddings": tie_word_embeddings})
    assert (config.model.padded_vocab_size > vocabulary) == (vocabulary == 250)
    difference, ours = run_ranks(1, _export, config, tokenizer, tmp_path / "hf")[0]
    assert 0 < difference <= TOLERANCE
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(torch.from_numpy(_tokens(vocabulary))).logits.numpy()
    assert ours.shape == theirs.shape == (4, LENGTH, vocabulary)
    assert np.abs(theirs).max() > 1, "logits of a size that makes the comparison mean something"
    assert np.abs(ours - theirs).max() <= TOLERANCE
    assert (tmp_path / "hf" / "original" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"norm": "post", **DENSE}, r"GPT-2 has model\.norm=pre"),
        ({"attention": {"pattern": ["dense", "banded"]}}, "dense attention only"),
        ({"head_dim": 8, **DENSE}, r"heads \* head_dim = hidden"),
    ],
)
def test_export_refuses_what_gpt2_cannot_express(model: dict[str, Any], reason: str) -> None:
    from pretrain.interop.hf.families.gpt2 import hf_config

    with pytest.raises(ConfigError, match=reason):
        hf_config(_config(model).model, SPECIALS)


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (1, {}),
        (4, {"tensor": 2, "pipeline": 2}),
        slow((8, {"tensor": 2, "pipeline": 2, "virtual": 2, "sequence": True})),
    ],
    ids=["one rank", "tensor 2 x pipeline 2", "tensor 2 x pipeline 2 x data 2 + virtual 2 + sequence"],
)
def test_training_run_is_that_of_hf_gpt2_and_torch_adamw(
    world: int, parallel: dict[str, Any], hf_curve: np.ndarray
) -> None:
    ours = np.array(run_ranks(world, _train, _config(parallel=parallel))[0])
    assert np.abs(ours[:, 0] - hf_curve[:, 0]).max() <= CURVE_TOLERANCE
    assert np.abs(ours[:, 1] / hf_curve[:, 1] - 1).max() <= CURVE_TOLERANCE
    assert hf_curve[-1, 0] < hf_curve[0, 0] - 0.2, "the run learns"
    assert hf_curve[:, 1].max() > tiny_config().optimizer.clip_norm, "clipping is at work"


def test_alternating_attention_gives_the_logits_of_gpt_neo() -> None:
    """GPT-Neo's `window_size` counts the keys seen, the query's own included, and it leaves scores unscaled."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    model = _config({}).model
    assert [pattern.name for pattern in model.attention.pattern] == ["dense", "banded"]
    ours, weights = run_ranks(1, _logits, _config({}), "linear_qkv.bias")[0]
    theirs = _renamed(
        weights,
        {
            "embedding.word_embeddings": "transformer.wte",
            "embedding.position_embeddings": "transformer.wpe",
            "decoder.layers": "transformer.h",
            "decoder.final_layernorm": "transformer.ln_f",
            "input_layernorm": "ln_1",
            "pre_mlp_layernorm": "ln_2",
            "self_attention.linear_proj": "attn.attention.out_proj",
            "linear_fc1": "c_fc",
            "linear_fc2": "c_proj",
        },
    )
    theirs["transformer.wte.weight"] = theirs["transformer.wte.weight"][:VOCABULARY]
    for layer in range(model.layers):
        prefix = f"transformer.h.{layer}"
        q, k, v = _by_head(theirs.pop(f"{prefix}.self_attention.linear_qkv.weight"))
        assert not theirs.pop(f"{prefix}.self_attention.linear_qkv.bias").any(), "GPT-Neo has none"
        for name, value in {"q": q / model.dim_per_head**0.5, "k": k, "v": v}.items():
            theirs[f"{prefix}.attn.attention.{name}_proj.weight"] = value
    config = GPTNeoConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=model.hidden,
        num_layers=model.layers,
        attention_types=[[["global", "local"], model.layers // 2]],
        num_heads=model.heads,
        intermediate_size=model.ffn_dim,
        window_size=model.attention.window,
        bos_token_id=None,
        eos_token_id=None,
        activation_function="gelu_new",
        layer_norm_epsilon=model.norm_eps,
        tie_word_embeddings=True,
    )
    assert np.abs(ours - _hf_logits(GPTNeoForCausalLM(config), theirs, VOCABULARY)).max() <= TOLERANCE


def test_post_norm_gives_the_logits_of_gpt_2018() -> None:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    model = _config({**DENSE, "norm": "post"}).model
    ours, weights = run_ranks(1, _logits, _config({**DENSE, "norm": "post"}), "nothing")[0]
    theirs = _renamed(
        weights,
        {
            "embedding.word_embeddings": "transformer.tokens_embed",
            "embedding.position_embeddings": "transformer.positions_embed",
            "decoder.layers": "transformer.h",
            "self_attn_bda.norm": "ln_1",
            "mlp_bda.norm": "ln_2",
            "self_attention.linear_qkv": "attn.c_attn",
            "self_attention.linear_proj": "attn.c_proj",
            "linear_fc1": "c_fc",
            "linear_fc2": "c_proj",
        },
    )
    theirs["transformer.tokens_embed.weight"] = theirs["transformer.tokens_embed.weight"][:VOCABULARY]
    for name, value in theirs.items():
        if "c_attn" in name:
            value = _by_head(value).flatten(0, 1)
        if ".c_" in name and value.ndim == 2:
            value = value.T  # Conv1D keeps [in, out]
        theirs[name] = value
    config = OpenAIGPTConfig(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=model.hidden,
        n_layer=model.layers,
        n_head=model.heads,
        afn="gelu",  # the tanh form, as ours: transformers maps it to gelu_new
        layer_norm_epsilon=model.norm_eps,
        tie_word_embeddings=True,
    )
    assert np.abs(ours - _hf_logits(OpenAIGPTLMHeadModel(config), theirs, VOCABULARY)).max() <= TOLERANCE
