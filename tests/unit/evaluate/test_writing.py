"""Answers, texts and measures in every language: rules that were made for English, and those that read all scripts."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import sacrebleu

from pretrain.config.evaluate import BleuTokenize, Normalization
from pretrain.errors import ConfigError
from pretrain.evaluate import translate
from pretrain.evaluate.bleu import BY_SPACE, bleu, check_tokenize, chrf
from pretrain.evaluate.decoding.base import Beam
from pretrain.evaluate.gleu import gleu
from pretrain.evaluate.measures.base import ForTask
from pretrain.evaluate.measures.text import TextMeasure
from pretrain.evaluate.report.metrics import unfit_counts
from pretrain.evaluate.rouge import loses_letters, rouge
from pretrain.evaluate.tasks.base import Sources
from pretrain.evaluate.tasks.file_task import task_from_file
from pretrain.evaluate.tasks.last_word import last_word, passages
from pretrain.evaluate.tasks.normalization import NORMALIZATIONS
from tests.unit.evaluate.fakes import ToyTokenizer

TEXTS = {
    "en": "The Cat's hat, a (red) one!",
    "de": "Die Häuser, den Fluß und EINE Straße",
    "es": "El niño; ¿la casa de los perros?",
    "hi": "दिल्ली। यह एक शहर, है",
    "vi": "Cái nhà của những người là đẹp.",
    "zh": "《北京》的GDP是３.5万亿元，很高。",
    "ar": "في ال مدينة، الرياض؟",
}


def test_the_normalizations_of_mlqa_are_lm_evals_but_for_the_arabic_article() -> None:
    theirs = import_module("lm_eval.tasks.mlqa.utils").normalize_answer
    for language, text in TEXTS.items():
        if language != "ar":
            assert NORMALIZATIONS[f"mlqa_{language}"](text) == theirs(text, language), language
    assert NORMALIZATIONS["mlqa_ar"](TEXTS["ar"]) == "في مدينة رياض", "MLQA's own script drops each alif and lam"


def test_settings_name_every_normalization_and_tokenizers_that_sacrebleu_has() -> None:
    assert set(get_args(Normalization)) == set(NORMALIZATIONS)
    assert {*get_args(BleuTokenize), *BY_SPACE} <= set(sacrebleu.metrics.bleu._TOKENIZERS)


def judged(folder: Path, answer: str, reference: str, metrics: str = "{metric: f1}", keys: str = "") -> dict[str, Any]:
    """The result of one answer to one question of a task file."""
    (folder / "task.yaml").write_text(
        f"""
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: capitals.jsonl}}}}
test_split: test
doc_to_text: question
doc_to_target: answer
metric_list: [{metrics}]
{keys}
"""
    )
    (folder / "capitals.jsonl").write_text(json.dumps({"question": "?", "answer": reference}) + "\n")
    task, tokenizer = task_from_file(folder / "task.yaml"), ToyTokenizer()
    documents = task.load(Sources(folder, None, tokenizer, 0)).documents  # type: ignore[arg-type]
    scorer: Any = SimpleNamespace(tokenizer=tokenizer, length=512)
    measure = TextMeasure(ForTask(task, documents, None), scorer)
    numbers = np.array([0, *tokenizer.encode(answer)], float)
    outcome = dict(measure.outcome(numbers, documents[0]))
    return outcome | measure.result([outcome], documents)


SQUAD = "metadata: {pretrain: {normalization: squad}}"
UNICODE = "metadata: {pretrain: {normalization: unicode}}"


@pytest.mark.parametrize(
    ("language", "answer", "reference", "unspaced"),
    [
        ("de", "strasse", "Straße", 0),
        ("vi", "Ha\u0300 No\u0323\u0302i", "Hà Nội", 0),
        ("tr", "İzmir", "izmir", 0),
        ("ru", "«Москва»", "москва", 0),
        ("ar", "الرياض، ٤٢", "الرياض 42", 0),
        ("fa", "۱۲۳", "123", 0),
        ("hi", "दिल्ली।", "दिल्ली", 0),
        ("ml", "കൊച്ചി ൧", "കൊച്ചി 1", 0),
        ("th", "กรุงเทพ ๑๒", "กรุงเทพ 12", 1),
        ("zh", "１２３，北京。", "123北京", 1),
        ("ja", "「東京」", "東京", 1),
        ("ko", "「서울」", "서울", 0),
    ],
)
def test_an_answer_that_the_english_rule_misjudges_is_counted_and_right_by_unicode(
    tmp_path: Path, language: str, answer: str, reference: str, unspaced: int
) -> None:
    english = judged(tmp_path, answer, reference, keys=SQUAD)
    assert (english["right"], english["wrong_by_form"], english["unspaced"]) == (False, 1, unspaced)
    every = judged(tmp_path, answer, reference, keys=UNICODE)
    assert (every["right"], every["f1"], every["wrong_by_form"]) == (True, 1, 0)
    assert "unspaced" not in every
    (note, *_) = unfit_counts({"capitals": {"0": english | {"documents": 1}}})
    assert note.startswith("capitals 0-shot 1 of 1 answers wrong only by their Unicode form")


def test_english_answers_are_judged_as_before_and_nothing_is_said(tmp_path: Path) -> None:
    found = judged(tmp_path, "The Cat.", "cat", keys=SQUAD)
    assert found["right"]
    assert found["wrong_by_form"] == found["unspaced"] == 0
    assert not unfit_counts({"capitals": {"0": found | {"documents": 1}}})


def test_f1_of_chinese_is_by_characters(tmp_path: Path) -> None:
    for name in ("unicode", "mlqa_zh"):
        keys = f"metadata: {{pretrain: {{normalization: {name}}}}}"
        assert judged(tmp_path, "北京市", "北京", keys=keys)["f1"] == pytest.approx(4 / 5)
    assert judged(tmp_path, "北京市", "北京", keys=SQUAD)["f1"] == 0


def test_lm_evals_exact_match_is_unchanged_and_says_where_it_misses_other_scripts(tmp_path: Path) -> None:
    strict = "{metric: exact_match, ignore_punctuation: true, ignore_case: true}"
    found = judged(tmp_path, "北京。", "北京", strict)
    assert (found["right"], found["wrong_by_form"]) == (False, 1)
    found = judged(tmp_path, "北京。", "北京", "{metric: exact_match}")
    assert found["wrong_by_form"] == 0, "the rule keeps punctuation of every script"


def test_a_filter_finds_digits_of_every_script_in_one_form(tmp_path: Path) -> None:
    regex = r"filter_list: [{filter: [{function: regex, regex_pattern: '([0-9]+)'}]}]"
    for answer in ("答えは１２３です", "الجواب ١٢٣", "उत्तर १२३"):
        found = judged(tmp_path, answer, "123", "{metric: exact_match}", regex)
        assert (found["right"], found["wrong_by_form"]) == (False, 1)
        assert judged(tmp_path, answer, "123", "{metric: exact_match}", f"{regex}\n{UNICODE}")["wrong_by_form"] == 1
        one_form = f"{regex}\nmetadata: {{pretrain: {{one_form: true}}}}"
        assert judged(tmp_path, answer, "123", "{metric: exact_match}", one_form)["right"]


@pytest.mark.parametrize(
    ("metrics", "keys", "said"),
    [
        ("{metric: f1}", "{bleu_tokenize: zh}", "bleu_tokenize` is of no metric of this task"),
        ("{metric: bleu}", "{words: unicode}", "words` is of no metric of this task"),
        ("{metric: bleu}", "{bleu_tokenize: chinese}", "bleu_tokenize"),
        ("{metric: f1}", "{normalization: mlqa_fr}", "mlqa_zh"),
    ],
)
def test_a_key_that_no_metric_reads_is_refused(tmp_path: Path, metrics: str, keys: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        judged(tmp_path, "a", "b", metrics, f"metadata: {{pretrain: {keys}}}")


ZH = (["我 喜欢读书。", "他去北京了。"], ["我喜欢看书。", "他去了北京。"])


@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "char"])
def test_bleu_is_sacrebleus_by_each_of_its_tokenizers(tokenize: str) -> None:
    found = bleu(ZH[0], [[text] for text in ZH[1]], tokenize=tokenize)
    assert found.score == sacrebleu.corpus_bleu(ZH[0], [ZH[1]], tokenize=tokenize).score
    assert f"tok:{tokenize}" in found.signature


def test_chrf_is_sacrebleus() -> None:
    references = [[text] for text in ZH[1]]
    assert chrf("chrf", ZH[0], references).score == sacrebleu.corpus_chrf(ZH[0], [ZH[1]]).score
    plus = chrf("chrf++", ZH[0], references)
    assert plus.score == sacrebleu.corpus_chrf(ZH[0], [ZH[1]], word_order=2).score
    assert "nw:2" in plus.signature


def test_a_tokenizer_whose_package_is_absent_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for language, module in (("ja", "tokenizer_ja_mecab"), ("ko", "tokenizer_ko_mecab")):
        monkeypatch.setattr(import_module(f"sacrebleu.tokenizers.{module}"), "MeCab", None)
        with pytest.raises(ConfigError, match=rf"{language}-mecab here \(install sacrebleu\[{language}\]\)"):
            check_tokenize(f"{language}-mecab")


def test_bleu_and_chrf_of_a_task_have_their_signatures(tmp_path: Path) -> None:
    metrics = "{metric: bleu}, {metric: chrf, aggregation: chrf}, {metric: chrf++}"
    found = judged(tmp_path, "我喜欢读书", "我喜欢读书", metrics, "metadata: {pretrain: {bleu_tokenize: zh}}")
    assert [found[name] for name in ("bleu", "chrf", "chrf++")] == pytest.approx([1, 1, 1])
    assert "tok:zh" in found["bleu_signature"]
    assert "unspaced" not in found
    assert judged(tmp_path, "我喜欢读书", "我喜欢读书", "{metric: bleu}")["unspaced"] == 1


@pytest.mark.parametrize(
    ("answer", "reference", "by_words"),
    [
        ("北京很大", "北京大", 2 * 3 / 7),
        ("большой дом", "Большой дом.", 1),
        ("यह शहर", "यह शहर है।", 4 / 5),
        ("ดี", "ดี", 1),
    ],
)
def test_rouge_of_words_of_every_language(answer: str, reference: str, by_words: float) -> None:
    assert rouge("rouge1", [answer], [[reference]]).tolist() == [0], "rouge-score has no such letters"
    assert rouge("rouge1", [answer], [[reference]], unicode_words=True).tolist() == pytest.approx([by_words])
    assert loses_letters(reference)
    assert not loses_letters("A “quoted” text — 1")


def test_letters_that_rouge_leaves_out_are_counted(tmp_path: Path) -> None:
    metrics = "{metric: rougeL}"
    assert judged(tmp_path, "дом", "дом", metrics)["letters_lost"] == 1
    assert "letters_lost" not in judged(tmp_path, "дом", "дом", metrics, "metadata: {pretrain: {words: unicode}}")


def test_gleu_of_words_of_every_language() -> None:
    answer, original, reference = "我昨天去了北京", "我昨天去北京", "我昨天去了北京市"
    assert gleu([answer], [original], [[reference]])[0] == 0
    spaced = [" ".join(text) for text in (answer, original, reference)]
    by_hand = gleu([spaced[0]], [spaced[1]], [[spaced[2]]])
    assert gleu([answer], [original], [[reference]], words_of=list)[0] == by_hand[0] > 0.5


def test_translations_are_scored_by_the_metric_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [list(text.encode()) for text in ZH[0]]
    monkeypatch.setattr(
        translate, "decode", lambda *_, **__: [(SimpleNamespace(tokens=tokens, ended="stop"),) for tokens in said]
    )
    tokenizer = ToyTokenizer()
    prompts: Any = SimpleNamespace(
        specials=SimpleNamespace(start=0, end=300, cls=301),
        tokenizer=tokenizer,
        reads=SimpleNamespace(closed=list, tokenizer=tokenizer),
    )
    lines = translate.TranslationInput(["a", "b"], ZH[1])

    def scored(*metric: str) -> translate.TranslationResult:
        of = translate.TranslationMetric(*metric)
        engine: Any = None
        return translate.translate(engine, prompts, lines, length=9, longest=9, beam=Beam(1, 0), metric=of)

    assert scored().unspaced == 2
    assert scored("bleu", "zh").unspaced == scored("chrf").unspaced == 0
    assert scored("bleu", "zh").score == sacrebleu.corpus_bleu(ZH[0], [ZH[1]], tokenize="zh").score
    assert scored("chrf++").score == sacrebleu.corpus_chrf(ZH[0], [ZH[1]], word_order=2).score
    with pytest.raises(ConfigError, match="--tokenize zh is of BLEU, and --metric chrf has none"):
        translate.TranslationMetric("chrf", "zh").check()


@pytest.mark.parametrize(
    ("language", "text", "word"),
    [
        ("hi", "यह एक बहुत लंबा वाक्य है जिसमें बारह से अधिक शब्द हैं और अंत में क्रिया है।", " है"),
        ("ru", "Это был долгий день, и никто не знал, что делать со всеми этими яблоками!", " яблоками"),
        ("fa", "این یک جملهٔ بلند است که بیش از دوازده واژه دارد و پایانش این است؟", " است"),
        ("ar", "كان يوما طويلا ولم يعرف أحد ماذا يفعل بكل هذا التفاح في البيت الكبير؟", " الكبير"),
        ("zh", "这是一个很长的日子没有人知道该怎么办。", "办"),
        ("ja", "それはとても長い一日でした。", "た"),
        ("ko", "그날은 아주 긴 하루였고 아무도 그 많은 사과를 가지고 무엇을 해야 할지 알지 못했다.", " 못했다"),
    ],
)
def test_the_last_word_of_sentences_of_every_language(language: str, text: str, word: str) -> None:
    (passage,) = passages(text)
    document = last_word(passage)
    assert document.target == word
    assert document.context + document.target == passage
