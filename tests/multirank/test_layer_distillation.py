"""TinyBERT's general stage compares hidden states and attention scores of layers with a teacher's: loss and every
gradient are those of transformers' models under the paper's formula, and on any layout and sharding those of one
rank."""

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
TINYBERT = {"kl_weight": 0.0, "label_weight": 0.0, "hidden_weight": 1.0, "attention_weight": 1.0}
MIXED = {"kl_weight": 0.5, "cosine_weight": 0.0, "label_weight": 2.0, "hidden_weight": 3.0, "attention_weight": 0.7}
TASK = {
    "temperature": 1.5, "kl_weight": 1.0, "label_weight": 0.5, "hidden_weight": 0.5, "attention_weight": 0.25,
}  # fmt: skip
CLASSES = {"name": "classification", "labels": ["a", "b", "c"]}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2+sp-dp2": {"tensor": 2, "sequence": True},
    "tp2-zero1": {"tensor": 2, "zero": 1},
    "zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "zero3": {"zero": 3, "zero_engine": "deepspeed"},
    "dp4-overlap": {"zero": 1, "overlap": True},
    "tp2-zero3": {"tensor": 2, "zero": 3, "zero_engine": "deepspeed"},
}


def _config(settings: dict[str, Any], parallel: dict[str, Any], **sections: Any) -> RunConfig:
    """A student of four layers of width 32, of a teacher of eight of width 64."""
    model = {"vocabulary": VOCABULARY, "binary_head": False, "hidden": 32, "heads": 4}
    masked = {"name": "masked", "next_sentence": False}
    objective = sections.pop("objective", masked)
    student = family_config("bert", model=model, parallel=parallel, objective=masked, **sections)
    student = RunConfig.model_validate(student.model_dump(mode="json") | {"objective": objective})
    teacher = student.model.model_dump(mode="json") | {"layers": 8, "hidden": 64, "ffn": None}
    distillation = {"teacher": "unused", "teacher_model": teacher} | settings
    return RunConfig.model_validate(student.model_dump(mode="json") | {"distillation": distillation})


def _engine(config: RunConfig) -> Any:
    """A student and a teacher whose scores are far from zero."""
    engine = build_engine(config)
    randomise(engine)
    for name, part in engine.part(TeacherWeights).weights_state().items():
        for piece in part.pieces:
            box = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.value.shape, strict=True))
            piece.value.copy_(torch.from_numpy(value(f"teacher/{name}", part.shape)[box]))
    return engine


def _step(settings: dict[str, Any], parallel: dict[str, Any], sections: dict[str, Any]) -> Any:
    engine = _engine(_config(settings, parallel, **sections))
    engine.keeps_gradients = True
    source = SyntheticStream(engine.config)
    result = engine.train_step(source.batch(0, ROWS, engine.data_rank, engine.data_world), 1e-3, 1)
    loss = result.loss_sum / result.token_count
    return loss, dict(result.terms), result.grad_norm, whole(engine.gradients())


def _queries_and_keys(model: Any) -> list[torch.Tensor]:
    """Outputs of the query and key layers of transformers' BERT, in turn, which its next forward pass fills."""
    found: list[torch.Tensor] = []
    for layer in model.bert.encoder.layer:
        for linear in (layer.attention.self.query, layer.attention.self.key):
            linear.register_forward_hook(lambda module, inputs, output: found.append(output))
    return found


def _scores(parts: list[torch.Tensor], layer: int, heads: int, real: torch.Tensor) -> torch.Tensor:
    """Scores before the softmax, in fp64, of all pairs of real positions of all rows and heads."""
    query, key = (part.double().unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts[2 * layer : 2 * layer + 2])
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return torch.cat([row[:, shown][:, :, shown].flatten() for row, shown in zip(scores, real, strict=True)])


def _layer_losses(
    settings: dict[str, Any],
    outputs: Any,
    parts: Any,
    real: torch.Tensor,
    projection: tuple[torch.Tensor, torch.Tensor],
) -> Any:
    """The paper's losses of hidden states, of the embeddings and after layers 2, 4, 6 and 8 (g(m) = 2m), and of
    scores; without padding."""
    loss: Any = 0.0
    ours, theirs = (output.hidden_states for output in outputs)
    for layer, matched in enumerate((0, 2, 4, 6, 8)):
        fitted = F.linear(ours[layer][real], *projection)
        loss = loss + settings["hidden_weight"] * F.mse_loss(fitted, theirs[matched][real])
    for layer, matched in enumerate((1, 3, 5, 7)):
        scores = _scores(parts[0], layer, 4, real), _scores(parts[1], matched, 4, real)
        loss = loss + settings["attention_weight"] * F.mse_loss(*scores)
    return loss


