"""The Transformer with Shaw's positions against attention written out pair by pair, as in the paper's equations."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.config.model import Model
from pretrain.data.synthetic import SyntheticStream
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine

Weights = dict[str, Tensor]


# The reference: of one sequence at a time, so that there is no padding.


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _norm(w: Weights, name: str, x: Tensor, model: Model) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], model.norm_eps)


def _attended(q: Tensor, k: Tensor, v: Tensor, tables: tuple[Tensor, Tensor] | None, causal: bool) -> Tensor:
    """q, k, v [S, heads, width]"""
    heads = []
    for head in range(q.shape[1]):
        rows = []
        for i in range(len(q)):
            scores, values = [], []
            for j in range(i + 1 if causal else len(k)):
                key, value = k[j, head], v[j, head]
                if tables is not None:
                    keys_RD, values_RD = (table[head % len(table)] for table in tables)
                    furthest = len(keys_RD) // 2
                    place = furthest + max(-furthest, min(furthest, j - i))
                    key, value = key + keys_RD[place], value + values_RD[place]
                scores.append(q[i, head] @ key / q.shape[-1] ** 0.5)
                values.append(value)
            rows.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=-1)


def _layer(w: Weights, name: str, x: Tensor, memory: Tensor | None, model: Model) -> Tensor:
    own = f"{name}.self_attention"
    q, k, v = _linear(w, f"{own}.linear_qkv", x).unflatten(-1, (model.heads, 3, -1)).unbind(2)
    tables = w[f"{own}.core_attention.shaw.keys"], w[f"{own}.core_attention.shaw.values"]
    out = _linear(w, f"{own}.linear_proj", _attended(q, k, v, tables, causal=memory is not None))
    x = _norm(w, f"{name}.self_attn_bda.norm", x + out, model)
    if memory is not None:
        cross = f"{name}.cross_attention"
        q = _linear(w, f"{cross}.linear_q", x).unflatten(-1, (model.heads, -1))
        k, v = _linear(w, f"{cross}.linear_kv", memory).unflatten(-1, (model.heads, 2, -1)).unbind(2)
        out = _linear(w, f"{cross}.linear_proj", _attended(q, k, v, None, causal=False))
        x = _norm(w, f"{name}.cross_attn_bda.norm", x + out, model)
    out = _linear(w, f"{name}.mlp.linear_fc2", F.gelu(_linear(w, f"{name}.mlp.linear_fc1", x)))
    return _norm(w, f"{name}.mlp_bda.norm", x + out, model)


def _logits(w: Weights, inputs: Tensor, targets: Tensor, model: Model) -> Tensor:
    words = w["embedding.word_embeddings.weight"]
    memory = words[inputs] * model.hidden**0.5
    for number in range(model.stacks[0]):
        memory = _layer(w, f"encoder.layers.{number}", memory, None, model)
    x = words[targets] * model.hidden**0.5
    for number in range(model.stacks[1]):
        x = _layer(w, f"decoder.layers.{number}", x, memory, model)
    return x @ w["output_layer.weight"][: model.vocab_size].T


# What runs on ranks.


def _engine(family: str) -> tuple[Any, Weights]:
    config = family_config(family, model={"sequence_length": 12, "target_length": 8}, optimizer={"clip_norm": 0.0})
    engine = build_engine(config)
    randomise(engine)
    state = engine.state().items()
    weights = {name: part.pieces[0].value for name, part in state if name.startswith("model/")}
    return engine, {name.removeprefix("model/"): x.clone().requires_grad_() for name, x in weights.items()}


def _both(family: str) -> Any:
    """(ours, theirs) of the loss, and of every gradient."""
    engine, weights = _engine(family)
    model = engine.config.model
    batch = SyntheticStream(engine.config).batch(0, ROWS, 0, 1)
    engine.keeps_gradients = True
    result = engine.train_step(batch, 0.0, 1)
    total = torch.zeros(())
    columns = (batch.tokens, batch.attention_mask, batch.decoder_tokens, batch.labels, batch.loss_mask)
    for tokens, shown, targets, labels, mask in zip(*map(torch.from_numpy, columns), strict=True):
        losses = F.cross_entropy(_logits(weights, tokens[shown.bool()], targets, model), labels, reduction="none")
        total = total + (losses * mask).sum()
    loss = total / float(batch.loss_mask.sum())
    loss.backward()
    gradients = {name: part.pieces[0].value.float().numpy().copy() for name, part in engine.gradients().items()}
    expected = {name: x.grad.numpy() for name, x in weights.items() if x.grad is not None}
    return (result.loss_sum / result.token_count, loss.item()), (gradients, expected)


@pytest.mark.parametrize("family", ["shaw", slow("shaw-shared")])
def test_loss_and_every_gradient_are_those_of_the_paper_s_equations(family: str) -> None:
    (our_loss, their_loss), (ours, theirs) = run_ranks(1, _both, family)[0]
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert sum("shaw" in name for name in theirs) == 8, "keys and values of four layers"
    largest = max(np.abs(value).max() for value in theirs.values())
    for name, gradient in theirs.items():
        found = next(value for other, value in ours.items() if other.endswith(name))
        assert np.abs(found - gradient).max() <= 1e-4 * np.abs(gradient).max() + 1e-6 * largest, name
