"""megatron-core as an engine: its models, schedules, data parallel and optimizer, driven by our objective."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from data_pipeline.batch import Batch, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart, P, StepResult
from pretrain.engine.loss_scale import make_loss_scale
from pretrain.engine.megatron.built_model import RunModels, build_models
from pretrain.engine.megatron.forward_engine import ForwardEngine
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.on_demand import weights_on_demand
from pretrain.engine.megatron.padding import PaddingTrimmer
from pretrain.engine.megatron.ranges import named_ranges
from pretrain.engine.megatron.replay import check_repeats
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.megatron.state import State, fill_initial
from pretrain.engine.megatron.step_cutter import StepCutter
from pretrain.engine.megatron.step_part import Compute, ComputedStep, Report, StepPasses
from pretrain.engine.megatron.step_parts import step_parts
from pretrain.engine.megatron.step_work import StepWork
from pretrain.engine.megatron.united import united
from pretrain.engine.zero import select
from pretrain.engine.zero.base import Sharding
from pretrain.engine.zero.gradient_norm import clip_factor
from pretrain.layout.layout import Layout
from pretrain.model_spec.generator import run_specs
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.terms import Term, scales, source_term, sum_pairs, total
from pretrain.random import dropout


class MegatronEngine(ForwardEngine):
    """See `base.Engine`. With `train=False` there is no optimizer and no gradient memory."""

    def __init__(
        self, config: RunConfig, layout: Layout, kernels: Kernels, train: bool, hosts_backend: str = "gloo"
    ) -> None:
        if train:
            check_repeats(config, kernels.on_gpu)
        super().__init__(config, layout, kernels, hosts_backend)
        self.shares_weights = train and (config.parallel.zero == 3 or layout.expert > 1)
        self.updates = 0
        self.keeps_gradients = False
        self.loss_scale = make_loss_scale(config)
        with select.model_init(config, self.groups) if train else nullcontext():
            models = build_models(config, layout, self.groups, kernels)
        models = models.in_precision(half=config.precision != "fp32")
        self.sharding = self._shard(models) if train else None
        if self.sharding is not None:
            models = models.with_chunks(self.sharding.chunks, self.sharding.generator_chunks)
        self.megatron_config, self.bare = models.main.megatron, models.main.chunks
        self.parameters, self.chunks = models.parameters, models.chunks
        self._all_chunks = [*models.chunks, *models.generator_chunks]
        self._router_biases = models.main.router_biases
        self._state = State(self.parameters, self.groups, self.sharding, self._router_biases)
        self._parts = step_parts(
            config,
            layout,
            self.groups,
            kernels,
            models=models,
            objective=self.objective,
            sharding=self.sharding,
        )
        reads = frozenset[str]().union(*(part.reads for part in self._parts))
        cutter = Cutter(self.groups, self.device, config.model, reads)
        trimmer = PaddingTrimmer(config, layout, on_gpu=kernels.on_gpu)
        runner = Runner(config.model, layout, self.bare, self.chunks)
        self._step_cutter = StepCutter(config, layout, cutter, trimmer)
        self._work = StepWork(config)
        self._prepare_passes(runner, cutter, trimmer, self._parts, self.shares_weights)
        if kernels.on_gpu:  # segments of the first copies of weights are too small for a step's tensors
            torch.cuda.empty_cache()

    def _shard(self, models: RunModels) -> Sharding:
        """Shards the state of `models`; in fp16, their losses are scaled in the backward pass."""
        sharding = select.make_sharding(
            config=self.config,
            layout=self.layout,
            groups=self.groups,
            megatron=models.main.megatron,
            chunks=models.chunks,
            generator_chunks=models.generator_chunks,
            parameters=models.parameters,
            device=self.device,
        )
        for built in models.built if self.config.precision == "fp16" else ():
            built.megatron.grad_scale_func = lambda loss: loss * self._backward_scale()
        return sharding

    def initialise(self) -> None:
        """See `base.TrainEngine`."""
        fill_initial(run_specs(self.config), self.config.run.seed, self.state())
        self.loss_scale.begin()
        self.state_loaded(0)

    def use_settings(self, config: RunConfig) -> None:
        """See `base.TrainEngine`."""
        self.objective.use_settings(config)
        for part in self._parts:
            part.use_settings(config)

    def train_step(self, batch: Batch, learning_rate: float, step: int) -> StepResult:
        """See `base.TrainEngine`. Gradients are summed over micro-batches, data and context ranks and divided once by
        the main term's count in the global batch. The host waits once for what the device has found."""
        computed = self._compute_step(batch, step)
        scale = self._backward_scale()
        found = self._read(computed, step, scale)
        if not np.isfinite(found.loss_sum):
            self._sharding.discard()
            return replace(found, skipped=True)
        if not np.isfinite(found.grad_norm):
            self._sharding.discard()
            return replace(found, skipped=True, lowered_scale=self.loss_scale.overflowed())
        clipped_by = clip_factor(found.grad_norm, self.config.optimizer.clip_norm)
        with record_function("step/optimizer"):
            if clipped_by / scale != 1:
                self._sharding.scale(clipped_by / scale)
            self._sharding.update(learning_rate, united(part.row_factors() for part in self._parts))
        self.updates += 1
        self.loss_scale.stepped()
        of_update = united(part.updated(step, self._sharding, clipped_by) for part in self._parts)
        return replace(found, figures={**found.figures, **of_update})

    def _compute_step(self, batch: Batch, step: int) -> ComputedStep:
        """A step up to its update."""
        keeps = self.keeps_gradients or any(part.keeps_gradients(step) for part in self._parts)
        compute: Compute = partial(self._compute_gradient, step=step, keeps=keeps)
        with ExitStack() as around:
            for part in self._parts:
                around.enter_context(part.during(step))
                compute = part.computation(step, compute)
            return compute(batch, self.data_rank)

    def _compute_gradient(self, batch: Rows, data_rank: int, *, step: int, keeps: bool) -> ComputedStep:
        """The passes of a step over the rows of a data rank, and the exchange of gradients. `keeps`: see
        `Sharding.begin`. Collective."""
        self._sharding.begin(keeps)
        first_row = dropout.key(f"{self.config.run.seed}/{step}") + data_rank * len(batch.tokens)
        micro_batches: Sequence[MicroBatch] = self._step_cutter.cut(batch, first_row)
        positions = sum(one.tokens_BS.numel() for one in micro_batches) * self.layout.context
        of_parts = (count for part in self._parts for count in part.counts(batch))
        local = [*self.objective.counts(batch), *of_parts, positions, *self._work.row_work(batch)]
        *counts, computed, tokens, flops = self.groups.sum_over_data(np.array(local)).tolist()
        token_count = int(np.nan_to_num(counts[0]))
        weights = dict(self.objective.weights) | united(part.weights for part in self._parts)
        names = list(self.objective.weights) if len(weights) > 1 else []
        factors = scales(weights, counts)
        report: Report = partial(self._report, factors, names)
        passes = StepPasses(
            factors=factors,
            scale=self._backward_scale(),
            first_row=first_row,
            report=report,
            forwarded=self._sharding.forwarded,
        )
        for part in self._parts:
            micro_batches = part.attached(micro_batches, passes)
        forward = partial(self.objective.forward_train, factors=factors)

        def loss(batch: MicroBatch, outputs: ModelOutputs) -> tuple[Tensor, Tensor, list[Term]]:
            return report(self.objective.terms(outputs, batch))

        results = [*passes.reported, *self._runner.train(micro_batches, forward, loss, self._sharding.forwarded)]
        sources = self.objective.sources if batch.source is not None else ()
        own_sums = sum_pairs(results, 1 + len(names) + len(sources), self.device)
        sums = self.groups.broadcast_over_pipeline(self.groups.sum_over_replicas(own_sums.clone()))
        with record_function("step/exchange"):
            self._sharding.reduce(token_count)
        for part in self._parts:
            part.computed()
        return ComputedStep(
            own_sums=own_sums,
            sums=sums,
            counts=counts,
            factors=factors,
            names=names,
            sources=sources,
            computed_positions=int(computed),
            tokens=int(tokens),
            flops=flops,
        )

    def _read(self, computed: ComputedStep, step: int, scale: float) -> StepResult:
        """Results of the passes, as numbers: here the host waits. `scale`: that of the gradient."""
        with record_function("step/optimizer"):
            of_parts = [part.values(step) for part in self._parts]
            tensors = [self._sharding.norm(), computed.sums.view(-1), *chain.from_iterable(of_parts)]
            numbers = iter(torch.cat(tensors).tolist())
        norm, loss_sum, judged = islice(numbers, 3)
        terms = {name: (next(numbers), int(next(numbers))) for name in computed.names}
        by_source = {name: (next(numbers), int(next(numbers))) for name in computed.sources}
        figures: dict[str, float] = {}
        tokens_per_expert: dict[str, Sequence[int]] = {}
        counts = islice(computed.counts, len(self.objective.weights), None)
        for part, values in zip(self._parts, of_parts, strict=True):
            told = part.read(list(islice(numbers, sum(map(len, values)))), list(islice(counts, len(part.weights))))
            loss_sum += sum(computed.factors.get(name, 1.0) * value for name, (value, _) in told.terms.items())
            terms |= told.terms
            figures |= told.figures
            tokens_per_expert |= told.tokens_per_expert
        return StepResult(
            loss_sum=loss_sum,
            token_count=int(judged),
            grad_norm=norm / scale,
            skipped=False,
            loss_scale=self.loss_scale.value,
            terms=terms,
            by_source=by_source,
            computed_positions=computed.computed_positions,
            tokens=computed.tokens,
            flops=computed.flops,
            figures=figures,
            tokens_per_expert=tokens_per_expert,
        )

    def part(self, kind: type[P]) -> P:
        """See `base.TrainEngine`."""
        return next(part for part in self._parts if isinstance(part, kind))

    def weights_on_demand(self, load: Callable[[dict[str, GlobalPart]], None]) -> AbstractContextManager[None]:
        """See `base.InspectEngine`."""
        assert self.sharding is None, "built to train"
        assert self.layout.world == 1, "layers are read on one rank"
        return weights_on_demand(self.bare, self.parameters, self.groups, self._router_biases, load)

    def named_ranges(self) -> AbstractContextManager[None]:
        """See `base.TrainEngine`."""
        return named_ranges(self._all_chunks)

    def state(self) -> dict[str, GlobalPart]:
        """See `base.TrainEngine`. Names are `model/...` (fp32 weights), those of the optimizer's moments, and those of
        parts, such as `memory/...`."""
        return self._state.saved() | united(part.state() for part in self._parts)

    def gradients(self) -> dict[str, GlobalPart]:
        """See `base.InspectEngine`."""
        assert self.keeps_gradients, "gradients were not kept"
        return self._state.named("gradient", self._sharding.gradients())

    def weights_in_use(self) -> dict[str, GlobalPart]:
        """See `base.InspectEngine`."""
        return self._state.named("weight", self._sharding.in_use())

    def state_loaded(self, updates: int, loss_scale: tuple[float, int] | None = None) -> None:
        """See `base.TrainEngine`."""
        self.updates = updates
        if loss_scale is not None:
            self.loss_scale.load(loss_scale)
        if self.sharding is not None:
            self.sharding.loaded(updates)

    def _report(
        self, factors: dict[str, float], names: Sequence[str], terms: dict[str, Term]
    ) -> tuple[Tensor, Tensor, list[Term]]:
        """(loss sum, token count, terms to report) of the terms of one pass: the loss, those of `names`, and the main
        one of each source. Those of other passes are zero here."""
        main = next(iter(self.objective.weights))
        loss = total({name: term for name, term in terms.items() if name in self.objective.weights}, factors)
        nothing = Term(torch.zeros_like(loss.detach()), torch.zeros_like(next(iter(terms.values())).count))
        count = terms.get(main, nothing).count
        every = [terms.get(name, nothing) for name in names]
        of_sources = map(source_term, self.objective.sources)
        by_source = [terms[name] for name in of_sources if name in terms]
        return loss, count, [term.detached() for term in (Term(loss, count), *every, *by_source)]

    def _backward_scale(self) -> float:
        """The factor of the summed loss in the backward pass."""
        return self.loss_scale.sum_factor(self.config.model.sequence_length)

    @property
    def _sharding(self) -> Sharding:
        assert self.sharding is not None, "built for evaluation"
        return self.sharding
