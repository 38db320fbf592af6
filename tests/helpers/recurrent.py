"""Configs of small recurrent models, and what torch's own cells make of their weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.classics.rnn.key import cells_of
from pretrain.config.run_config import RunConfig
from tests.helpers.tiny import LENGTH, tiny_config

SCORES = ("additive", "concat", "dot", "general")
CELLS: dict[str, type[nn.RNNBase]] = {"tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def translator_config(recurrent: dict[str, Any], **sections: Any) -> RunConfig:
    """An encoder-decoder with embeddings of another width than its cells."""
    model = {"target_length": LENGTH // 2, "encoder_layers": 2, **sections.pop("model", {})}
    tree = {"model": model | {"recurrent": recurrent}, "objective": {"name": "pairs"}, **sections}
    return language_model_config(**tree)


def language_model_config(**sections: Any) -> RunConfig:
    """A decoder alone unless `sections` say otherwise; LSTM cells."""
    model = {
        "family": "rnn", "layers": 2, "encoder_layers": 0, "hidden": 24, "embedding_size": 16, "heads": 1,
        "positions": "nope", "init": {"std": 0.3}, "attention": {}, "recurrent": {"cell": "lstm"},
    }  # fmt: skip
    model |= sections.pop("model", {})
    return tiny_config(model=model, optimizer={"eps": 1e-6}, **sections)


class Oracle:
    """The model of `config` written with torch's cells and dense attention, from `weights` by their global names."""

    def __init__(self, config: RunConfig, weights: dict[str, Tensor]) -> None:
        self.model, self.cells, self.weights = config.model, cells_of(config.model), weights

    def loss(self, source: Tensor | None, shown: Tensor | None, read: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of `labels` [B, L]. `shown` [B, S]: False at padding. Each row of the source is encoded
        alone, without its padding."""
        every = []
        for row in range(len(read)):
            x = None
            if source is not None:
                assert shown is not None
                x = source[row][shown[row]][:, None]
            every.append(self.logits(x, read[row][:, None])[:, 0])
        return F.cross_entropy(torch.stack(every).flatten(0, 1), labels.flatten())

    def logits(self, source_S1: Tensor | None, read_L1: Tensor) -> Tensor:
        """[L, 1, V] of one row."""
        table = self.weights["embedding.word_embeddings.weight"][: self.model.vocab_size]
        x_LBE = table[read_L1]
        if source_S1 is None:
            for layer in range(self.model.layers):
                x_LBE, _ = self._cell(f"decoder.layers.{layer}.cell", x_LBE, None)
            return self._linear("decoder.readout", x_LBE) @ table.T
        encoded, ends = table[source_S1], []
        for layer in range(self.model.stacks[0]):
            encoded, end = self._encode(layer, encoded)
            ends.append(end)
        states = self._first_states(ends)
        if self.cells.score is None:
            for layer, state in enumerate(states):
                x_LBE, _ = self._cell(f"decoder.layers.{layer}.cell", x_LBE, state)
            return self._linear("decoder.readout", x_LBE) @ table.T
        out, fed = [], torch.zeros(1, self.model.embedding_dim)
        for x in x_LBE:
            if self.cells.score.name == "additive":
                fed = self._context(states[-1][0], encoded)
            step = torch.cat((x, fed), dim=-1) if self.cells.reads_context or self.cells.feeds else x
            for layer in range(self.model.layers):
                output, states[layer] = self._cell(f"decoder.layers.{layer}.cell", step[None], states[layer])
                step = output[0]
            context = fed if self.cells.score.name == "additive" else self._context(step, encoded)
            made = torch.tanh(self._linear("decoder.readout", torch.cat((step, context), dim=-1)))
            fed = made if self.cells.feeds else fed
            out.append(made)
        return torch.stack(out) @ table.T

    def _encode(self, layer: int, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        out, ends = [], []
        for direction in self.cells.directions:
            turned = x.flip(0) if direction == "backward" else x
            states, end = self._cell(f"encoder.layers.{layer}.{direction}_cell", turned, None)
            out.append(states.flip(0) if direction == "backward" else states)
            ends.append(end)
        return torch.cat(out, -1), tuple(torch.cat(parts, -1) for parts in zip(*ends, strict=True))

    def _first_states(self, ends: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        if not self.cells.starts_dense:
            return ends
        count, found = self.cells.states, []
        for layer in range(self.model.layers):
            names = [f"decoder.start.states.{count * layer + state}" for state in range(count)]
            end = ends[min(layer, len(ends) - 1)]
            found.append(tuple(torch.tanh(self._linear(n, x)) for n, x in zip(names, end, strict=True)))
        return found

    def _context(self, state_1H: Tensor, encoded_S1M: Tensor) -> Tensor:
        score, scores = self.cells.score, []
        assert score is not None
        for h_1M in encoded_S1M:
            if score.name == "dot":
                scores.append((state_1H * h_1M).sum())
            elif score.name == "general":
                scores.append(h_1M[0] @ self.weights["decoder.attention.query.weight"] @ state_1H[0])
            else:
                # Luong's: one matrix, of both states side by side.
                both = torch.cat([self.weights[f"decoder.{n}.weight"] for n in ("attention.query", "start.key")], dim=1)
                features = torch.tanh(both @ torch.cat((state_1H[0], h_1M[0])) + self.weights["decoder.start.key.bias"])
                scores.append(self.weights["decoder.attention.vector.weight"][0] @ features)
        weights_S = torch.softmax(torch.stack(scores), 0)
        return (weights_S[:, None, None] * encoded_S1M).sum(0)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _cell(
        self, name: str, x_LBI: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """torch's cell over all positions; its weights are views of ours, so that gradients reach them."""
        own, kind = self.weights, self.cells.cell.name
        into = [own[f"{name}.input.weight"]]
        if f"{name}.fed.weight" in own:
            into.append(own[f"{name}.fed.weight"])
        of_input, of_state, bias = torch.cat(into, 1), own[f"{name}.recurrent.weight"], own[f"{name}.input.bias"]
        state_bias = own.get(f"{name}.recurrent.bias", torch.zeros_like(bias))
        units = of_state.shape[1]
        if kind == "lstm":
            forget = torch.zeros_like(bias)
            forget[units : 2 * units] = self.cells.cell.forget_bias  # type: ignore[union-attr]
            bias = bias + forget
        module = CELLS[kind](of_input.shape[1], units)
        given = {"weight_ih_l0": of_input, "weight_hh_l0": of_state, "bias_ih_l0": bias, "bias_hh_l0": state_bias}
        arguments: Any = None if state is None else tuple(one[None] for one in state)
        if arguments is not None and kind != "lstm":
            (arguments,) = arguments
        out, end = torch.func.functional_call(module, given, (x_LBI, arguments))
        ends = end if kind == "lstm" else (end,)
        return out, tuple(one[0] for one in ends)
