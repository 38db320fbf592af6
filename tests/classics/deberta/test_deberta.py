"""DeBERTa against its equations in float64, with a vector for each pair of positions, and with the mask decoder, which
transformers lacks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.classics.deberta import key
from pretrain.classics.deberta.key import DisentangledPositions
from pretrain.config.model import Model
from pretrain.data.synthetic import SyntheticStream
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine

Weights = dict[str, Tensor]
LENGTH = 20
V1 = {"family": "deberta", "segments": 0, "mask_decoder_layers": 3} | {
    "positions": {"name": "disentangled", "max_distance": 6},
    "convolution": None,
}
CONVOLUTION = "encoder.layers.0.convolution"


# The reference: of one sequence at a time, so that there is no padding.


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _norm(w: Weights, name: str, x: Tensor, model: Model) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], model.norm_eps)


def _row(distance: int, settings: DisentangledPositions) -> int:
    """The row of a distance, query minus key."""
    half = settings.num_buckets or settings.max_distance
    if settings.num_buckets is not None and abs(distance) > half // 2:
        steps = math.log(abs(distance) / (half // 2)) / math.log((settings.max_distance - 1) / (half // 2))
        distance = int(math.copysign(math.ceil(steps * (half // 2 - 1)) + half // 2, distance))
    return min(max(distance + half, 0), 2 * half - 1)


def _attended(w: Weights, own: str, queries: Tensor, content: Tensor, table: Tensor, model: Model) -> Tensor:
    """[S, H] each; the table [R, H]"""
    settings = model.positions
    assert isinstance(settings, DisentangledPositions)

    def split(x: Tensor) -> tuple[Tensor, ...]:
        return _linear(w, f"{own}.linear_qkv", x).unflatten(-1, (model.heads, 3, -1)).unbind(2)

    q, (_, k, v) = split(queries)[0], split(content)
    if settings.shared_projections:
        distance_q, distance_k, _ = split(table)
    else:
        distance_q, distance_k = (
            _linear(w, f"{own}.position_{name}", table).unflatten(-1, (model.heads, -1)) for name in ("query", "key")
        )
        q = q + w[f"{own}.query_bias"].view(model.heads, -1)
        v = v + w[f"{own}.value_bias"].view(model.heads, -1)
    rows = torch.tensor([[_row(i - j, settings) for j in range(len(k))] for i in range(len(q))])
    scores = torch.einsum("ihd,jhd->hij", q, k)
    scores = scores + torch.einsum("ihd,ijhd->hij", q, distance_k[rows])
    scores = scores + torch.einsum("jhd,ijhd->hij", k, distance_q[rows])
    shares = (scores / math.sqrt(3 * model.dim_per_head)).softmax(-1)
    return torch.einsum("hij,jhd->ihd", shares, v).flatten(1)


def _layer(w: Weights, name: str, queries: Tensor, content: Tensor, table: Tensor, model: Model) -> Tensor:
    out = _attended(w, f"{name}.self_attention", queries, content, table, model)
    out = _linear(w, f"{name}.self_attention.linear_proj", out)
    x = _norm(w, f"{name}.self_attn_bda.norm", queries + out, model)
    out = _linear(w, f"{name}.mlp.linear_fc2", F.gelu(_linear(w, f"{name}.mlp.linear_fc1", x)))
    return _norm(w, f"{name}.mlp_bda.norm", x + out, model)


def _convolved(w: Weights, x: Tensor) -> Tensor:
    kernel = w[f"{CONVOLUTION}.kernel.weight"].unflatten(1, (3, -1)).transpose(1, 2)
    return F.conv1d(x.T[None], kernel, w[f"{CONVOLUTION}.kernel.bias"], padding=1)[0].T.tanh()


def _logits(w: Weights, tokens: Tensor, model: Model) -> Tensor:
    words = w["embedding.word_embeddings.weight"]
    x = words[tokens]
    if model.segments:
        x = x + w["embedding.encoder.segment_embeddings.weight"][0]
    x = _norm(w, "embedding.encoder.norm", x, model)
    table = w["embedding.distances.weight"]
    if "embedding.distances.norm.weight" in w:
        table = _norm(w, "embedding.distances.norm", table, model)
    for number in range(model.layers - 1):
        y = _layer(w, f"encoder.layers.{number}", x, x, table, model)
        x = (
            y
            if number or key.CONVOLUTION.of(model) is None
            else _norm(w, f"{CONVOLUTION}.norm", y + _convolved(w, x), model)
        )
    query = x + w["mask_decoder.positions.position_embeddings.weight"][: len(x)]
    for _ in range(model.last_layer_uses):
        query = _layer(w, f"encoder.layers.{model.layers - 1}", query, x, table, model)
    x = _norm(w, "head.norm", F.gelu(_linear(w, "head.transform", query)), model)
    return x @ words[: model.vocab_size].T + w["output_layer.bias"][: model.vocab_size]


# What runs on ranks.


def _both(model: dict[str, Any]) -> Any:
    """(ours, theirs) of the loss, and of every gradient."""
    model = {"sequence_length": LENGTH, "layers": 2} | model
    engine = build_engine(family_config("deberta-decoder", model=model, optimizer={"clip_norm": 0.0}))
    randomise(engine)
    state = engine.state().items()
    weights = {name: part.pieces[0].value for name, part in state if name.startswith("model/")}
    weights = {name.removeprefix("model/"): x.clone().double().requires_grad_() for name, x in weights.items()}
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    engine.keeps_gradients = True
    result = engine.train_step(batch, 0.0, 1)
    total = torch.zeros((), dtype=torch.float64)
    columns = (batch.tokens, batch.attention_mask, batch.labels, batch.loss_mask)
    for tokens, shown, labels, mask in zip(*map(torch.from_numpy, columns), strict=True):
        seen = shown.bool()
        losses = F.cross_entropy(_logits(weights, tokens[seen], engine.config.model), labels[seen], reduction="none")
        total = total + (losses * mask[seen]).sum()
    loss = total / float(batch.loss_mask.sum())
    loss.backward()
    gradients = {name: part.pieces[0].value.float().numpy().copy() for name, part in engine.gradients().items()}
    expected = {name: x.grad.numpy() for name, x in weights.items() if x.grad is not None}
    return (result.loss_sum / result.token_count, loss.item()), (gradients, expected)


@pytest.mark.parametrize("model", [{}, V1], ids=["buckets", "v1"])
def test_loss_and_every_gradient_are_those_of_the_equations(model: dict[str, Any]) -> None:
    (our_loss, their_loss), (ours, theirs) = run_ranks(1, _both, model)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert {"embedding.distances.weight", "mask_decoder.positions.position_embeddings.weight"} <= theirs.keys()
    largest = max(np.abs(value).max() for value in theirs.values())
    for name, gradient in theirs.items():
        found = next(value for other, value in ours.items() if other.endswith(f"/{name}"))
        assert np.abs(found - gradient).max() <= 1e-4 * np.abs(gradient).max() + 1e-6 * largest, name