def _pairs(student: Any, links: Any, gradients: Any, projection: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each gradient, ours and theirs."""
    named = dict(student.named_parameters(remove_duplicate=False))
    pairs = {
        f"projection {leaf}": (
            gradients[f"gradient/teacher_projection.{leaf}"].pieces[0].value.numpy(),
            own.grad.numpy(),
        )
        for leaf, own in zip(("weight", "bias"), projection, strict=True)
        if own.grad is not None
    }
    for link in links:
        (own,) = link.mcore_names
        for name, gradient in zip(link.hf_names, link.out(gradients[f"gradient/{own}"].pieces[0].value), strict=True):
            given = named[name].grad
            expected = np.zeros(gradient.shape, np.float32) if given is None else given.clone().numpy()
            found = gradient.clone().numpy()
            if name.endswith("word_embeddings.weight"):
                found[SPECIALS.pad] = expected[SPECIALS.pad] = 0  # theirs learns nothing from reading padding
            pairs[name] = found, expected
    return pairs


def _parity(settings: dict[str, Any]) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, float]:
    """(each gradient, ours and theirs; our loss; theirs)."""
    config = _config(settings, {}, optimizer={"clip_norm": 0.0})
    engine = _engine(config)
    engine.keeps_gradients = True
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    student, links = with_weights_of(engine, config, SPECIALS)
    weights = whole(engine.state())
    weight, bias = (
        torch.tensor(weights[f"model/teacher_projection.{leaf}"], requires_grad=True) for leaf in ("weight", "bias")
    )
    result = engine.train_step(batch, 0.0, 1)
    gradients = engine.gradients()
    alone = build_engine(config.teacher_config(), train=False)
    for name, part in alone.state().items():
        part.pieces[0].value.copy_(engine.part(TeacherWeights).weights_state()[name].pieces[0].value)
    teacher, _ = with_weights_of(alone, config.teacher_config(), SPECIALS)
    assert batch.attention_mask is not None
    real = torch.from_numpy(batch.attention_mask)
    inputs = {"input_ids": torch.from_numpy(batch.tokens), "attention_mask": real.long()}
    if batch.segments is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.segments)
    of_student, of_teacher = (_queries_and_keys(model) for model in (student, teacher))
    ours = student.eval()(**inputs, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher.eval()(**inputs, output_hidden_states=True)
    assert len(ours.hidden_states) == 5
    labelled = torch.from_numpy(batch.loss_mask).bool()
    loss = settings["label_weight"] * F.cross_entropy(ours.logits[labelled], torch.from_numpy(batch.labels)[labelled])
    if settings["kl_weight"]:
        log_p, log_q = (x.logits[real].log_softmax(-1) for x in (ours, theirs))
        loss = loss + settings["kl_weight"] * F.kl_div(log_p, log_q.exp(), reduction="batchmean")
    loss = loss + _layer_losses(settings, (ours, theirs), (of_student, of_teacher), real, (weight, bias))
    loss.backward()
    pairs = _pairs(student, links, gradients, (weight, bias))
    return pairs, result.loss_sum / result.token_count, loss.item()


def _task_model(engine: Any, config: RunConfig) -> tuple[Any, list[Any]]:
    """transformers' BertForSequenceClassification with the weights of an engine, and the links to it."""
    from pretrain.interop.hf.heads import with_head
    from pretrain.interop.hf.registry import hf_family_of

    family, state = with_head(hf_family_of(config.model), config.objective, None), engine.state()
    links = list(family.links(config.model))
    weights = {}
    for link in links:
        values = [state[f"model/{name}"].pieces[0].value for name in link.mcore_names]
        weights |= dict(zip(link.hf_names, (x.clone() for x in link.out(*values)), strict=True))
    theirs = family.class_of(config.model)(family.hf_config(config.model, SPECIALS))
    theirs.load_state_dict(weights, strict=False)
    return theirs.eval(), links


def _task_parity(settings: dict[str, Any]) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, float]:
    """Like `_parity`, with rows that have classes."""
    config = _config(settings, {}, objective=CLASSES, optimizer={"clip_norm": 0.0})
    engine = _engine(config)
    engine.keeps_gradients = True
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    student, links = _task_model(engine, config)
    weights = whole(engine.state())
    projection = [
        torch.tensor(weights[f"model/teacher_projection.{leaf}"], requires_grad=True) for leaf in ("weight", "bias")
    ]
    result = engine.train_step(batch, 0.0, 1)
    gradients = engine.gradients()
    alone = build_engine(config.teacher_config(), train=False)
    for name, part in alone.state().items():
        part.pieces[0].value.copy_(engine.part(TeacherWeights).weights_state()[name].pieces[0].value)
    teacher, _ = _task_model(alone, config.teacher_config())
    assert batch.attention_mask is not None
    real = torch.from_numpy(batch.attention_mask)
    inputs = {"input_ids": torch.from_numpy(batch.tokens), "attention_mask": real.long()}
    if batch.segments is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.segments)
    parts = [_queries_and_keys(model) for model in (student, teacher)]
    ours = student.bert(**inputs, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher.bert(**inputs, output_hidden_states=True)
    answering = torch.from_numpy(batch.loss_mask).bool()  # the last token of each of these rows
    answers = [
        model.classifier(torch.tanh(model.bert.pooler.dense(output.last_hidden_state[answering])))
        for model, output in ((student, ours), (teacher, theirs))
    ]
    loss = settings["label_weight"] * F.cross_entropy(answers[0], torch.from_numpy(batch.labels)[answering])
    soft = settings["temperature"]
    log_p, log_q = ((x / soft).log_softmax(-1) for x in answers)
    loss = loss + settings["kl_weight"] * soft**2 * F.kl_div(log_p, log_q.detach().exp(), reduction="batchmean")
    loss = loss + _layer_losses(settings, (ours, theirs), parts, real, (projection[0], projection[1]))
    loss.backward()
    return _pairs(student, links, gradients, projection), result.loss_sum / result.token_count, loss.item()


def test_a_task_is_learned_from_a_fine_tuned_teacher_as_by_transformers_models() -> None:
    """Soft labels beside hard ones, and the layers."""
    pairs, loss, expected = run_ranks(1, _task_parity, TASK)[0]
    assert loss == pytest.approx(expected, rel=1e-5)
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs.values())
    for name, (ours, theirs) in pairs.items():
        assert np.abs(ours - theirs).max() <= 2e-5 * largest, name
    assert np.abs(pairs["classifier.weight"][1]).max() > 0


