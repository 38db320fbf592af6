"""megatron-core as an engine: its models, schedules, data parallel and optimizer, driven by our objective.

`MegatronEngine(config, layout, device, train=True)` after `device.install()` and `device.join()`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from megatron.core.inference.contexts import StaticInferenceContext
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.utils import set_model_to_sequence_parallel
from megatron.core.utils import get_model_config
from torch import Tensor, nn

from data_pipeline.batch import Batch, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine import groups
from pretrain.engine.base import GlobalPart, Piece, Scores, StepResult
from pretrain.engine.boxes import pieces
from pretrain.engine.loss_scale import DynamicLossScale
from pretrain.engine.zero import select as zero
from pretrain.engine.zero.base import Sharding, clip_factor
from pretrain.errors import ConfigError
from pretrain.models.blocks import transformer_config
from pretrain.models.inputs import MicroBatch, positions_within
from pretrain.models.network import stream_positions
from pretrain.models.placement import mark_split, parameters, place_dropout
from pretrain.models.registry import FAMILIES
from pretrain.objectives.tokens import Tokens
from pretrain.plan.layout import Layout
from pretrain.random import dropout
from pretrain.random.init import initial_values


class MegatronEngine:
    """See `base.Engine`. With `train=False` there is no optimizer and no gradient memory."""

    def __init__(self, config: RunConfig, layout: Layout, device: torch.device, train: bool) -> None:
        self.config, self.layout, self.device = config, layout, device
        if config.run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which torch refuses cuBLAS
            torch.use_deterministic_algorithms(True)
        self.groups = groups.Groups(layout, config.health.timeout_s)
        self.data_rank, self.data_world = self.groups.data_rank, self.groups.data_world
        self.is_reporter = self.groups.rank == 0
        self.updates = 0
        self.keeps_gradients = False
        self.objective = Tokens(
            config.model.vocabulary or 0,
            self.groups.tensor_group,
            holds_first=self.groups.context_rank == 0,
            smoothing=config.objective.label_smoothing,
        )
        self.megatron_config = transformer_config(config)
        with zero.creating(config, self.groups) if train else nullcontext():
            self.bare = [self._build_chunk(chunk) for chunk in range(layout.virtual)]
        self.parameters = [parameter for chunk in self.bare for parameter in parameters(chunk)]
        half = config.precision != "fp32"
        self.chunks: Sequence[Any] = [Float16Module(self.megatron_config, c) for c in self.bare] if half else self.bare
        self.loss_scale = DynamicLossScale(config.loss_scale) if config.precision == "fp16" else None
        self.sharding: Sharding | None = None
        if train:
            self.sharding = zero.share(
                config, layout, self.groups, self.megatron_config, self.chunks, self.parameters, device
            )
            self.chunks = self.sharding.chunks
            if self.loss_scale is not None:
                self.megatron_config.grad_scale_func = lambda loss: loss * self._backward_scale()
        # Sharding moves parameters into buffers and half precision replaces their values, never the objects.
        self.by_value = {parameter.value: parameter for parameter in self.parameters}

    def initialise(self) -> None:
        """Fills the weights from (seed, name, shape): see models/init.py."""
        for name, part in self.state().items():
            kind, _, parameter = name.partition("/")
            if kind == "model":
                for piece in part.pieces:
                    _fill(self.config, parameter, part.shape, piece)
        self.state_loaded(0)

    def train_step(self, batch: Batch, learning_rate: float, step: int) -> StepResult:
        """See `base.Engine`. Gradients are summed over micro-batches, data and context ranks and divided once by the
        global token count."""
        assert self.sharding is not None, "built for evaluation"
        self.sharding.begin(self.keeps_gradients)
        first_row = dropout.key(f"{self.config.run.seed}/{step}") + self.data_rank * len(batch.tokens)
        micro = self.config.batch.micro_sequences
        micro_batches = self._micro_batches(batch, micro, first_row, self._next_sentence_weight(batch))
        results = self._run(micro_batches, self.objective.forward, self._train_loss, forward_only=False)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for loss_sum, token_count in results:
            sums += torch.stack([loss_sum.double(), token_count.double()])
        loss_sum, token_count = self.groups.from_last_stage(self.groups.sum_over_replicas(sums)).tolist()
        self.sharding.reduce(int(token_count))
        loss_scale, scale = self.loss_scale and self.loss_scale.value, self._backward_scale()
        grad_norm = self.sharding.norm() / scale
        lowered = False
        finite = np.isfinite(grad_norm) and np.isfinite(loss_sum)
        if finite:
            factor = clip_factor(grad_norm, self.config.optimizer.clip_norm) / scale
            if factor != 1:
                self.sharding.scale(factor)
            self.sharding.update(learning_rate)
            self.updates += 1
            if self.loss_scale is not None:
                self.loss_scale.stepped()
        else:
            self.sharding.discard()
            if self.loss_scale is not None and np.isfinite(loss_sum):
                lowered = self.loss_scale.overflowed()
        return StepResult(loss_sum, int(token_count), grad_norm, not finite, lowered, loss_scale)

    def score(self, batch: Rows) -> Scores:
        """See `base.Engine`."""
        rows, length = batch.labels.shape
        micro = min(self.config.batch.micro_sequences, rows)
        group = micro * (self.layout.pipeline if self.layout.virtual > 1 else 1)
        padded = -(-rows // group) * group
        if padded > rows:
            batch = batch[np.arange(padded).clip(max=rows - 1)]
        slices = self.layout.context * (self.layout.tensor if self.layout.sequence else 1)
        for positions in (length, batch.tokens.shape[1]):
            if positions % slices:
                raise ValueError(f"{self.layout} scores multiples of {slices} positions, not {positions}")
        with self._evaluating():
            cuts = self._micro_batches(batch, micro)
            results = self._run(cuts, self.objective.forward, self._score_loss, forward_only=True)
        both = torch.zeros(2, padded, length // self.layout.context, device=self.device)
        for index, (log_probability, greedy) in enumerate(results):
            both[:, index * micro : (index + 1) * micro] = torch.stack([log_probability.float(), greedy.float()])
        both = self.groups.gather_over_context(self.groups.from_last_stage(both))
        log_probability, greedy = both[:, :rows].cpu().numpy()
        return Scores(log_probability, greedy.astype(bool))

    def logits(self, batch: Rows) -> tuple[Tensor, ...]:
        """[rows, labels, vocabulary] float32 on the CPU, and with a pooled head [rows, 2]; on one rank, for parity with
        other implementations."""
        assert self.layout.world == 1, "logits are for one rank"

        def whole(_: MicroBatch, outputs: Any) -> tuple[Tensor, Tensor, Any]:
            logits_LBV, *more = outputs if isinstance(outputs, tuple) else (outputs,)
            real_BLV = logits_LBV[..., : self.objective.vocabulary].transpose(0, 1)
            return logits_LBV.sum(), torch.tensor(0, dtype=torch.int), [x.float().cpu() for x in (real_BLV, *more)]

        with self._evaluating():
            results = self._run(self._micro_batches(batch, 1), self.objective.forward, whole, forward_only=True)
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int) -> list[list[int]]:
        """See `base.Engine`. Prompts of different lengths advance together: the shortest is read at once, then one
        position at a time, each row taking its own prompt's token while it has one (exact without padding)."""
        if self.layout.virtual > 1 or self.layout.context > 1:
            raise ConfigError("generation runs with parallel.virtual=1 and parallel.context=1, which change no number")
        shortest, longest = min(map(len, prompts)), max(map(len, prompts))
        total = longest + new_tokens
        if total > self.config.model.sequence_length:
            raise ValueError(f"{total} positions do not fit model.sequence_length={self.config.model.sequence_length}")
        rows = len(prompts)
        ids = torch.zeros(rows, total, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(list(prompt), device=self.device)
        ends = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        cache = StaticInferenceContext(rows, total)
        finished = torch.zeros(rows, dtype=torch.bool, device=self.device)
        with self._evaluating(), self._without_sequence_parallel():
            begin = 0
            for end in range(shortest, total):
                next_id = self._next_token(ids[:, begin:end], begin, cache)
                cache.sequence_len_offset = begin = end
                ids[:, end] = torch.where(end < ends, ids[:, end], next_id)
                finished |= (end >= ends) & (ids[:, end] == stop)
                if bool((finished | (end + 1 >= ends + new_tokens)).all()):
                    break
        return [_until(ids[row, len(p) : len(p) + new_tokens].tolist(), stop) for row, p in enumerate(prompts)]

    def encode(self, tokens: np.ndarray, attention_mask: np.ndarray) -> "Encoded":
        """See `base.Engine`."""
        if self.layout.pipeline > 1 or self.layout.context > 1:
            raise ConfigError(
                "translation runs with parallel.pipeline=1 and parallel.context=1, which change no number"
            )
        there = self._micro_batches(Rows(tokens, tokens, tokens, attention_mask=attention_mask), len(tokens))[0]
        with self._evaluating(), self._without_sequence_parallel():
            return Encoded(self.bare[0].encode(there), there)

    def next_tokens(self, encoded: "Encoded", rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """See `base.Engine`."""
        there = torch.as_tensor(rows, device=self.device)
        assert encoded.batch.attention_mask_BS is not None
        ids = torch.as_tensor(targets, device=self.device)
        batch = replace(
            encoded.batch,
            tokens_BS=encoded.batch.tokens_BS[there],
            attention_mask_BS=encoded.batch.attention_mask_BS[there],
            labels_BL=ids[:, -1:],  # the head works on the last position
            decoder_tokens_BL=ids,
            decoder_positions_BL=torch.arange(ids.shape[1], device=self.device).expand_as(ids),
        )
        with self._evaluating(), self._without_sequence_parallel():
            logits_1BV = self.bare[0].decode(encoded.memory_SBH[:, there], batch)
            return self.objective.log_probabilities(logits_1BV)[0].cpu().numpy()

    def state(self) -> dict[str, GlobalPart]:
        """See `base.Engine`. Names are `model/...` (fp32 weights) and those of the optimizer's moments."""
        if self.sharding is None:
            return self._parts((p.value, 0, {"model": p.value.detach().view(-1)}) for p in self.parameters)
        parts = self._parts((o.parameter, o.start, {"model": o.main, **o.moments}) for o in self.sharding.owned())
        for parameter, factors in self.sharding.factors():  # every rank has them whole
            saves = self.groups.tensor_rank == 0 and self.groups.replica_rank == 0 and not parameter.copy
            for kind, value in factors.items():
                parts[f"{kind}/{parameter.name}"] = GlobalPart(tuple(value.shape), (Piece((0,), value),), saves)
        return parts

    def gradients(self) -> dict[str, GlobalPart]:
        """See `base.Engine`."""
        assert self.sharding is not None, "built for evaluation"
        assert self.keeps_gradients, "gradients were not kept"
        return self._parts((r.parameter, r.start, {"gradient": r.value}) for r in self.sharding.gradients())

    def weights_in_use(self) -> dict[str, GlobalPart]:
        """See `base.Engine`."""
        assert self.sharding is not None, "built for evaluation"
        return self._parts((r.parameter, r.start, {"weight": r.value}) for r in self.sharding.in_use())

    def state_loaded(self, updates: int, loss_scale: tuple[float, int] | None = None) -> None:
        """See `base.Engine`."""
        self.updates = updates
        if self.loss_scale is not None and loss_scale is not None:
            self.loss_scale.state = loss_scale
        if self.sharding is not None:
            self.sharding.loaded(updates)

    def any(self, flag: bool) -> bool:
        """See `base.Engine`."""
        return self.groups.any(flag, self.device)

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        """See `base.Engine`."""
        return self.groups.sum_over_data(torch.from_numpy(values).to(self.device)).cpu().numpy()

    def _build_chunk(self, index: int) -> nn.Module:
        chunk = index if self.layout.virtual > 1 else None
        build = FAMILIES[self.config.model.family]
        first, last = groups.is_first(chunk), groups.is_last(chunk)
        module = build(self.config.model, self.megatron_config, first, last, chunk).to(self.device)
        mark_split(module)
        place_dropout(module, self.groups.axes)
        return module

    def _parts(self, held: Iterable[tuple[nn.Parameter, int, dict[str, Tensor]]]) -> dict[str, GlobalPart]:
        """`held`: parameter, where this rank's flat range of its local values begins, and the tensors of that range."""
        replicated = self.sharding is None or self.sharding.replicated
        parts = {}
        for value, start, tensors in held:
            parameter = self.by_value[value]
            saves = not (replicated and self.groups.replica_rank) and not parameter.copy
            saves = saves and (parameter.split_dim is not None or self.groups.tensor_rank == 0)
            shape = parameter.global_shape(self.layout.tensor)
            local, offset = parameter.local_shape, parameter.offset(self.groups.tensor_rank)
            for kind, tensor in tensors.items():
                name = f"{kind}/{parameter.name}"
                assert name not in parts, "one rank never holds a tied embedding and its copy"
                parts[name] = GlobalPart(shape, pieces(tensor.view(-1), start, local, offset), saves)
        return parts

    def _micro_batches(
        self, batch: Rows, micro: int, first_row: int = 0, next_sentence_weight: float = 0.0
    ) -> list[MicroBatch]:
        """Cuts this rank's rows, which dropout numbers from `first_row`, into micro-batches on the device: of each row
        the positions that are this context rank's."""
        inputs, labels = (self._own_positions(x.shape[1]) for x in (batch.tokens, batch.labels))
        found = []
        for start in range(0, len(batch.tokens), micro):
            cut = batch[slice(start, start + micro)]
            documents = self._move(cut.documents)
            found.append(
                MicroBatch(
                    tokens_BS=self._move(cut.tokens, inputs),
                    positions_BS=(
                        self._positions(inputs, micro) if documents is None else positions_within(documents)[:, inputs]
                    ),
                    labels_BL=self._move(cut.labels, labels),
                    loss_mask_BL=self._move(cut.loss_mask, labels),
                    decoder_tokens_BL=self._move(cut.decoder_tokens, labels),
                    decoder_positions_BL=None if cut.decoder_tokens is None else self._positions(labels, micro),
                    attention_mask_BS=self._move(cut.attention_mask),
                    segments_BS=self._move(cut.segments, inputs),
                    next_sentence_B=self._move(cut.next_sentence),
                    documents_BS=documents,
                    next_sentence_weight=next_sentence_weight,
                    first_row=first_row + start,
                )
            )
        return found

    def _own_positions(self, length: int) -> slice:
        """This context rank's of `length` positions."""
        count = length // self.layout.context
        return slice(self.groups.context_rank * count, (self.groups.context_rank + 1) * count)

    def _positions(self, own: slice, rows: int) -> Tensor:
        return torch.arange(own.start, own.stop, device=self.device).expand(rows, -1)

    def _move(self, values: np.ndarray | None, columns: slice | None = None) -> Tensor | None:
        if values is None:
            return None
        if not values.flags.writeable:  # several batches share it, and torch knows nothing of arrays to read only
            values = values.copy()
        return torch.as_tensor(values if columns is None else values[:, columns], device=self.device)

    def _next_sentence_weight(self, batch: Batch) -> float:
        """What makes the sum of losses a sum of two means, of tokens' and of rows', when divided by the tokens: the
        loss-bearing tokens of the global batch for each of its rows."""
        if batch.next_sentence is None:
            return 0.0
        tokens, rows = self.sum_over_data(np.array([batch.loss_mask.sum(dtype=np.float64), len(batch.next_sentence)]))
        return float(tokens / rows)

    def _run(
        self,
        batches: list[MicroBatch],
        forward: Callable[[nn.Module, MicroBatch], Tensor],
        loss: Callable[[MicroBatch, Tensor], tuple[Tensor, Tensor, Any]],
        forward_only: bool,
    ) -> list[Any]:
        """Runs megatron-core's schedule; the last stage returns what `loss` reports for each micro-batch."""

        def step(iterator: Iterator[MicroBatch], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
            batch = next(iterator)
            dropout.begin(batch.first_row)
            output = forward(model, batch)
            if not forward_only:
                assert self.sharding is not None
                self.sharding.forwarded(model, output)
            return output, partial(loss, batch)

        schedule = get_forward_backward_func()
        iterators = [iter(batches) for _ in self.chunks]
        virtual = self.layout.virtual > 1
        rows, length = batches[0].tokens_BS.shape
        positions = self._stream_positions(length, batches[0].labels_BL.shape[1])
        return schedule(
            forward_step_func=step,
            data_iterator=iterators if virtual else iterators[0],
            model=self.chunks if virtual else self.chunks[0],
            num_microbatches=len(batches),
            seq_length=positions,
            micro_batch_size=rows,
            forward_only=forward_only,
        )

    def _stream_positions(self, inputs: int, labels: int) -> int:
        """Of what travels between stages, over all ranks that share it: megatron-core divides by those."""
        layout = self.layout
        slices = layout.context * (layout.tensor if layout.sequence else 1)
        whole = (x * layout.context for x in (inputs, labels))
        return stream_positions(self.config.model, *whole, slices, layout.tensor)

    def _train_loss(self, batch: MicroBatch, logits: Any) -> tuple[Tensor, Tensor, Any]:
        loss_sum, token_count = self.objective.loss(logits, batch)
        return loss_sum, token_count, (loss_sum.detach(), token_count)

    def _score_loss(self, batch: MicroBatch, logits: Any) -> tuple[Tensor, Tensor, Any]:
        log_probability, greedy = self.objective.score(logits, batch)
        return log_probability.sum(), torch.tensor(0, dtype=torch.int), (log_probability, greedy)

    def _next_token(self, ids: Tensor, begin: int, cache: StaticInferenceContext) -> Tensor:
        """The most probable token after `ids` [rows, positions], which follow `begin` cached positions."""
        positions = torch.arange(begin, begin + ids.shape[1], device=self.device).expand_as(ids)
        batch = MicroBatch(ids, positions, ids, ids)

        def last_id(_: MicroBatch, logits: Tensor) -> tuple[Tensor, Tensor, Any]:
            return logits.sum(), torch.tensor(0, dtype=torch.int), self.objective.next_token(logits)

        results = self._run([batch], partial(self.objective.forward, cache=cache), last_id, forward_only=True)
        best = results[0] if results else torch.zeros(ids.shape[0], dtype=torch.long, device=self.device)
        return self.groups.from_last_stage(best)

    def _backward_scale(self) -> float:
        """What the loss is multiplied by in the backward pass: the loss scale, of the mean over a micro-batch's
        positions, so that what fits fp16 depends little on how large micro-batches are."""
        if self.loss_scale is None:
            return 1.0
        return self.loss_scale.value / (self.config.batch.micro_sequences * self.config.model.sequence_length)

    def _evaluating(self) -> "_Evaluating":
        return _Evaluating(self.chunks)

    def _without_sequence_parallel(self) -> "_WithoutSequenceParallel":
        return _WithoutSequenceParallel(self.bare, self.layout.sequence)


@dataclass(frozen=True)
class Encoded:
    """Inputs, as an encoder leaves them."""

    memory_SBH: Tensor
    batch: MicroBatch


class _Evaluating:
    """Dropout and gradients off inside, as before outside."""

    def __init__(self, chunks: list[nn.Module]) -> None:
        self.chunks, self.grad = chunks, torch.no_grad()

    def __enter__(self) -> None:
        self.grad.__enter__()
        for chunk in self.chunks:
            chunk.eval()

    def __exit__(self, *error: Any) -> None:
        for chunk in self.chunks:
            chunk.train()
        self.grad.__exit__(*error)


class _WithoutSequenceParallel:
    """A single position cannot be split over tensor ranks: generation runs without sequence parallelism."""

    def __init__(self, chunks: list[nn.Module], on: bool) -> None:
        self.chunks, self.on = chunks, on

    def __enter__(self) -> None:
        self._set(False)

    def __exit__(self, *error: Any) -> None:
        self._set(True)

    def _set(self, value: bool) -> None:
        for chunk in self.chunks if self.on else ():
            set_model_to_sequence_parallel(chunk, value)
            get_model_config(chunk).sequence_parallel = value


def _fill(config: RunConfig, name: str, shape: tuple[int, ...], piece: Piece) -> None:
    """Writes the initial values of one box, row by row where the box does not span whole rows."""
    values = partial(initial_values, config.model, config.run.seed, name, shape)
    box = piece.value.shape
    if len(shape) == 1:
        piece.value.copy_(values(piece.offset[0], box[0]))
        return
    (row, column), columns = piece.offset, shape[1]
    if box[1] == columns:
        piece.value.copy_(values(row * columns, box[0] * columns).view(box))
        return
    whole = values(row * columns, box[0] * columns).view(box[0], columns)
    piece.value.copy_(whole[:, column : column + box[1]])


def _until(ids: list[int], stop: int) -> list[int]:
    return ids[: ids.index(stop)] if stop in ids else ids
