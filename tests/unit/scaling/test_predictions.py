"""The file of predictions: what is recorded, and which lines are read again."""

import json
from pathlib import Path

import pytest

from pretrain.scaling.law import Law, law_of
from pretrain.scaling.predict import predict
from pretrain.scaling.predictions import read_predictions, record_prediction
from pretrain.scaling.report.page import write_page
from tests.unit.scaling.conftest import Made


def test_a_prediction_is_recorded_with_its_law_and_its_plan(law: Law, tmp_path: Path) -> None:
    prediction = predict(law, flops=1e21)
    path = record_prediction(tmp_path, law, prediction, {"days": 2.5, "cost": None})
    record_prediction(tmp_path, law, prediction, None)
    planned, bare = read_predictions(tmp_path, law)
    assert path.read_text().count("\n") == 2
    assert planned["loss"] == pytest.approx(prediction.loss)
    assert (planned["runs"], planned["law"]) == (len(law.points), law.main.fitted.form.name)
    assert (planned["days"], planned["plan"]["cost"]) == (2.5, None)
    assert (bare["days"], bare["plan"]) == (None, None)


def test_a_prediction_without_an_interval_is_read_and_drawn(made: Made, tmp_path: Path) -> None:
    law = law_of(made(sizes=(1e8, 2e8)), "made", samples=0)
    record_prediction(tmp_path, law, predict(law, flops=1e20), None)
    (line,) = read_predictions(tmp_path, law)
    assert (line["low"], line["high"]) == (None, None)
    text = write_page(tmp_path, law, [line]).read_text()
    assert "neither a number nor an interval" in text
    assert "its backtest misses least" not in text


def test_damaged_lines_and_those_beyond_the_range_of_the_law_are_left_out(law: Law, tmp_path: Path) -> None:
    assert read_predictions(tmp_path, law) == []
    path = record_prediction(tmp_path, law, predict(law, flops=1e21), None)
    good = path.read_text()
    beyond = json.loads(good) | {"flops": 1e300, "parameters": 1e150, "tokens": 1e149}
    path.write_text("torn{\n" + json.dumps(beyond) + "\n{}\n[1]\n" + good + "torn again")
    record_prediction(tmp_path, law, predict(law, flops=2e21), None)
    assert [line["flops"] for line in read_predictions(tmp_path, law)] == [1e21, 2e21]
