"""DeBERTa v3's step: replaced-token detection with gradient-disentangled embeddings, against encoders of transformers,
and on any layout that of one rank."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.model_spec.generator import PREFIX, added_tables
from pretrain.objectives.replaced_tokens import ReplacedTokensLoss
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES
from tests.helpers.hf import randomise, save, tokenizer_for
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine, tiny_config
from tests.multirank.test_replaced_tokens import LAYOUTS, OF_TOKENIZER, VOCABULARY, assert_the_step_of_one_rank

SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)
WORDS = "embedding.word_embeddings.weight"


def v3_config(parallel: dict[str, Any], vocabulary: int = VOCABULARY, decoder: int = 2, **objective: Any) -> RunConfig:
    """A model of four layers, and its generator of two, each with a table of its own."""
    model = FAMILIES["deberta-decoder"]["model"] | {"vocabulary": vocabulary, "mask_decoder_layers": decoder}
    return tiny_config(
        model=model,
        generator={"hidden": 64, "heads": 4, "layers": 2, "embedding_sharing": "gdes"},
        objective={"name": "replaced_tokens", "masked_fraction": 1.0} | objective,
        parallel=parallel,
        optimizer={"clip_norm": 0.0},
    )


@pytest.mark.parametrize(
    "layout", [name if name == "tp2+sp-pp2" else slow(name) for name in LAYOUTS if "vp" not in name]
)
def test_every_layout_makes_the_step_of_one_rank(layout: str) -> None:
    assert_the_step_of_one_rank(LAYOUTS[layout], v3_config)


def _gradients(weight: float, sharing: str) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The gradients of the tables; the largest values of tables at the start."""
    config = v3_config({}, replaced_weight=weight)
    assert config.generator is not None
    shared = config.generator.model_copy(update={"embedding_sharing": sharing})
    config = config.model_copy(update={"generator": shared})
    engine = build_engine(config)
    state = engine.state()
    tables = {name: state[f"model/{name}"] for name in (WORDS, PREFIX + WORDS) if f"model/{name}" in state}
    largest = {name: float(part.pieces[0].value.abs().max()) for name, part in tables.items()}
    engine.keeps_gradients = True
    engine.train_step(SyntheticStream(config).batch(0, ROWS, 0, 1), 0.0, 1)
    gradients = engine.gradients()
    return {name: gradients[f"gradient/{name}"].pieces[0].value.numpy().copy() for name in tables}, largest


@pytest.mark.slow
def test_no_gradient_of_detection_reaches_the_generator_s_table() -> None:
    """It is the same to the bit at any weight of that loss; in a shared table it is not."""
    (some, start), (more, _) = (run_ranks(1, _gradients, weight, "gdes")[0] for weight in (50.0, 500.0))
    assert start[WORDS] == 0
    assert start[PREFIX + WORDS] > 0
    assert np.array_equal(some[PREFIX + WORDS], more[PREFIX + WORDS])
    assert np.abs(some[PREFIX + WORDS]).max() > 0
    assert np.allclose(10 * some[WORDS], more[WORDS], rtol=1e-3, atol=1e-6 * np.abs(more[WORDS]).max())
    (shared, _), (stronger, _) = (run_ranks(1, _gradients, weight, "shared")[0] for weight in (50.0, 500.0))
    assert not np.array_equal(shared[WORDS], stronger[WORDS])


def _parity() -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, float]:
    """(each gradient, ours and theirs; our loss; theirs), without a mask decoder, which transformers lacks."""
    from transformers import DebertaV2ForMaskedLM

    from pretrain.classics.deberta import hf

    config = v3_config({}, decoder=0)
    assert config.generator_model is not None
    engine = build_engine(config)
    randomise(engine)
    state = {name.removeprefix("model/"): part.pieces[0].value.clone() for name, part in engine.state().items()}
    encoder = config.model.model_copy(update={"task_head": None})
    of_generator, of_model = (
        DebertaV2ForMaskedLM(hf.v2_config(model, SPECIALS)).eval() for model in (config.generator_model, encoder)
    )
    links_of = {PREFIX: config.generator_model, "": encoder}
    pairs = []  # (our name, link, their parameter, index in the link)
    for (prefix, model), theirs in zip(links_of.items(), (of_generator, of_model), strict=True):
        named = dict(theirs.named_parameters(remove_duplicate=False))
        for link in hf.links(model):
            ours = prefix + link.mcore_names[0]
            if not prefix and ours.startswith(("head.", "output_layer.")):  # of a language model
                continue
            values = state[ours] + state[PREFIX + WORDS] if ours == WORDS else state[ours]
            for index, (name, weight) in enumerate(zip(link.hf_names, link.out(values), strict=True)):
                with torch.no_grad():
                    named[name].copy_(weight)
                pairs.append((ours, link, named[name], index))
    engine.keeps_gradients = True
    samples: list[torch.Tensor] = []
    read = ReplacedTokensLoss.read_samples
    ReplacedTokensLoss.read_samples = lambda self, batch, tokens: (  # type: ignore[method-assign]
        samples.append(tokens.clone()) or read(self, batch, tokens)  # type: ignore[func-returns-value]
    )
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    result = engine.train_step(batch, 0.0, 1)
    ReplacedTokensLoss.read_samples = read  # type: ignore[method-assign]
    tokens, labels = torch.cat(samples), torch.from_numpy(batch.labels)
    assert batch.attention_mask is not None
    shown, asked = torch.from_numpy(batch.attention_mask), torch.from_numpy(batch.loss_mask).bool()
    logits = of_generator(input_ids=torch.from_numpy(batch.tokens), attention_mask=shown.long()).logits
    states = of_model.deberta(input_ids=tokens, attention_mask=shown.long()).last_hidden_state
    head = {name: state[f"head.{name}"].clone().requires_grad_() for name in (
        "norm.weight", "norm.bias", "dense.weight", "dense.bias", "detector.weight", "detector.bias",
    )}  # fmt: skip
    x = states + states[:, :1]
    x = F.layer_norm(x, x.shape[-1:], head["norm.weight"], head["norm.bias"], config.model.norm_eps)
    x = F.gelu(F.linear(x, head["dense.weight"], head["dense.bias"]))
    found = F.linear(x, head["detector.weight"], head["detector.bias"])[..., 0]
    replaced = (tokens != labels).float()
    loss = F.cross_entropy(logits[asked], labels[asked])
    loss = loss + 50 * F.binary_cross_entropy_with_logits(found[shown], replaced[shown])
    loss.backward()
    gradients, compared = engine.gradients(), {}
    for ours, link, parameter, index in pairs:
        own = link.out(gradients[f"gradient/{ours}"].pieces[0].value)[index].clone()
        theirs = parameter.grad.clone()
        if ours.endswith(WORDS):
            own[SPECIALS.pad] = theirs[SPECIALS.pad] = 0  # theirs learns nothing from reading padding
        compared[f"{ours}:{index}"] = own.numpy(), theirs.numpy()
    for name, weight in head.items():
        compared[name] = gradients[f"gradient/head.{name}"].pieces[0].value.numpy(), weight.grad.numpy()
    return compared, result.loss_sum / result.token_count, loss.item()


