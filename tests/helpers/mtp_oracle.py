"""Multi-token prediction of a small dense decoder, written from the paper (arXiv 2412.19437, section 2.2, equations 21
to 25) in fp64, a document at a time, without a pipeline, a mask or a batch.

Weights are those of an engine's state, by their names there. A document of T tokens t_1 ... t_T: position i predicts
t_{i+1}, and at depth k, of D, position i reads t_{i+k} and predicts t_{i+k+1}.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.config.model import Model

Weights = Mapping[str, Tensor]


def losses(model: Model, weights: Weights, documents: Sequence[Sequence[int]]) -> list[tuple[Tensor, int]]:
    """Sum and number of the losses of next tokens, and of those of each depth."""
    assert model.mtp is not None
    depths = model.mtp.num_layers
    found = [(torch.zeros((), dtype=torch.float64), 0) for _ in range(1 + depths)]

    def add(depth: int, states: Tensor, tokens: Tensor) -> None:
        """`states` of positions 1, 2, ..., of which each predicts the token `depth` + 1 behind it."""
        labels = tokens[depth + 1 :]
        logits = states[: len(labels)] @ weights["output_layer.weight"].T
        real = logits[:, : model.vocabulary]
        total, count = found[depth]
        found[depth] = total + F.cross_entropy(real, labels, reduction="sum"), count + len(labels)

    for document in documents:
        tokens = torch.tensor(document)
        embedded = weights["embedding.word_embeddings.weight"][tokens]
        states = embedded
        for number in range(model.layers):
            states = _layer(model, weights, f"decoder.layers.{number}.", states)
        last = f"decoder.layers.{model.layers - 1}.final.norm.weight"
        states = _norm(model, weights[last], states)
        add(0, states, tokens)
        for depth in range(1, depths + 1):
            name = f"mtp.layers.{depth - 1}."
            further = embedded[depth:]
            previous = states[: len(further)]
            both = torch.cat(
                (
                    _norm(model, weights[f"{name}enorm.weight"], further),
                    _norm(model, weights[f"{name}hnorm.weight"], previous),
                ),
                dim=-1,
            )
            states = both @ weights[f"{name}eh_proj.weight"].T
            states = _layer(model, weights, f"{name}transformer_layer.", states)
            states = _norm(model, weights[f"{name}final_layernorm.weight"], states)
            add(depth, states, tokens)
    return found


def loss(model: Model, found: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The main loss, and the mean of those of all depths by their weight."""
    assert model.mtp is not None
    (main, count), *further = found
    of_depths = torch.stack([total / labels for total, labels in further]).mean()
    return main / count + model.mtp.loss_scaling_factor * of_depths


def _norm(model: Model, gain: Tensor, x: Tensor) -> Tensor:
    return gain * x / torch.sqrt((x * x).mean(-1, keepdim=True) + model.norm_eps)


def _layer(model: Model, weights: Weights, name: str, x: Tensor) -> Tensor:
    x = x + _attention(model, weights, name, _norm(model, weights[f"{name}input_layernorm.weight"], x))
    normed = _norm(model, weights[f"{name}pre_mlp_layernorm.weight"], x)
    inner = normed @ weights[f"{name}mlp.linear_fc1.weight"].T
    return x + (F.silu(inner[:, 0::2]) * inner[:, 1::2]) @ weights[f"{name}mlp.linear_fc2.weight"].T


def _attention(model: Model, weights: Weights, name: str, x: Tensor) -> Tensor:
    """Rows of queries, keys and values: of each key its queries, then itself, then its value."""
    width, groups = model.dim_per_head, model.num_kv_heads
    each = model.heads // groups
    fused = (x @ weights[f"{name}self_attention.linear_qkv.weight"].T).view(len(x), groups, each + 2, width)
    query, key, value = fused[:, :, :each], fused[:, :, each], fused[:, :, each + 1]
    query, key = _rotated(query.flatten(1, 2)).unflatten(1, (groups, each)), _rotated(key)
    scores = torch.einsum("igew,jgw->geij", query, key) / width**0.5
    later = torch.ones(len(x), len(x)).triu(1).bool()
    out = torch.einsum("geij,jgw->igew", scores.masked_fill(later, -torch.inf).softmax(-1), value)
    return out.flatten(1) @ weights[f"{name}self_attention.linear_proj.weight"].T


def _rotated(x_SNW: Tensor) -> Tensor:
    """Feature j turned with feature j + W / 2, by the position times 10000^(-2j / W)."""
    half = x_SNW.shape[-1] // 2
    angles = torch.arange(len(x_SNW)).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x_SNW[..., :half], x_SNW[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
