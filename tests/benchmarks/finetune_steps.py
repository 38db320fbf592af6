"""Losses of a fine-tuning run of SST-2 without dropout, step by step, beside those of a loop with transformers' model
and torch's AdamW on the same rows, from the same weights.

    python -m tests.benchmarks.finetune_steps MODEL OUT [key=value ...]

MODEL and OUT are those of `tests.benchmarks.finetune`, which has made OUT; key=value are further settings of the run.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from data_pipeline.batch import Batch
from pretrain.__main__ import main as pretrain
from pretrain.engine.base import StepResult
from pretrain.engine.megatron.engine import MegatronEngine
from tests.benchmarks.finetune import our_arguments
from tests.benchmarks.finetune_tasks import TASKS

_SEED = 1


class Recorder:
    """What the engine of this process is called with in training, and the losses that it returns."""

    def __init__(self) -> None:
        self.rows: list[Batch] = []
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.classifier: list[torch.Tensor] = []
        """weight and bias before the first step"""

    def install(self) -> None:
        """Records the calls of `MegatronEngine.train_step` from here on."""
        train_step = MegatronEngine.train_step

        def recorded(engine: MegatronEngine, batch: Batch, learning_rate: float, step: int) -> StepResult:
            if not self.rows:
                state, names = engine.state(), ("weight", "bias")
                self.classifier = [state[f"model/head.classifier.{x}"].pieces[0].value.clone() for x in names]
            self.rows.append(batch)
            self.rates.append(learning_rate)
            result = train_step(engine, batch, learning_rate, step)
            self.losses.append(result.loss_sum / result.token_count)
            return result

        MegatronEngine.train_step = recorded  # type: ignore[method-assign]


def main() -> None:
    model, out = Path(sys.argv[1]), Path(sys.argv[2])
    directory = out / "sst2" / "steps"
    shutil.rmtree(directory, ignore_errors=True)
    recorder = Recorder()
    recorder.install()
    without_dropout = ["model.dropout=0", "model.attention_dropout=0"]
    status = pretrain([*our_arguments(out, "sst2", TASKS["sst2"], _SEED, directory), *without_dropout, *sys.argv[3:]])
    if status:
        sys.exit(status)
    apart = np.abs(np.array(_their_losses(model, recorder)) - recorder.losses)
    print(json.dumps({"steps": len(apart), "first loss": recorder.losses[0], "last loss": recorder.losses[-1],
                      "largest difference": float(apart.max())}))  # fmt: skip


def _their_losses(path: Path, recorder: Recorder) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    for parameter, value in zip((model.classifier.weight, model.classifier.bias), recorder.classifier, strict=True):
        parameter.data.copy_(value)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    losses = []
    for rows, rate in zip(recorder.rows, recorder.rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(**_inputs(rows)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _inputs(rows: Batch) -> dict[str, Any]:
    assert rows.attention_mask is not None
    assert rows.segments is not None
    return {
        "input_ids": torch.as_tensor(rows.tokens),
        "attention_mask": torch.as_tensor(rows.attention_mask).long(),
        "token_type_ids": torch.as_tensor(rows.segments),
        "labels": torch.as_tensor((rows.labels * (rows.loss_mask > 0)).sum(axis=1)),
    }


if __name__ == "__main__":
    main()
