"""Figures of texts of other languages than English, and what is said of those that were made for English."""

import pytest
import sacrebleu

from pretrain.config.evaluate import Evaluate
from pretrain.errors import ConfigError
from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.metrics import check_metric, compute_metric
from pretrain.finetune.text_figures import how_computed, unfit_notes

ANSWERS, REFERENCES = ["北京。", "１２ дома", "a dog"], [["北京"], ["12 дома"], ["the dog"]]
UNICODE = MetricContext.of(Evaluate(normalization="unicode", words="unicode", bleu_tokenize="zh"))


def test_figures_follow_the_settings_of_the_run() -> None:
    assert compute_metric("exact_match", ANSWERS[:2], REFERENCES[:2]) == 0
    assert compute_metric("exact_match", ANSWERS, REFERENCES) == pytest.approx(1 / 3)
    assert compute_metric("exact_match", ANSWERS[:2], REFERENCES[:2], UNICODE) == 1
    assert compute_metric("f1_of_tokens", ["北京市"], [["北京"]], UNICODE) == pytest.approx(4 / 5)
    assert compute_metric("f1_of_tokens", ["ein Haus"], [["Haus"]], MetricContext(normalization="mlqa_de")) == 1
    assert compute_metric("rougeL", ["北京市"], [["北京"]], UNICODE) == pytest.approx(4 / 5)
    texts = [one for (one,) in REFERENCES]
    for name, theirs in (
        ("bleu", sacrebleu.corpus_bleu(ANSWERS, [texts], tokenize="zh")),
        ("chrf", sacrebleu.corpus_chrf(ANSWERS, [texts])),
        ("chrf++", sacrebleu.corpus_chrf(ANSWERS, [texts], word_order=2)),
    ):
        assert compute_metric(name, ANSWERS, REFERENCES, UNICODE) == pytest.approx(theirs.score / 100)


def test_rows_that_the_english_rules_do_not_suit_are_counted() -> None:
    figures = ("exact_match", "f1_of_tokens", "bleu", "rougeL")
    exact, f1, bleu, rouge = unfit_notes(figures, ANSWERS, REFERENCES, MetricContext())
    assert exact.startswith("2 of 3 rows are answered wrongly only by Unicode form, width, digits")
    assert f1.startswith("1 of 3 rows expect text in a script without spaces, of which f1_of_tokens takes")
    assert bleu.endswith("set evaluate.bleu_tokenize=zh, ja-mecab or char")
    assert rouge.startswith("2 of 3 rows expect letters beyond a-z, which ROUGE leaves out")
    assert not unfit_notes(figures, ANSWERS, REFERENCES, UNICODE)
    assert not unfit_notes(figures, ["A dog"], [["the “dog”"]], MetricContext(normalization="unicode"))
    assert not unfit_notes(("accuracy",), [1], [0], MetricContext())


def test_a_report_says_how_figures_of_texts_were_computed() -> None:
    found = how_computed(("exact_match", "rouge1", "bleu", "chrf", "accuracy"), ANSWERS, REFERENCES, UNICODE)
    assert (found["exact_match"], found["rouge1"]) == ("normalization:unicode", "words:unicode")
    assert "tok:zh" in found["bleu"]
    assert "nc:6" in found["chrf"]
    assert "accuracy" not in found


def test_a_tokenizer_that_is_not_here_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ConfigError, match=r"tokenizer ja-mecab here \(install sacrebleu\[ja\]\)"):
        check_metric("bleu", "text_to_text", MetricContext(bleu_tokenize="ja-mecab"))