@pytest.mark.parametrize("settings", [TINYBERT, slow(MIXED)], ids=["general stage", "mixed"])
def test_loss_and_gradients_are_those_of_transformers_models(settings: dict[str, Any]) -> None:
    pairs, loss, expected = run_ranks(1, _parity, settings)[0]
    assert loss == pytest.approx(expected, rel=1e-5)
    assert len(pairs) > 20
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs.values())
    for name, (ours, theirs) in pairs.items():
        assert np.abs(ours - theirs).max() <= 2e-5 * largest, name


@pytest.mark.parametrize(
    ("layout", "stage"),
    [
        ("tp2+sp-dp2", "general"),
        *(slow((name, "general")) for name in LAYOUTS if name != "tp2+sp-dp2"),
        *(slow((name, "task")) for name in LAYOUTS),
    ],
)
def test_every_layout_makes_the_step_of_one_rank(layout: str, stage: str) -> None:
    sections = {"objective": CLASSES} if stage == "task" else {}
    settings = TASK if stage == "task" else {**TINYBERT, "hidden_weight": 2.0, "attention_weight": 0.5}
    loss, terms, norm, gradients = run_ranks(1, _step, settings, {}, sections)[0]
    assert list(terms) == (["classes", "kl"] if stage == "task" else ["tokens"]) + ["hidden", "attention"]
    means = {name: total / count for name, (total, count) in terms.items()}
    assert min(means.values()) > 0
    weights = {name: settings[f"{name}_weight"] for name in means if name not in ("tokens", "classes")}
    of_labels = settings["label_weight"] * means.get("classes", 0.0)
    assert loss == pytest.approx(of_labels + sum(weights[name] * means[name] for name in weights), rel=1e-6)
    for other in run_ranks(4, _step, settings, LAYOUTS[layout], sections):
        assert other[0] == pytest.approx(loss, rel=1e-5)
        assert other[2] == pytest.approx(norm, rel=1e-4)
        for name, (total, count) in other[1].items():
            assert (total, count) == (pytest.approx(terms[name][0], rel=1e-5), terms[name][1]), name
        for name, found in other[3].items():
            assert np.abs(found - gradients[name]).max() <= 1e-4 * np.abs(gradients[name]).max() + 1e-7, name
