"""docs/one-token.md follows a token from a file to its loss: this runs its commands, and looks at each step."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.reading.documents import Document
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.stream import open_stream
from tests.helpers.command import run
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

PAGE = (Path(__file__).parents[2] / "docs" / "one-token.md").read_text(encoding="utf-8")
STEP, ROWS, ROW, PLACE, TOKEN = 24, 8, 1, 22, 270
STEPS = 25


def _code(marker: str) -> str:
    """The block of the page that holds `marker`."""
    return next(block for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if marker in block)


def _run(line: str, *more: str) -> str:
    """What a command of the page prints."""
    words = re.sub(r"\\\n", "", line).replace("'", "").split()
    assert words[0] == "pretrain"
    done = run(*words[1:], *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _losses(directory: Path) -> dict[str, Any]:
    """With initial weights: minus the log-probability of the token at its position, that of all labels of the batch,
    and the loss of a step of training."""
    config = load(RunConfig, directory / "runs" / "times" / "config.yaml")
    stream, _ = open_stream(config)
    batch = stream.batch((STEP - 1) * ROWS, ROWS)
    engine = build_engine(config)
    losses = -engine.score(batch).log_probability
    result = engine.train_step(batch, 1e-3, STEP)
    return {
        "token": losses[ROW, PLACE], "all": losses.sum(), "sum": result.loss_sum, "count": result.token_count,
        "cut": [batch.tokens_BS.shape for batch in engine._cutter.cut(batch, config.batch.micro_sequences)],
        "label": batch.labels[ROW, PLACE], "input": batch.tokens[ROW, PLACE + 1], "hash": batch.data_hash,
        "cursor": batch.cursor.samples, "ids": stream.sample_ids(0, 100 * ROWS)[:, 1:],
        "document": stream.datasets[0].window("train", 17_043, 7).tolist(),
    }  # fmt: skip


@pytest.mark.slow
def test_the_commands_of_one_token_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, _, build = _code("json.dumps").partition("> times.jsonl\n")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script.removeprefix('python -c "').rstrip().removesuffix('"'))
    Path("times.jsonl").write_text(printed.getvalue())
    assert printed.getvalue().splitlines()[148] in PAGE
    _run(build)
    assert _code("bytes/token") in _run("pretrain data inspect datasets/times")
    _run(_code("pretrain train debug"), f"train.steps={STEPS}")
    assert _code("row 1  times").removesuffix("    ...\n") in _run(
        f"pretrain data trace runs/times --step {STEP} --text"
    )
    line = json.loads(Path("runs/times/metrics.jsonl").read_text().splitlines()[STEP - 1])
    assert f'"data_hash": "{line["data_hash"]}"' in PAGE

    key = Document(("7 times 8 is 56.",), "times.jsonl", 148).key
    assert hex(key) in PAGE
    assert round(key / 2**64, 2) == 0.94
    found = run_ranks(1, _losses, tmp_path)[0]
    assert found["document"] == [298, 264, 278, 262, TOKEN, 276, 1]
    assert (found["label"], found["input"], found["cursor"]) == (TOKEN, TOKEN, 192)
    assert found["hash"] == line["data_hash"]
    assert found["cut"] == [(4, 64), (4, 64)]
    assert np.flatnonzero(found["ids"][:, 1] == 266).tolist() == [185, 65 * 8 + 7, 90 * 8 + 3]
    assert found["count"] == 512
    assert 0 < found["token"] < found["all"]
    assert found["all"] == pytest.approx(found["sum"], rel=1e-5)
