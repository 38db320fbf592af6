"""A second computation of a step in place (`health.replay_every`): the same rows, weights and dropout give the same
bits, or a machine computes wrong.

In such a step the passes run twice, and each rank compares digests of what it computed itself (outputs of its chunks,
the loss, its gradients before ranks exchange them), of the gradients after the exchange, and of its weights before and
after. Where something differs the step is computed a third time, the data rank next to each computes the same rows, and
MiscomputedError is raised; the update is not made.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.digest import digest, follow
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.miscomputed import RankFinding, explain, explain_replicas
from pretrain.engine.megatron.step_part import Compute, ComputedStep, StepPart
from pretrain.engine.zero.base import Sharding
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.models.outputs import tensors_in
from pretrain.models.placement import Parameter
from pretrain.process.rank_location import this_rank

_LOSS, _CARRIED = "the loss", "what the next step reads"


@dataclass(frozen=True)
class PassDigests:
    """Digests of one computation of a step, by what they are of."""

    outputs: tuple[tuple[int, int], ...]
    """chunk and digest of each chunk's output, in the order in which they were computed"""
    own: Mapping[str, int]
    """what this rank computed before ranks exchanged it"""
    exchanged: Mapping[str, int]

    @property
    def whole(self) -> int:
        """One number for what this rank computed itself."""
        computed = sorted((name, found) for name, found in self.own.items() if name != _CARRIED)
        return int.from_bytes(blake2b(repr((self.outputs, computed)).encode(), digest_size=8).digest())


def check_repeats(config: RunConfig, on_gpu: bool) -> None:
    """Raises ConfigError where steps are to be replayed and a second computation may give other bits."""
    if config.health.replay_every and on_gpu and not config.run.deterministic:
        raise ConfigError(
            "health.replay_every compares bits, and on a GPU the same step gives the same bits only with "
            "run.deterministic=true: set it, or health.replay_every=0"
        )


