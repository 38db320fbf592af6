"""Articles and summaries: what is held out is in no training file, and leads are whole sentences."""

import json
from pathlib import Path

import pytest

from examples import news


def test_held_out_articles_are_in_no_training_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"input": f"Article {i} begins. It goes on. And on! Then it ends.", "output": f"Article {i} ."}
            for i in range(130)]  # fmt: skip
    (tmp_path / "source.json").write_text(json.dumps(rows))
    assert news.main(tmp_path / "source.json", tmp_path / "news") == 0
    files = ("articles.jsonl", "rows/train.jsonl", "rows/validation.jsonl")
    texts, train, held_out = (
        [json.loads(line) for line in (tmp_path / "news" / name).read_text().splitlines()] for name in files
    )
    assert [row["text"] for row in texts] == [row["input"] for row in train]
    assert not {row["input"] for row in train} & {row["input"] for row in held_out}
    assert (len(train), len(held_out)) == (127, 3)
    assert "first three sentences: rouge1 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("article", "expected"),
    [
        ("One here. Two there! Is it three? Four.", "One here.\nTwo there!\nIs it three?"),
        ("Only one. Or two.", "Only one.\nOr two."),
        ('He said "no." Then he left. It was 5.3 miles. End.', 'He said "no."\nThen he left.\nIt was 5.3 miles.'),
    ],
)
def test_a_lead_is_the_first_sentences(article: str, expected: str) -> None:
    assert news.lead(article) == expected


def test_scores_are_the_mean_of_f1() -> None:
    found = news.scores(["a b", "c"], ["a b", "d"])
    assert found == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5, "rougeLsum": 0.5}
