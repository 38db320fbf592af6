"""`pretrain data build` and `pretrain data inspect`, after their arguments are parsed: what they do and print."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.common.interrupt import exit_on_signal
from data_pipeline.common.scratch import scratch_folder
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import SPLITS, SplitName
from data_pipeline.dataset.source_figures import figures_table, mix_of, source_figures
from data_pipeline.dataset.unknown_tokens import MANY, WAY_OUT, unknown_share_of
from data_pipeline.dataset.unseen_begin import BUILD_AGAIN, piece_name, unseen_begin
from data_pipeline.overlap.contamination import searched_sets

_SAMPLE_CHARACTERS, _LINE_CHARACTERS = 400, 200
_BEFORE_AND_AFTER = (("before", "before"), ("after", "text"))


def build_and_show(config: BuildConfig) -> None:
    """Builds the dataset unless it exists, and prints a summary. A signal ends the process with a message. Raises
    DataError for what the user has to correct."""
    how_to_resume = f"run the same command again to resume from {scratch_folder(config.output)}"
    with exit_on_signal(f"pretrain: stopped; {how_to_resume}"):
        built = build(config)
    if not built:
        print(f"{config.output} is already built from this input with these settings.")
    mix = mix_of(config.output)
    for name, (dataset, weight) in mix.items():
        print(f"{_title(name, weight)}{_counts(dataset)}{_steps(dataset)}")
    _compare(mix)


def inspect(address: str) -> None:
    """Verifies the dataset in a directory or at an address that fsspec reads, and prints a summary. Raises DataError
    when it is damaged."""
    mix = mix_of(address)
    for name, (dataset, weight) in mix.items():
        dataset.verify()
        print(f"{_title(name, weight)}{_counts(dataset)}{_steps(dataset)}")
        print("checksums   all good")
        for split in SPLITS:
            print(f"\n--- {split}, first document ---\n{_first_text(dataset, split)}")
    _compare(mix)


def _title(name: str, weight: float) -> str:
    return f"\n=== {name} (weight {weight:g})\n" if name else ""


def _compare(mix: Mapping[str, tuple[Dataset, float]]) -> None:
    """Prints the sources of a mix side by side."""
    if len(mix) > 1:
        print("\n=== all sources: tokens of the training split")
        print(figures_table(source_figures(mix)))


def _steps(dataset: Dataset) -> str:
    """Results of each build step: documents seen, kept, dropped by reason, and changed; warnings about steps that
    removed much text; and how many evaluation examples the text contained."""
    report = dataset.report()
    if not report:
        return ""
    bad, steps = report["malformed"], report["steps"]
    lines = []
    if bad["count"]:
        lines.append(f"\nmalformed   {bad['count']:,} of {bad['seen']:,} lines, records or rows were skipped, such as")
        lines += [f"            {one['file']}, {one['place']}: {one['reason']}" for one in bad["examples"]]
    lines += [f"\n{'step':<20}{'seen':>12}{'kept':>12}  dropped; changed" if steps else ""]
    for step in steps:
        dropped, changed = (
            ", ".join(f"{name} {count:,}" for name, count in sorted(step[kind].items(), key=lambda x: -x[1]))
            for kind in ("dropped", "changed")
        )
        lines.append(f"{step['name']:<20}{step['seen']:>12,}{step['kept']:>12,}  {dropped or '-'}; {changed or '-'}")
    for step in (step for step in steps if "warning" in step):
        lines.append(f"\nwarning: {step['warning']}")
        for one in step["samples_changed"]:
            where = f"{one['file']}, document {one['index']:,}"
            lines += [f"  {where}", *(f"    {name:<7}{_short(one[key])}" for name, key in _BEFORE_AND_AFTER)]
    sets = searched_sets(dataset)
    lines += [f"\n{'evaluation set':<32}{'N':>3}{'examples':>12}{'dirty':>12}{'share':>9}" if sets else ""]
    lines += [f"{s.name:<32}{s.ngram:>3}{s.examples:>12,}{s.dirty:>12,}{s.dirty_fraction:>9.2%}" for s in sets]
    return "\n".join(lines)


def _short(text: str) -> str:
    shown = repr(text[:_LINE_CHARACTERS])
    return shown if len(text) <= _LINE_CHARACTERS else f"{shown} ..."


def _counts(dataset: Dataset) -> str:
    manifest = dataset.manifest
    lines = [f"{'split':<12}{'documents':>12}{'tokens':>16}{'bytes':>16}{'words':>14}{'bytes/token':>13}{'shards':>8}"]
    for name in SPLITS:
        split = manifest.splits[name]
        lines.append(
            f"{name:<12}{split.documents:>12,}{split.tokens:>16,}{split.text_bytes:>16,}{split.words:>14,}"
            f"{split.text_bytes / split.tokens:>13.2f}{len(split.shards):>8,}"
        )
    counts = dataset.unigram_counts()
    share = counts[counts > 0] / counts.sum()
    lines.append(f"tokenizer   {manifest.tokenizer.vocabulary:,} pieces, {manifest.tokenizer.identity[:16]}")
    lines.append(
        f"unigram     {-(share * np.log(share)).sum():.3f} nats per token: the loss of a model that learns only this"
    )
    lines += [*_fertility(dataset), *_copies(dataset), *_unknown(dataset), *_begin(dataset)]
    lines.append(f"identity    {manifest.identity[:16]}")
    return "\n".join(lines)


def _fertility(dataset: Dataset) -> list[str]:
    """A line with the tokens per word, character and byte of the training split, as far as these were counted."""
    (of,) = source_figures({"": (dataset, 1.0)})
    rates = {"word": of.tokens_per_word, "character": of.tokens_per_character, "byte": of.tokens_per_byte}
    known = ", ".join(f"{rate:.3f} per {unit}" for unit, rate in rates.items() if rate is not None)
    return [f"fertility   tokens of the training split: {known}"] if known else []


def _copies(dataset: Dataset) -> list[str]:
    """The share of documents whose text an earlier one of their split has; nothing where they were not counted."""
    splits = [dataset.manifest.splits[name] for name in SPLITS]
    if any(split.copies is None for split in splits):
        return []
    copies, documents = (sum(getattr(split, name) for split in splits) for name in ("copies", "documents"))
    drop = "; the step dedup_exact drops them" if copies else ""
    return [
        f"copies      {copies:,} of {documents:,} documents ({copies / documents:.2%}) have the text of another{drop}"
    ]


def _unknown(dataset: Dataset) -> list[str]:
    """The share of what the tokenizer can't spell, if there may be any; a warning where it is large."""
    share = unknown_share_of(dataset)
    if share is None:
        return []
    lines = [f"unknown     {share:.2%} of the training split's tokens"]
    return [*lines, f"warning: {share:.1%} of the tokens are unknown to the tokenizer: {WAY_OUT}"][: 1 + (share > MANY)]


def _begin(dataset: Dataset) -> list[str]:
    """Line that names the token before each document; a warning where there is none, although evaluation, generation
    and exports put one before every text."""
    begin = dataset.manifest.begin_of_text
    if begin is not None:
        return [f"begin       {piece_name(dataset.tokenizer(), begin)} before each document"]
    unseen = unseen_begin([dataset])
    if unseen is None:
        return []
    return [
        f"warning: no document begins with {unseen}, which evaluation, generation and exports put before every text: "
        f"{BUILD_AGAIN}, or set tokenizer.begin_of_text=off for texts without it"
    ]


def _first_text(dataset: Dataset, split: SplitName) -> str:
    _, tokens = next(dataset.documents(split))  # a manifest without documents is refused
    tokenizer = dataset.tokenizer()
    tokens = tokens[:_SAMPLE_CHARACTERS]
    parts = np.split(tokens, np.flatnonzero(tokens == tokenizer.end_of_text))  # a pair's source and target
    text = "\n".join(map(tokenizer.decode, parts))
    return text if len(text) <= _SAMPLE_CHARACTERS else text[:_SAMPLE_CHARACTERS] + " ..."
