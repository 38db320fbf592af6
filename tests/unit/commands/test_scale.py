"""`pretrain scale`: files, page and sentences."""

import json
import shutil
from pathlib import Path

import pytest

from pretrain.commands.plan import main as plan
from pretrain.commands.scale import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.scaling.size import parameters_at_work
from tests.helpers.datasets import build_dataset, make_documents


def law_loss(parameters: float, tokens: float) -> float:
    return 1.8 + 480 / parameters**0.35 + 2100 / tokens**0.37


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A law of a table, without noise."""
    runs = [(n, r * n) for n in (1e8, 2e8, 4e8, 8e8) for r in (10, 20, 40)]
    folder = tmp_path_factory.mktemp("law")
    table = folder / "runs.csv"
    table.write_text("N,D,loss\n" + "".join(f"{n},{d},{law_loss(n, d)}\n" for n, d in runs))
    assert main(["fit", str(table), "--samples", "3", "--out", str(folder / "law")]) == 0
    return folder / "law"


@pytest.fixture
def law(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitted, tmp_path / "law"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_dataset(make_documents(1, 100), tmp_path_factory.mktemp("data")).directory


def test_a_prediction_is_printed_written_down_and_on_the_page(law: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(law), "--parameters", "1.6B", "--tokens", "32B"]) == 0
    said = capsys.readouterr().out
    assert f"loss        {law_loss(1.6e9, 32e9):.4f}, within" in said
    (line,) = map(json.loads, (law / "predictions.jsonl").read_text().splitlines())
    assert line["loss"] == pytest.approx(law_loss(1.6e9, 32e9), rel=1e-4)
    page = (law / "scale.html").read_text()
    assert f"{line['loss']:.4f}" in page
    assert "<svg" in page
    assert not any(outside in page for outside in ("http://", "https://", "src=", "@import"))


@pytest.mark.slow
def test_what_a_predicted_run_takes_is_what_plan_says_of_its_config(
    law: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    asked = ["--config", "gpt3/125m", "--gpus", "64", "--hardware", "h100", "--price", "2.5"]
    assert main(["predict", str(law), "--flops", "1e21", *asked, "--out", str(file)]) == 0
    said = capsys.readouterr().out
    (line,) = map(json.loads, (law / "predictions.jsonl").read_text().splitlines())
    config = load(RunConfig, file)
    assert parameters_at_work(config.model) == pytest.approx(line["parameters"], rel=0.1)
    assert config.train.steps * config.batch.sequences * config.model.sequence_length == pytest.approx(
        line["tokens"], rel=0.01
    )
    assert config.batch.sequences % 64 == 0
    assert plan(["--gpus", "64", "--hardware", "h100", "--price", "2.5", "--json", str(file)]) == 0
    (best, *_) = json.loads(capsys.readouterr().out)["options"]
    assert (best["days"], best["cost"], best["layout"]) == tuple(
        line["plan"][key] for key in ("days", "cost", "layout")
    )
    assert f"takes       {best['days']:.3g} days, within" in said
    assert f"h100, cost {best['cost']:,.0f}" in (law / "scale.html").read_text()


def test_the_rate_of_a_predicted_run_is_the_laws(law: Path, tmp_path: Path) -> None:
    fit = json.loads((law / "fit.json").read_text())
    for run in fit["points"]:
        run["learning_rate"] = 3 * run["parameters"] ** -0.4
    (law / "fit.json").write_text(json.dumps(fit))
    asked = ["--parameters", "1e9", "--tokens", "1e10", "--config", "gpt3/125m", "--gpus", "8", "--hardware", "h100"]
    assert main(["predict", str(law), *asked, "--out", str(tmp_path / "run.yaml")]) == 0
    rate = load(RunConfig, tmp_path / "run.yaml").optimizer.learning_rate
    assert rate == pytest.approx(3 * 1e9**-0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "8"], "--config, --gpus and --hardware go together"),
        (["--out", "run.yaml"], "are about a run that is planned"),
        (["--stack", "nanotron"], "are about a run that is planned"),
        (
            ["--config", "debug/ladder", "--gpus", "8", "--hardware", "h100"],
            "the config has none: set model.vocabulary",
        ),
        (["--config", "gpt3/125m", "--gpus", "8", "--hardware", "Abacus"], "no hardware is called 'Abacus'"),
    ],
)
def test_half_of_a_question_about_cost_is_refused(law: Path, options: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        main(["predict", str(law), "--flops", "1e20", *options])
    assert not (law / "predictions.jsonl").exists()


def test_a_ladder_is_configs_that_load_and_files_of_commands(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ladder"
    options = ["--sizes", "0.1M,0.2M", "--tokens-per-parameter", "20,40", "--out", str(out)]
    assert main(["ladder", "debug/ladder", f"data.path={dataset}", *options]) == 0
    printed = capsys.readouterr().out
    assert "4 runs of" in printed
    assert printed.count(str(out / "stems.txt")) == 2
    runs = json.loads((out / "ladder.json").read_text())["runs"]
    stems, branches = ((out / name).read_text().splitlines() for name in ("stems.txt", "branches.txt"))
    assert {line.split()[-1] for line in (*stems, *branches)} == {run["config"] for run in runs}
    with pytest.raises(ConfigError, match=r"more than --budget 1e\+06: without its largest size"):
        main(["ladder", "debug/ladder", f"data.path={dataset}", *options, "--budget", "1M"])


def test_amounts_are_numbers_with_letters(law: Path) -> None:
    with pytest.raises(ConfigError, match="'many' is not a number above 0, such as 125M or 1e21"):
        main(["predict", str(law), "--flops", "many"])


def test_what_is_refused_is_not_written_down(law: Path) -> None:
    with pytest.raises(ConfigError, match="beyond what this law can be asked"):
        main(["predict", str(law), "--flops", "1e300"])
    assert not (law / "predictions.jsonl").exists()


def test_fits_are_not_repeated_without_end(law: Path) -> None:
    with pytest.raises(ConfigError, match="--samples 100,000,000: at most 10,000"):
        main(["fit", str(law / "runs.csv"), "--samples", "100000000", "--out", str(law)])


def test_a_ladder_that_is_refused_is_not_written(dataset: Path, tmp_path: Path) -> None:
    options = ["--sizes", "1M", "--tokens-per-parameter", "20", "--out", str(tmp_path / "ladder")]
    for more, message in ((["--rates", "1,1"], "two runs of this ladder have one name"), (["--seeds", "0"], "--seeds")):
        with pytest.raises(ConfigError, match=message):
            main(["ladder", "debug/gpt", f"data.path={dataset}", *options, *more])
    assert not (tmp_path / "ladder").exists()
