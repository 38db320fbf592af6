"""CANINE: transformers' class has the same states and gradients, with and without padding; predictions of characters
read what was predicted before, and nothing that comes later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.tokenizers.characters import CharacterTokenizer
from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine


def _config(family: str, parallel: dict[str, Any] | None = None, **model: Any) -> RunConfig:
    config = family_config(family, model=model, parallel=parallel or {})
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.0})})


def _against_transformers(padded: bool, length: int, asked: bool) -> tuple[float, float, dict[str, float]]:
    """(our loss, theirs, the largest difference of the gradient of each of their tensors)"""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, from_numpy
    from transformers import CanineModel

    from data_pipeline.tokenizers.specials import Specials
    from pretrain.classics.canine.hf import CANINE
    from pretrain.data.synthetic import SyntheticStream
    from tests.helpers.hf import randomise

    config = _asked("canine", asked, sequence_length=length)
    engine = build_engine(config)
    randomise(engine)
    specials = Specials(pad=0, cls=1, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=97)
    state, links = engine.state(), list(CANINE.links(config.model))
    theirs = CanineModel(CANINE.hf_config(config.model, specials)).eval()

    def ours(name: str) -> Tensor:
        return state[f"model/{name}"].pieces[0].value

    weights = {}
    for link in links:
        weights |= dict(zip(link.hf_names, (x.clone() for x in link.out(*map(ours, link.mcore_names))), strict=True))
    left = theirs.load_state_dict({name.removeprefix("canine."): x for name, x in weights.items()}, strict=False)
    assert left.missing_keys == ([] if asked else ["pooler.dense.weight", "pooler.dense.bias"])
    assert not left.unexpected_keys
    batch = SyntheticStream(config).batch(0, 8, 0, 1)
    assert batch.attention_mask is not None
    if not padded:
        batch = replace(batch, attention_mask=np.ones_like(batch.attention_mask))
    engine.keeps_gradients = True
    result = engine.train_step(batch, 0.0, 1)
    shown = from_numpy(batch.attention_mask).long()
    kinds = None if batch.segments is None else from_numpy(batch.segments)
    states, pooled = theirs(from_numpy(batch.tokens), attention_mask=shown, token_type_ids=kinds)[:2]
    places = from_numpy(batch.label_positions)
    picked = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
    dense = F.gelu(F.linear(picked, ours("head.transform.weight"), ours("head.transform.bias")))
    normed = F.layer_norm(dense, dense.shape[-1:], ours("head.norm.weight"), ours("head.norm.bias"), 1e-12)
    logits = F.linear(normed, ours("output_layer.weight"), ours("output_layer.bias"))[..., : config.model.vocab_size]
    losses = F.cross_entropy(logits.transpose(1, 2), from_numpy(batch.labels), reduction="none")
    mask = from_numpy(batch.loss_mask)
    loss = (losses * mask).sum() / mask.sum()
    if asked:
        answers = F.linear(pooled, ours("head.next_sentence.weight"), ours("head.next_sentence.bias"))
        assert batch.next_sentence is not None
        loss = loss + F.cross_entropy(answers, from_numpy(batch.next_sentence))
    loss.backward()
    gradients, named = engine.gradients(), dict(theirs.named_parameters())
    off = {}
    for link in links:
        own = link.out(*(gradients[f"gradient/{name}"].pieces[0].value for name in link.mcore_names))
        for name, gradient in zip(link.hf_names, own, strict=True):
            expected = named[name.removeprefix("canine.")].grad
            off[name] = float(torch.abs(gradient - expected).max())
    return result.loss_sum / result.token_count, loss.item(), off


# Blocks are of 8.
@pytest.mark.parametrize(("padded", "length", "asked"), [(True, 32, False), (False, 44, False), (True, 44, True)])
def test_states_and_gradients_are_those_of_transformers_class(padded: bool, length: int, asked: bool) -> None:
    """Also of its pooler, with which a model `asked` about the next sentence answers."""
    ours, theirs, off = run_ranks(1, _against_transformers, padded, length, asked)[0]
    assert ("canine.pooler.dense.weight" in off) == asked
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert len(off) > 80
    assert max(off.values()) <= 1e-5, max(off, key=lambda name: off[name])


def _scores_of_changed_labels() -> tuple[np.ndarray, np.ndarray]:
    from pretrain.data.synthetic import SyntheticStream

    config = _config("canine-c")
    engine = build_engine(config, train=False)
    batch = SyntheticStream(config).batch(0, 8, 0, 1)
    before = engine.logits(batch)[0].numpy()
    labels = batch.labels.copy()
    labels[:, 2] = (labels[:, 2] + 1) % config.model.vocab_size
    return before, engine.logits(replace(batch, labels=labels))[0].numpy()


def test_a_prediction_reads_those_before_it_alone() -> None:
    before, after = run_ranks(1, _scores_of_changed_labels)[0]
    changed = np.abs(before - after).max(axis=(0, 2))
    assert changed[:3].max() == 0, "a prediction reads itself, or one after it"
    assert changed[3:].min() > 0, "a prediction reads all before it"


def _asked(family: str, asked: bool, parallel: dict[str, Any] | None = None, **model: Any) -> RunConfig:
    """A model with the head of the question about the next sentence, if it is `asked`."""
    config = _config(family, parallel, binary_head=asked, **model)
    objective = config.objective.model_copy(update={"next_sentence": True} if asked else {})
    return config.model_copy(update={"objective": objective})


def _save(family: str, asked: bool, tokenizer: Path, directory: Path) -> None:
    from tests.helpers.hf import randomise, save

    engine = build_engine(_asked(family, asked, {"tensor": 2, "pipeline": 2}))
    randomise(engine)
    save(engine, engine.config, tokenizer, directory)


def _there_and_back(family: str, asked: bool, checkpoint: Path, exported: Path, run: Path) -> Any:
    """(differences at both gates, the weights that came back, warnings)"""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config
    from tests.helpers.tiny import whole_state

    config, warnings = _asked(family, asked), list[str]()
    there = export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    imported = read_config(exported, run)
    engine = build_empty(imported)
    back = import_hf(exported, imported, engine, warnings.append)
    return there, back, whole_state(engine), warnings


@pytest.mark.parametrize("asked", [slow(False), True], ids=["", "with its pooler"])
def test_an_encoder_goes_to_transformers_class_and_back(asked: bool, tmp_path: Path) -> None:
    from tests.helpers.hf import value

    CharacterTokenizer().save(tmp_path / "characters.json")
    run_ranks(4, _save, "canine-c", asked, tmp_path / "characters.json", tmp_path / "checkpoints")
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    there, back, state, warnings = run_ranks(
        1, _there_and_back, "canine-c", asked, checkpoint, tmp_path / "exported", tmp_path / "imported"
    )[0]
    assert max(there.difference, back.difference) < 1e-4
    assert there.compared == back.compared == "hidden state"
    assert "head that it was pretrained with" in warnings[-1]
    drawn: tuple[str, ...] = ("model/output_layer.", "model/characters.known.")
    drawn += tuple(
        f"model/head.{name}." for name in ("transform", "norm", "next_sentence", *(() if asked else ("pooler",)))
    )
    assert not asked or any(name.startswith("model/head.pooler.") for name in state)
    for name, found in state.items():
        expected = value(name.removeprefix("model/"), found.shape)
        assert np.array_equal(found, expected) != name.startswith(drawn), name


def test_the_hash_functions_are_those_of_transformers() -> None:
    """Configs of tests have few of the sixteen."""
    from transformers.models.canine import modeling_canine

    from pretrain.classics.canine import modules

    assert list(modules._PRIMES) == modeling_canine._PRIMES


def test_an_exported_tokenizer_has_a_mask_that_no_text_spells(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from pretrain.interop.hf.registry import hf_family_of
    from pretrain.interop.hf.tokenizer import write

    config, tokenizer = family_config("canine"), CharacterTokenizer()
    described = hf_family_of(config.model).hf_config(config.model, config.objective.specials(tokenizer))
    described.save_pretrained(tmp_path)
    write(tokenizer, config.objective, config.model, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).mask_token_id == 0xE003