def test_loss_and_gradients_are_those_of_transformers_encoders() -> None:
    pairs, loss, expected = run_ranks(1, _parity)[0]
    assert loss == pytest.approx(expected, rel=1e-5)
    assert len(pairs) > 100
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs.values())
    for name, (ours, theirs) in pairs.items():
        assert np.abs(ours - theirs).max() <= 2e-5 * largest, name


def _save(tokenizer: Path, directory: Path) -> None:
    config = v3_config({"tensor": 2, "pipeline": 2}, OF_TOKENIZER)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _opened(checkpoint: Path) -> dict[str, Any]:
    """The table of each model as it is scored, and the sum of what the checkpoint has."""
    from pretrain.checkpoint.files import Manifest
    from pretrain.checkpoint.state import scoring_config
    from pretrain.checkpoint.store import read_full_tensor
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf.export import MergedTensors

    manifest, found = Manifest.read(checkpoint), {}
    for model in ("discriminator", "generator"):
        config = scoring_config(checkpoint, [], True, model)
        state = build_scorer(config, checkpoint).state()
        found[model] = state[f"model/{WORDS}"].pieces[0].value.numpy().copy()
        found[f"exported {model}"] = MergedTensors(checkpoint, manifest, config)(WORDS)
    for name in (WORDS, PREFIX + WORDS):
        found[name] = read_full_tensor(checkpoint, manifest, f"model/{name}")
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Result of a run on four ranks."""
    directory = tmp_path_factory.mktemp("v3")
    run_ranks(4, _save, tokenizer_for("bert", directory), directory / "checkpoints")
    return directory / "checkpoints" / "step-00000000"


def test_a_model_that_leaves_the_run_has_the_sum_of_both_tables(checkpoint: Path) -> None:
    found = run_ranks(1, _opened, checkpoint)[0]
    total = found[WORDS] + found[PREFIX + WORDS]
    assert np.abs(found[WORDS]).max() > 0
    for suffix in ("", "exported "):
        assert np.array_equal(found[f"{suffix}discriminator"], total)
        assert np.array_equal(found[f"{suffix}generator"], found[PREFIX + WORDS])
    assert added_tables(v3_config({})) == {WORDS: PREFIX + WORDS}


def _exported(checkpoint: Path, directory: Path) -> dict[str, Any]:
    """How far the states of each model's encoder are from transformers', its class there, what an export with its head
    is refused for, and the encoder's weights that come back."""
    from transformers import AutoModel

    from pretrain.checkpoint.state import scoring_config
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[str, Any] = {}
    for model in ("discriminator", "generator"):
        config = scoring_config(checkpoint, [], True, model)
        scorer = partial(build_scorer, config, checkpoint)
        with pytest.raises(ConfigError) as refused:
            export(checkpoint, config, directory / model, scorer)
        agreement = export(checkpoint, config, directory / model, scorer, encoder=True)
        difference = agreement.difference if "hidden state difference" in str(agreement) else float("nan")
        theirs = AutoModel.from_pretrained(directory / model)
        card = (directory / model / "README.md").read_text()
        assert "its encoder exported for transformers' `DebertaV2Model`" in card
        assert "largest hidden state difference" in card
        imported, warnings = read_config(directory / model, directory / f"{model}-run"), []
        engine = build_empty(imported)
        import_hf(directory / model, imported, engine, warnings.append)
        words = engine.state()[f"model/{WORDS}"].pieces[0].value.numpy().copy()
        found[model] = difference, type(theirs).__name__, str(refused.value), words, warnings
    return found


@pytest.mark.slow
def test_encoders_are_exported_without_the_heads_that_transformers_lacks(checkpoint: Path, tmp_path: Path) -> None:
    tables = run_ranks(1, _opened, checkpoint)[0]
    found = run_ranks(1, _exported, checkpoint, tmp_path)[0]
    for model, (difference, name, refused, words, warnings) in found.items():
        assert 0 < difference < 1e-4
        assert name == "DebertaV2Model"
        assert "its encoder can (export --encoder)" in refused
        assert np.array_equal(words[:OF_TOKENIZER], tables[model][:OF_TOKENIZER])
        assert any("lm_predictions" in warning for warning in warnings), "they are initialized randomly"
    assert "replaced token detection" in found["discriminator"][2]
    assert "model.mask_decoder_layers=2" in found["generator"][2]
