"""Scores checked against two other ways to compute them, on one rank in fp32.

Layouts are compared with the scores of one rank, so a fault that all share in scoring (such as a cap that only
training applies) would pass. Here the scores of some rows are compared with the log-softmax in fp64 of the logits, and
their mean with the loss of a training step on the same rows. Weights are made about as large as those of a trained
model: initial ones are so small that what limits scores and logits does not show.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from data_pipeline.batch import RIGHT_CHOICE, SPAN_END, SPAN_START, Batch, Rows
from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine, GeneratorSamples
from pretrain.verify.probe import Trial, masked_batch

BOUND = 1e-4  # nats that rounding explains, as for scores
_SIZE = 2.0  # root mean square of a matrix's output for an input of size 1


@dataclass(frozen=True)
class ScoringCheck:
    """Distances of scores from what they should be, in nats."""

    log_softmax: float
    """root mean square difference from the log-softmax of the logits"""
    training_loss: float
    """difference of their mean from the loss of a training step"""

    @property
    def same(self) -> bool:
        return self.log_softmax <= BOUND and self.training_loss <= BOUND  # not if one is not a number


def without_noise(config: RunConfig) -> RunConfig:
    """`config` with a training loss that is the mean of scores: no dropout, no label smoothing."""
    tree = config.model_dump(mode="json")
    tree["model"] |= dict.fromkeys(("dropout", "attention_dropout", "ffn_dropout"), 0.0)
    tree["objective"]["label_smoothing"] = 0.0
    if config.finetune.lora is not None:
        tree["finetune"]["lora"]["dropout"] = 0.0
    return validate(RunConfig, tree, "the config without dropout")


def check_scoring(trial: Trial) -> ScoringCheck:
    """Scores the rows of a small step, and trains on them. `trial` is of one rank, and of a config `without_noise`."""
    with trial.joined(True):
        engine = trial.build(True)
        _enlarge(engine)
        batch, _ = masked_batch(trial, engine, step=2, start=0)
        if trial.config.generator is not None:
            return _check_both_models(engine, batch)
        scored = engine.score(batch).log_probability.astype(np.float64)
        loss, each = trial.config.objective.loss, (batch[row : row + 1] for row in range(len(scored)))
        expected = np.concatenate([_from_logits(engine.logits(row)[0], row, loss) for row in each])
        if trial.config.model.task_head is not None:  # which answers at labelled positions alone
            scored, expected = scored * batch.loss_mask, expected * batch.loss_mask
        result = engine.train_step(batch, 0.0, 1)
        loss_sum, count = next(iter(result.terms.values()), (result.loss_sum, result.token_count))
        mean = float((scored * batch.loss_mask).sum()) / float(batch.loss_mask.sum())
        return ScoringCheck(float(np.sqrt(np.square(scored - expected).mean())), abs(loss_sum / count + mean))


def _check_both_models(engine: Engine, batch: Batch) -> ScoringCheck:
    """The generator's scores of its labels, and the discriminator's of all tokens, of the same samples in scoring and
    in training."""
    scored = engine.score(batch)
    samples = engine.part(GeneratorSamples).samples()[: len(batch.tokens)]
    engine.part(GeneratorSamples).replay_samples(samples)
    assert scored.terms is not None
    found, of_tokens = scored.terms["replaced"], scored.log_probability.astype(np.float64)
    logits_BLV = engine.part(GeneratorSamples).generator_logits(batch)
    apart = of_tokens - _from_logits(logits_BLV, batch, "tokens")
    read = replace(batch, tokens=np.where(samples >= 0, samples, batch.labels))
    answers = engine.logits(read)[0][..., 0].double()
    losses = binary_cross_entropy_with_logits(
        answers, torch.tensor(read.tokens != batch.labels).double(), reduction="none"
    ).numpy()
    real = np.ones_like(losses) if batch.attention_mask is None else batch.attention_mask
    expected = float((losses * real).sum()) / float(real.sum())
    result = engine.train_step(batch, 0.0, 1)
    means = [total / count for total, count in (*result.terms.values(), found)]
    trained, replaced, score = means
    mean = float((of_tokens * batch.loss_mask).sum()) / float(batch.loss_mask.sum())
    return ScoringCheck(
        max(float(np.sqrt(np.square(apart).mean())), abs(score - expected)),
        max(abs(trained + mean), abs(replaced - score)),
    )


def _from_logits(logits: Tensor, rows: Rows, loss: str) -> NDArray[np.float64]:
    """[rows, labels] log probability of each label, or minus the loss of a number or a span."""
    answers = logits.double()
    if rows.summed is not None:
        answers = (answers * torch.tensor(rows.summed)[..., None]).sum(1, keepdim=True).expand_as(answers)
    if rows.targets is not None and loss == "regression":
        return -np.square(answers[..., 0].numpy() - rows.targets)
    if loss == "spans":
        return _span_scores(answers, rows)
    if loss == "choice":
        choices = answers[..., 0].masked_fill(torch.tensor(rows.labels == 0), -torch.inf).log_softmax(dim=1)
        return np.where(rows.labels == RIGHT_CHOICE, choices.numpy(), 0.0)
    log_probabilities = answers.log_softmax(dim=-1)
    found: NDArray[np.float64] = log_probabilities.gather(-1, torch.tensor(rows.labels)[..., None])[..., 0].numpy()
    return found


def _span_scores(answers_BL2: Tensor, rows: Rows) -> NDArray[np.float64]:
    """[rows, labels] at the first position of a span, the mean over both ends."""
    if rows.attention_mask is not None:
        answers_BL2 = answers_BL2.masked_fill(~torch.tensor(rows.attention_mask)[..., None], -torch.inf)
    ends_BL2 = torch.tensor(np.stack([rows.labels & SPAN_START, rows.labels & SPAN_END], axis=-1)) > 0
    means_B = answers_BL2.log_softmax(dim=1).masked_fill(~ends_BL2, 0.0).sum(dim=(1, 2)) / 2
    return (means_B[:, None] * ends_BL2[..., 0]).numpy()


@torch.no_grad()
def _enlarge(engine: Engine) -> None:
    for name, part in engine.state().items():
        if name.startswith("model/") and len(part.shape) > 1:
            squares = sum(float(piece.value.double().square().sum()) for piece in part.pieces)
            size = (squares / prod(part.shape) * part.shape[-1]) ** 0.5
            for piece in part.pieces:
                piece.value.mul_(_SIZE / size if size else 1.0)
    engine.state_loaded(0)