class StepReplay(StepPart):
    """Replays of steps of a run, and of its other `parts`. `chunks`: the model chunks as the schedule calls them, in
    the order in which they compute."""

    def __init__(
        self, *, every: int, layout: Layout, groups: Groups, sharding: Sharding, chunks: Sequence[nn.Module],
        parameters: Sequence[Parameter], parts: Sequence[StepPart], device: torch.device,
    ) -> None:  # fmt: skip
        self._every, self._layout, self._groups, self._sharding = every, layout, groups, sharding
        self._parameters = {parameter.value: parameter for parameter in parameters}
        self._numbers = {chunk: number for number, chunk in enumerate(chunks)}
        self._chunk_of = {value: number for number, chunk in enumerate(chunks) for value in chunk.parameters()}
        self._parts, self._device = parts, device
        self._records = False
        self._outputs: list[tuple[int, Tensor]] = []
        self._gradients: dict[nn.Parameter, Tensor] = {}
        sharding.watch(_weak(self._note_gradient))

    def computation(self, step: int, compute: Compute) -> Compute:
        """See `StepPart`: steps that are due are computed twice."""
        return partial(self._check, step, compute) if step % self._every == 0 else compute

    def _check(self, step: int, compute: Compute, rows: Rows, own: int) -> ComputedStep:
        """Computes a step twice, of the rows of this data rank, `own`. Raises MiscomputedError on every rank if
        anything differs on one, and leaves no gradient then. Collective."""
        weights = self._weights()
        self._check_replicas(step, weights)
        _, first = self._recorded(compute, rows, own)
        self._sharding.discard()
        computed, second = self._recorded(compute, rows, own)
        changed = _different(weights, self._weights())
        if not self._groups.any(bool(changed) or first != second):
            return computed
        self._sharding.discard()
        _, third = self._recorded(compute, rows, own)
        self._sharding.discard()
        finding = RankFinding(
            rank=dist.get_rank(),
            location=this_rank(),
            coordinates=self._layout.coordinates(dist.get_rank()),
            weights=changed,
            output=_first_different(first.outputs, second.outputs),
            own=_different(first.own, second.own),
            chunk=self._deepest(_different(first.own, second.own)),
            exchanged=_different(first.exchanged, second.exchanged),
            wholes=(first.whole, second.whole, third.whole),
            of_next=self._next_digest(compute, rows),
        )
        findings: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(findings, finding)
        raise explain(step, findings, self._layout)

    def _recorded(self, compute: Compute, rows: Rows, data_rank: int) -> tuple[ComputedStep, PassDigests]:
        self._outputs, self._gradients, self._records = [], {}, True
        handles = [chunk.register_forward_hook(self._note_output) for chunk in self._numbers]
        try:
            computed = compute(rows, data_rank)
        finally:
            self._records = False
            for handle in handles:
                handle.remove()
        own: dict[str, Tensor] = {}
        for value, gradient in self._gradients.items():  # of a tied table a rank may hold two
            _add(own, self._parameters[value].name, gradient)
        own[_LOSS] = digest(computed.own_sums)
        exchanged = self._by_name(self._sharding.reduced()) | {_LOSS: digest(computed.sums)}
        for part in self._parts:
            for digests, found_by in ((own, part.found()), (exchanged, part.exchanged())):
                for name, tensors in found_by.items():
                    for tensor in tensors:
                        _add(digests, name, digest(tensor))
        for tensor in self._carried():
            _add(own, _CARRIED, digest(tensor))
        numbers = iter(_to_host([*(found for _, found in self._outputs), *own.values(), *exchanged.values()]))
        outputs = tuple((chunk, next(numbers)) for chunk, _ in self._outputs)
        return computed, PassDigests(
            outputs, {name: next(numbers) for name in own}, {name: next(numbers) for name in exchanged}
        )

    def _next_digest(self, compute: Compute, rows: Rows) -> int | None:
        """Digest of this rank's own computation of the rows of the next data rank; None where ranks depend on each
        other's rows, or there is one. Collective."""
        if self._layout.data == 1 or self._layout.expert > 1 or self._carried():
            return None
        following = (self._groups.data_rank + 1) % self._layout.data
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, (self._groups.data_rank, rows))
        _, digests = self._recorded(compute, dict(of_ranks)[following], following)
        self._sharding.discard()
        return digests.whole

    def _carried(self) -> list[Tensor]:
        return [tensor for part in self._parts for tensor in part.carried()]

    def _weights(self) -> dict[str, int]:
        """Digests of the weights that this rank computes with."""
        found = self._by_name(self._sharding.in_use())
        return dict(zip(found, _to_host(list(found.values())), strict=True))

    def _check_replicas(self, step: int, weights: Mapping[str, int]) -> None:
        """Raises MiscomputedError where data and context ranks, which hold the same weights, differ in some.
        Collective."""
        if self._layout.zero == 3:  # each holds a part of its own
            return
        splits = {parameter.name: parameter.splits_experts for parameter in self._parameters.values()}
        differing: list[tuple[str, list[int]]] = []
        for of_experts in (False, True):
            group = self._groups.replicas_of(of_experts)
            names = sorted(name for name in weights if splits[name] == of_experts)
            if dist.get_world_size(group) == 1 or not names:
                continue
            mine = torch.tensor([weights[name] for name in names], device=self._device)
            held = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(held, mine, group=group)
            if any(not torch.equal(one, mine) for one in held):
                ranks = dist.get_process_group_ranks(group)
                differing += [
                    (name, [ranks[place] for place in _minority([int(one[number]) for one in held])])
                    for number, name in enumerate(names)
                    if any(one[number] != mine[number] for one in held)
                ]
        if not self._groups.any(bool(differing)):
            return
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (this_rank(), differing))
        raise explain_replicas(step, [location for location, _ in found], [pair for _, more in found for pair in more])

    def _note_output(self, chunk: nn.Module, inputs: Any, output: Any) -> None:
        """A forward hook: in the passes of a step a backward pass follows each of these."""
        number = self._numbers[chunk]
        self._outputs += [(number, digest(tensor)) for tensor in tensors_in(output)]

    def _note_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        if self._records:
            before, found = self._gradients.get(parameter), digest(gradient)
            self._gradients[parameter] = found if before is None else follow(before, found)

    def _by_name(self, ranges: Iterable[Any]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for one in ranges:
            _add(found, self._parameters[one.parameter].name, digest(one.value))
        return found

    def _deepest(self, names: Sequence[str]) -> int:
        """The last chunk of those that hold these parameters; a loss is behind all."""
        if any(name.startswith(_LOSS) for name in names):
            return max(self._chunk_of.values())
        chunks = {self._parameters[value].name: chunk for value, chunk in self._chunk_of.items()}
        return max((chunks[name] for name in names if name in chunks), default=-1)


def _weak(note: Callable[[nn.Parameter, Tensor], None]) -> Callable[[nn.Parameter, Tensor], None]:
    """Hooks of parameters would keep an engine alive where Python's garbage collection does not see it."""
    method = weakref.WeakMethod(note)

    def noted(parameter: nn.Parameter, gradient: Tensor) -> None:
        alive = method()
        if alive is not None:
            alive(parameter, gradient)

    return noted


def _add(digests: dict[str, Tensor], name: str, found: Tensor) -> None:
    digests[name] = follow(digests[name], found) if name in digests else found


def _to_host(digests: Sequence[Tensor]) -> list[int]:
    numbers: list[int] = torch.stack(list(digests)).tolist() if digests else []
    return numbers


def _different(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(name for name in a if a[name] != b.get(name))


def _first_different(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> int | None:
    """The first chunk, in the order of the model, whose outputs differ."""
    return min((one[0] for one, other in zip(a, b, strict=True) if one != other), default=None)


def _minority(values: Sequence[int]) -> list[int]:
    """Places of the values that are not the most frequent one; all places where no value is."""
    counts = sorted(((values.count(value), value) for value in set(values)), reverse=True)
    if counts[0][0] == counts[1][0]:
        return list(range(len(values)))
    return [place for place, value in enumerate(values) if value != counts[0][1]]
