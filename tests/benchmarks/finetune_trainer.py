"""One fine-tuning run by the Trainer of transformers, as its example scripts run_glue.py, run_ner.py and run_qa.py do.

    python -m tests.benchmarks.finetune_trainer MODEL DATA OUT TASK SEED

DATA has train.jsonl and validation.jsonl. OUT gets the model and figures.json, the figures of the validation rows.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.metrics import compute_metric
from pretrain.finetune.sets.registry import published_set
from tests.benchmarks.finetune_tasks import BATCH, TASKS
from tests.benchmarks.finetune_windows import Windows

_IGNORED = -100
"""label of a position without one"""
Row = dict[str, Any]


def main() -> None:
    model_path, data, out, name, seed = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        sys.argv[4],
        sys.argv[5],
    )
    task, published = TASKS[name], published_set(name)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    set_seed(int(seed))
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    labels = list(published.labels)
    lines = {split: _lines(data / f"{split}.jsonl") for split in ("train", "validation")}
    kind = published.objective
    rows: dict[str, Any]
    windows: dict[str, Windows] = {}
    if kind == "spans":
        windows = {split: Windows.of(tokenizer, rows, task.length) for split, rows in lines.items()}
        rows = {split: those.inputs for split, those in windows.items()}
        model = AutoModelForQuestionAnswering.from_pretrained(model_path)
    else:
        encode = _tagged if kind == "tagging" else _classified
        rows = {split: encode(tokenizer, of_split, labels, task.length) for split, of_split in lines.items()}
        makes = AutoModelForTokenClassification if kind == "tagging" else AutoModelForSequenceClassification
        model = makes.from_pretrained(model_path, num_labels=len(labels) or 1)
    collator: Callable[..., Any] = DataCollatorForTokenClassification if kind == "tagging" else DataCollatorWithPadding
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(out),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            learning_rate=task.learning_rate,
            num_train_epochs=task.epochs,
            seed=int(seed),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
        data_collator=collator(tokenizer),
    )
    trainer.train()
    trainer.save_model()
    predicted = trainer.predict(rows["validation"])
    if kind == "spans":
        answers = windows["validation"].answers(lines["validation"], *predicted.predictions[:2])
        references = [line["answers"]["text"] for line in lines["validation"]]
    else:
        answers, references = _answers(predicted.predictions, predicted.label_ids, labels, kind == "tagging")
    context = MetricContext(labels=labels)
    figures = {one: compute_metric(one, answers, references, context) for one in task.figures}
    (out / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _classified(tokenizer: Any, lines: Sequence[Row], labels: list[Any], length: int) -> list[Row]:
    pairs = [line["pair"] for line in lines] if "pair" in lines[0] else None
    encoded = tokenizer([line["text"] for line in lines], pairs, truncation=True, max_length=length)
    answers = [labels.index(line["label"]) if labels else line["label"] for line in lines]
    return [{key: encoded[key][number] for key in encoded} | {"labels": one} for number, one in enumerate(answers)]


def _tagged(tokenizer: Any, lines: Sequence[Row], labels: list[Any], length: int) -> list[Row]:
    """The first piece of each word has the word's tag."""
    encoded = tokenizer([line["words"] for line in lines], is_split_into_words=True, truncation=True, max_length=length)
    rows = []
    for number, line in enumerate(lines):
        words = encoded.word_ids(number)
        first = [word is not None and word not in words[:at] for at, word in enumerate(words)]
        tags = [labels.index(line["tags"][word]) if new else _IGNORED for word, new in zip(words, first, strict=True)]
        rows.append({key: encoded[key][number] for key in encoded} | {"labels": tags})
    return rows


def _answers(predictions: Any, references: Any, labels: list[Any], tags: bool) -> tuple[list[Any], list[Any]]:
    """(predicted, expected) of each row, by their names."""
    if not labels:
        return list(np.squeeze(predictions)), references.tolist()
    best = np.argmax(predictions, axis=-1)
    if not tags:
        return [labels[one] for one in best], [labels[one] for one in references]
    counted = references != _IGNORED
    predicted, expected = (
        [[labels[one] for one in row[mask]] for row, mask in zip(values, counted, strict=True)]
        for values in (best, references)
    )
    return predicted, expected


if __name__ == "__main__":
    main()
