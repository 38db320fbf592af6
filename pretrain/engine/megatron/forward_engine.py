"""Computations of an engine without a backward pass: scores of labels, logits, decoding and hidden states."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Scores, Stack
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.decoding import Decoder, Hypotheses
from pretrain.engine.megatron.hidden_states import HiddenStates
from pretrain.engine.megatron.label_scores import LabelScores
from pretrain.engine.megatron.logits import compute_logits
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.padding import PaddingTrimmer
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.megatron.step_part import StepPart
from pretrain.layout.layout import Layout
from pretrain.models.kernels import Kernels
from pretrain.objectives.base import LossGroups
from pretrain.objectives.registry import make_loss
from pretrain.objectives.tokens import Tokens


class ForwardEngine:
    """The groups of ranks of an engine, its objective, and its passes without a backward pass. A subclass builds the
    model, and then calls `_prepare_passes`."""

    def __init__(self, config: RunConfig, layout: Layout, kernels: Kernels, hosts_backend: str) -> None:
        self.config, self.layout, self.device = config, layout, kernels.device
        if config.run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which torch refuses cuBLAS
            torch.use_deterministic_algorithms(True)
        self.groups = Groups(layout, config.health.timeout_s, hosts_backend)
        self.data_rank, self.data_world = self.groups.data_rank, self.groups.data_world
        self.is_reporter = self.groups.rank == 0
        self.decodes = layout.virtual == layout.context == 1
        loss_groups = LossGroups(self.groups.tensor_group, self.groups.context_group)
        self.objective = make_loss(config, kernels, loss_groups)
        self._decoded_tokens = Tokens(config, kernels, loss_groups)

    def _prepare_passes(
        self, runner: Runner, cutter: Cutter, trimmer: PaddingTrimmer, parts: Sequence[StepPart], shares_weights: bool
    ) -> None:
        """`shares_weights`: see `base.ScoreEngine`."""
        config, layout, groups, device = self.config, self.layout, self.groups, self.device
        self._runner, self._cutter = runner, cutter
        self._label_scores = LabelScores(
            config=config,
            layout=layout,
            groups=groups,
            runner=runner,
            cutter=cutter,
            trimmer=trimmer,
            parts=parts,
            objective=self.objective,
            device=device,
            shares_weights=shares_weights,
        )
        self._decoder = Decoder(
            config=config,
            layout=layout,
            groups=groups,
            runner=runner,
            cutter=cutter,
            objective=self._decoded_tokens,
            device=device,
            any_rank=groups.any if shares_weights else None,
        )
        self._hidden_states = HiddenStates(
            model=config.model, layout=layout, groups=groups, runner=runner, cutter=cutter, device=device
        )

    def score(self, batch: Rows) -> Scores:
        """See `base.ScoreEngine`."""
        return self._label_scores.compute(batch)

    def logits(self, batch: Rows) -> tuple[Tensor, ...]:
        """See `base.InspectEngine`."""
        assert self.layout.world == 1, "logits are for one rank"
        return compute_logits(self._runner, self._cutter, batch, self.config.model.vocabulary)

    def in_step(self) -> AbstractContextManager[None]:
        """See `base.DecodeEngine`."""
        return self._decoder.in_step()

    def prefill(self, inputs: Sequence[Sequence[int]]) -> Hypotheses:
        """See `base.DecodeEngine`."""
        return self._decoder.prefill(inputs)

    def next_tokens(self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `base.DecodeEngine`."""
        return self._decoder.next_tokens(hypotheses, parents, tokens)

    def score_continuations(
        self, hypotheses: Hypotheses, parents: np.ndarray, tokens: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `base.DecodeEngine`."""
        return self._decoder.score_continuations(hypotheses, parents, tokens, labels)

    def argmax_tokens(self, batch: Rows) -> np.ndarray:
        """See `base.DecodeEngine`."""
        return self._decoder.argmax_tokens(batch)

    def source_attention(self, batch: Rows) -> np.ndarray:
        """See `base.DecodeEngine`."""
        return self._decoder.source_attention(batch)

    def hidden_states(self, batch: Rows, stack: Stack, layers: Sequence[int], pooled: bool) -> np.ndarray:
        """See `base.HiddenStateEngine`."""
        return self._hidden_states.compute(batch, stack, layers, pooled)

    def any(self, flag: bool) -> bool:
        """See `base.Ranks`."""
        return self.groups.any(flag)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """See `base.Ranks`."""
        return self.groups.largest(values)

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        """See `base.Ranks`."""
        return self.groups.sum_over_data(values)
