"""A step with a teacher: its loss and every gradient are those of transformers' models under DistilBERT's formula, and
on any layout and sharding those of one rank."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import TeacherWeights
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, value, with_weights_of
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine, whole

VOCABULARY = 390  # no multiple of 128: padding columns take no part
SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)
DISTILBERT = {"temperature": 2.0, "kl_weight": 5.0, "label_weight": 2.0, "cosine_weight": 1.0}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2+sp-pp2": {"tensor": 2, "sequence": True, "pipeline": 2},
    "cp2-dp2-zero1": {"context": 2, "zero": 1},
    "pp2-vp2-dp2": {"pipeline": 2, "virtual": 2},
    "zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "dp4-overlap": {"zero": 1, "overlap": True},
    "zero3-overlap": {"zero": 3, "zero_engine": "deepspeed", "overlap": True},
    "tp2-zero3": {"tensor": 2, "zero": 3, "zero_engine": "deepspeed"},
}


def _config(family: str, settings: dict[str, float], parallel: dict[str, Any], **sections: Any) -> RunConfig:
    """A student of four layers, of a teacher of eight whose heads are narrower."""
    model = {"vocabulary": VOCABULARY, "binary_head": False, "attention": {}}
    objective = {"name": "masked", "next_sentence": False} if family == "bert" else {"name": "causal"}
    student = family_config(family, model=model, parallel=parallel, objective=objective, **sections)
    teacher = student.model.model_dump(mode="json") | {"layers": 8, "heads": 8, "kv_heads": None}
    distillation = {"teacher": "unused", "teacher_model": teacher} | settings
    return RunConfig.model_validate(student.model_dump(mode="json") | {"distillation": distillation})


def _engine(config: RunConfig) -> Any:
    """The teacher's predictions are far from uniform."""
    engine = build_engine(config)
    randomise(engine)
    for name, part in engine.part(TeacherWeights).weights_state().items():
        for piece in part.pieces:
            box = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.value.shape, strict=True))
            piece.value.copy_(torch.from_numpy(value(f"teacher/{name}", part.shape)[box]))
    return engine


def _step(family: str, settings: dict[str, float], parallel: dict[str, Any], **sections: Any) -> Any:
    engine = _engine(_config(family, settings, parallel, **sections))
    engine.keeps_gradients = True
    source = SyntheticStream(engine.config)
    result = engine.train_step(source.batch(0, ROWS, engine.data_rank, engine.data_world), 1e-3, 1)
    loss = result.loss_sum / result.token_count
    return loss, dict(result.terms), result.grad_norm, whole(engine.gradients()), sorted(engine.state())


def _parity(family: str, settings: dict[str, float]) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, float]:
    """(each gradient, ours and theirs; our loss; theirs) of transformers' two models and DistilBERT's formula."""
    config = _config(family, settings, {}, optimizer={"clip_norm": 0.0})
    engine = _engine(config)
    engine.keeps_gradients = True
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    student, links = with_weights_of(engine, config, SPECIALS)
    result = engine.train_step(batch, 0.0, 1)
    gradients = engine.gradients()
    alone = build_engine(config.teacher_config(), train=False)
    for name, part in alone.state().items():
        part.pieces[0].value.copy_(engine.part(TeacherWeights).weights_state()[name].pieces[0].value)
    teacher, _ = with_weights_of(alone, config.teacher_config(), SPECIALS)
    inputs = {"input_ids": torch.from_numpy(batch.tokens)}
    if batch.attention_mask is not None:
        inputs["attention_mask"] = torch.from_numpy(batch.attention_mask).long()
    if batch.segments is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.segments)
    ours = student.eval()(**inputs, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher.eval()(**inputs, output_hidden_states=True)
    labelled = torch.from_numpy(batch.loss_mask).bool()
    compared = labelled if batch.attention_mask is None else torch.from_numpy(batch.attention_mask)
    temperature = settings.get("temperature", 1.0)
    loss = settings["label_weight"] * F.cross_entropy(ours.logits[labelled], torch.from_numpy(batch.labels)[labelled])
    log_p, log_q = ((x.logits[compared] / temperature).log_softmax(-1) for x in (ours, theirs))
    loss = loss + settings["kl_weight"] * temperature**2 * F.kl_div(log_p, log_q.exp(), reduction="batchmean")
    if settings.get("cosine_weight"):
        hidden = ours.hidden_states[-1][compared], theirs.hidden_states[-1][compared]
        loss = loss + F.cosine_embedding_loss(*hidden, torch.ones(len(hidden[0])))
    loss.backward()
    named = dict(student.named_parameters(remove_duplicate=False))
    pairs = {}
    for link in links:
        (own,) = link.mcore_names
        for name, gradient in zip(link.hf_names, link.out(gradients[f"gradient/{own}"].pieces[0].value), strict=True):
            expected = named[name].grad.clone().numpy()
            found = gradient.clone().numpy()
            if name.endswith("word_embeddings.weight"):
                found[SPECIALS.pad] = expected[SPECIALS.pad] = 0  # theirs learns nothing from reading padding
            pairs[name] = found, expected
    return pairs, result.loss_sum / result.token_count, loss.item()


@pytest.mark.parametrize(
    ("family", "settings"),
    [("bert", DISTILBERT), ("llama", {"temperature": 1.5, "kl_weight": 1.0, "label_weight": 0.5})],
)
def test_loss_and_gradients_are_those_of_transformers_models(family: str, settings: dict[str, float]) -> None:
    pairs, loss, expected = run_ranks(1, _parity, family, settings)[0]
    assert loss == pytest.approx(expected, rel=1e-5)
    assert len(pairs) > 20
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs.values())
    for name, (ours, theirs) in pairs.items():
        assert np.abs(ours - theirs).max() <= 2e-5 * largest, name


@pytest.mark.parametrize("layout", [name if name == "tp2+sp-pp2" else slow(name) for name in LAYOUTS])
def test_every_layout_makes_the_step_of_one_rank(layout: str) -> None:
    loss, terms, norm, gradients, names = run_ranks(1, _step, "bert", DISTILBERT, {})[0]
    assert list(terms) == ["tokens", "kl", "cosine"]
    assert terms["kl"][1] == terms["cosine"][1] >= terms["tokens"][1], "of all tokens that are not padding"
    means = {name: value / count for name, (value, count) in terms.items()}
    assert loss == pytest.approx(2 * means["tokens"] + 5 * means["kl"] + means["cosine"], rel=1e-6)
    assert not any("teacher" in name for name in names), "no checkpoint has the teacher"
    for other in run_ranks(4, _step, "bert", DISTILBERT, LAYOUTS[layout]):
        assert other[0] == pytest.approx(loss, rel=1e-5)
        assert other[2] == pytest.approx(norm, rel=1e-4)
        assert not any("teacher" in name for name in other[4])
        for name, (total, count) in other[1].items():
            assert (total, count) == (pytest.approx(terms[name][0], rel=1e-5), terms[name][1]), name
        for name, found in other[3].items():
            assert np.abs(found - gradients[name]).max() <= 1e-4 * np.abs(gradients[name]).max() + 1e-7, name


def test_a_decoder_learns_from_logits_alone() -> None:
    """Without a weight of its own, the labels' loss is reported and has no gradient."""
    settings = {"kl_weight": 1.0, "label_weight": 0.0}
    loss, terms, norm, *_ = run_ranks(1, _step, "llama", settings, {})[0]
    assert loss == pytest.approx(terms["kl"][0] / terms["kl"][1], rel=1e-6)
    assert terms["tokens"][0] > 0 < norm
