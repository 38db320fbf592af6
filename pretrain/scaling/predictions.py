"""Predictions of a law, one JSON line each in `predictions.jsonl` beside the law, with the time of each."""

import math
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.run_dir.json_lines import append_json_lines, read_json_lines
from pretrain.scaling.law import Law
from pretrain.scaling.predict import Prediction, is_askable

PREDICTIONS = "predictions.jsonl"


def record_prediction(directory: Path, law: Law, prediction: Prediction, plan: dict[str, Any] | None) -> Path:
    """Appends a prediction, with the figures of the run's `plan` if it has one. Returns the file's path."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": len(law.points),
        "law": law.main.fitted.form.name,
        **asdict(prediction),
        "days": plan and plan["days"],
        "plan": plan,
    }
    append_json_lines(directory / PREDICTIONS, line)
    return directory / PREDICTIONS


def read_predictions(directory: Path, law: Law) -> list[dict[str, Any]]:
    """Recorded predictions, oldest first, without damaged lines and those that are out of the law's range today."""
    return [line for line in read_json_lines(directory / PREDICTIONS) if _is_prediction(law, line)]


def _is_prediction(law: Law, line: dict[str, Any]) -> bool:
    if not {"time", *Prediction.__dataclass_fields__, "days", "plan"} <= line.keys():
        return False
    quantities = ("flops", "parameters", "tokens")
    ends = [line[name] for name in ("low", "high")]
    numbers = [line[name] for name in quantities] + ([] if ends == [None, None] else ends)
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return False
    return all(is_askable(law, name, line[name]) for name in quantities)
