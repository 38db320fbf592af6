"""A small GPT-2 behind the engine's seam, alone or as several data ranks, with a toy tokenizer or a real dataset's."""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from data_pipeline.batch import Rows
from data_pipeline.common.progress import TaskProgress
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.engine.base import Scores

LENGTH = 192
VOCABULARY = 512


class ToyTokenizer:
    """Bytes, and a few pieces of several characters that may lie across the border of context and target."""

    end_of_text, vocabulary_size, identity = 256, VOCABULARY, "toy"
    begin_of_text, opened, before_text = None, Tokenizer.opened, Tokenizer.before_text
    pieces = (" the", "ing", "____.", "Q: What is", "\n\n", "; ")
    parts = re.compile("|".join([*map(re.escape, pieces), "."]), re.DOTALL)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.parts.findall(text):
            ids += [257 + self.pieces.index(part)] if part in self.pieces else list(part.encode())
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        parts = [bytes([i]) if i < 256 else self.pieces[i - 257].encode() for i in ids if i != 256 and i < 263]
        return b"".join(parts).decode(errors="replace")


class FakeEngine:
    """`engine.base.Engine` as far as evaluation knows it. Counts how many rows it was given."""

    def __init__(self, model: GPT2LMHeadModel, data_rank: int = 0, data_world: int = 1, exchange: Any = None) -> None:
        self.model, self.data_rank, self.data_world, self._exchange = model, data_rank, data_world, exchange
        self.is_reporter, self.decodes, self.shares_weights = data_rank == 0, True, False
        self.read: list[list[int]] = []
        self.scored: list[tuple[np.ndarray, np.ndarray]] = []

    @torch.no_grad()
    def score(self, batch: Rows) -> Scores:
        tokens, labels = batch.tokens, batch.labels
        assert tokens.dtype == labels.dtype == np.int64
        assert tokens.shape[1] <= LENGTH
        self.scored.append((tokens, labels))
        logits = self.model(torch.from_numpy(tokens)).logits
        if batch.label_positions is not None:
            logits = logits[torch.arange(len(tokens))[:, None], torch.from_numpy(batch.label_positions)]
        log_probability = logits.log_softmax(-1).gather(-1, torch.from_numpy(labels)[..., None])[..., 0]
        return Scores(log_probability.numpy(), (logits.argmax(-1).numpy() == labels))

    def in_step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prefill(self, inputs: Sequence[Sequence[int]]) -> list[list[int]]:
        return [list(ids) for ids in inputs]

    @torch.no_grad()
    def next_tokens(self, held: list[list[int]], parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Reads everything anew, each row by itself."""
        held[:] = [[*held[parent], int(token)] for parent, token in zip(parents, tokens, strict=True)]
        assert all(len(ids) <= LENGTH for ids in held)
        says = [self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for ids in held]
        return torch.stack(says).numpy()

    @torch.no_grad()
    def score_continuations(
        self, held: list[list[int]], parents: np.ndarray, tokens: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Likewise."""
        says = []
        for parent, row in zip(parents, tokens, strict=True):
            ids = [*held[parent], *row.tolist()]
            assert len(ids) <= LENGTH
            self.read.append(ids)
            says.append(self.model(torch.tensor([ids])).logits[0, len(ids) - len(row) :].log_softmax(-1).numpy())
        found = np.stack(says)
        return np.take_along_axis(found, labels[..., None], -1)[..., 0], found.argmax(-1) == labels

    def largest(self, values: np.ndarray) -> np.ndarray:
        return self._exchange(self.data_rank, values, np.max) if self._exchange else values

    def any(self, flag: bool) -> bool:
        return bool(self.sum_over_data(np.array([float(flag)]))[0])

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        assert values.dtype == np.float64
        return self._exchange(self.data_rank, values) if self._exchange else values


class Exchange:
    """What the threads of `on_ranks` sum their values with."""

    def __init__(self, world: int) -> None:
        self.barrier, self.values = threading.Barrier(world, timeout=30), [np.zeros(0)] * world

    def __call__(self, rank: int, values: np.ndarray, reduce: Any = np.sum) -> np.ndarray:
        self.values[rank] = values
        self.barrier.wait()
        total = reduce(self.values, axis=0)
        self.barrier.wait()
        return total


def on_ranks(model: GPT2LMHeadModel, world: int, call: Callable[[FakeEngine], Any]) -> list[Any]:
    """What `call` returns on each of `world` data ranks."""
    exchange = Exchange(world)
    engines = [FakeEngine(model, rank, world, exchange) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(call, engines))


def random_model(seed: int = 0) -> GPT2LMHeadModel:
    """Weights large enough that predictions differ from token to token."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, initializer_range=0.1,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


class Silent(TaskProgress):
    def add(self, tasks: int, size: int, new: bool = True) -> None:
        pass

    def done(self) -> None:
        pass
