"""Losses of a fine-tuning run without dropout, step by step, beside those of a loop with transformers' model and
torch's AdamW on the same rows, from the same weights.

    python -m tests.benchmarks.finetune_steps MODEL DATA OUT TASK [--rows N] [key=value ...]

MODEL and DATA are those of `tests.benchmarks.finetune`, OUT is a directory of this benchmark's own, and TASK a set with
an answer for each row, of which N rows are trained on, by default those of `finetune`, at the rates of its schedule;
key=value are further settings of the run.
"""

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from data_pipeline.batch import Batch
from pretrain.__main__ import main as pretrain
from pretrain.engine.base import StepResult
from pretrain.engine.megatron.engine import MegatronEngine
from tests.benchmarks.finetune import choose_rows, import_start, our_arguments
from tests.benchmarks.finetune_tasks import TASKS

_SEED = 1
_VALIDATION_ROWS = 32
"""fewer than in `finetune`, since they are not compared"""


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--rows", type=int)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_intermixed_args()
    task, out = TASKS[options.task], options.out
    rows = replace(task, rows=options.rows or task.rows, validation_rows=_VALIDATION_ROWS)
    import_start(options.model, out)
    choose_rows(options.data / options.task, out / options.task / "data", rows)
    directory = out / options.task / "run"
    shutil.rmtree(directory, ignore_errors=True)
    recorder = Recorder()
    recorder.install()
    without_dropout = ["model.dropout=0", "model.attention_dropout=0"]
    arguments = our_arguments(out, options.task, task, _SEED, directory)
    status = pretrain([*arguments, *without_dropout, *options.settings])
    if status:
        sys.exit(status)
    apart = np.abs(np.array(_their_losses(options.model, recorder)) - recorder.losses)
    print(json.dumps({"steps": len(apart), "first loss": recorder.losses[0], "last loss": recorder.losses[-1],
                      "largest difference": float(apart.max())}))  # fmt: skip


def _their_losses(path: Path, recorder: Recorder) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=recorder.classifier[0].shape[0], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
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
    counted = rows.loss_mask > 0
    labels = rows.labels if rows.targets is None else rows.targets
    return {
        "input_ids": torch.as_tensor(rows.tokens),
        "attention_mask": torch.as_tensor(rows.attention_mask).long(),
        "token_type_ids": torch.as_tensor(rows.segments),
        "labels": torch.as_tensor((labels * counted).sum(axis=1)),
    }


if __name__ == "__main__":
    main()
