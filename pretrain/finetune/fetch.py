"""Published data sets as labelled JSON Lines: files pinned by sha256 are downloaded, or read from a directory, and
written in the fields of an objective.

The same files always give the same bytes. Beside them is a `README.md` with the sources, digests and terms.
"""

import hashlib
import json
import shlex
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from data_pipeline.common.atomic import atomic_path, atomic_write
from data_pipeline.common.hashing import file_sha256
from pretrain.errors import ConfigError, RunError
from pretrain.finetune.sets.published_set import Archive, PublishedSet, PublishedSplit, SourceFile
from pretrain.finetune.sets.readers import Row
from pretrain.finetune.sets.registry import published_set
from pretrain.finetune.sets.row_filters import ROW_FILTERS

_WAIT_S = 60
_BLOCK_BYTES = 2**20
README = "README.md"


def fetch_set(name: str, directory: Path, source: Path | None, say: Callable[[str], None]) -> None:
    """Writes the splits of a set into `directory`, and calls `say` with its terms before anything is downloaded and
    with each outcome. `source` is a directory with files that were downloaded beforehand: nothing is downloaded.

    Raises ConfigError for an unknown set, and RunError for a file that cannot be had, that is not the pinned one, or
    whose rows are not those that were counted."""
    published = published_set(name)
    say(f"{name}: {published.title}")
    say(f"{name}: terms: {published.terms}")
    say(f"{name}: by {published.reference}")
    names = [*(f"{split}.jsonl" for split in published.splits), README]
    if all((directory / file).is_file() for file in names):
        say(f"{name}: {directory} exists already")
        say(_usage(name, directory, published))
        return
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pretrain-finetune-")))
        contents = _contents(published, source, scratch, say)
        rows = {split: list(_rows(name, published, part, contents)) for split, part in published.splits.items()}
    try:
        for split, lines in rows.items():
            with (
                atomic_path(directory / f"{split}.jsonl") as path,
                path.open("w", encoding="utf-8", newline="\n") as out,
            ):
                out.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in lines)
            say(f"{name}: {split}.jsonl has {len(lines):,} rows")
        atomic_write(directory / README, readme(name, published).encode())
    except OSError as error:
        raise RunError(f"{directory} cannot be written ({error.strerror}): choose another directory") from error
    say(_usage(name, directory, published))


def training_command(name: str, directory: Path, published: PublishedSet) -> str:
    """The command that trains on a written set, with the shipped config of its objective."""
    settings = [f"objective.{key}={value}" for key, value in published.settings.items()]
    if published.labels:
        settings.append(shlex.quote(f"objective.labels={json.dumps(list(published.labels))}"))
    return " ".join(
        (
            "pretrain finetune CHECKPOINT",
            f"finetune/{published.objective}",
            f"data.path={directory}",
            *settings,
            f"run.dir=runs/{name}",
        )
    )


def _usage(name: str, directory: Path, published: PublishedSet) -> str:
    if "train" in published.splits:
        return f"{name}: to train on it: {training_command(name, directory, published)}"
    return f"{name}: to answer it with a fine-tuned run: pretrain eval RUN --tasks heldout data.path={directory}"


def readme(name: str, published: PublishedSet) -> str:
    """README of a set: what its files are, where they come from, and under which terms."""
    settings = {"name": published.objective, **published.settings}
    lines = [
        f"# {name}: {published.title}",
        "",
        f"- Terms: {published.terms}",
        f"- By: {published.reference}",
        f"- Rows: {', '.join(f'{split} {part.rows:,}' for split, part in published.splits.items())}",
        f"- Settings: {' '.join(f'objective.{key}={value}' for key, value in settings.items())}",
    ]
    if published.labels:
        lines.append(f"- Labels: {json.dumps(list(published.labels))}")
    if published.note:
        lines.append(f"- Note: {published.note}")
    lines += ["", "| File | sha256 | Source |", "|---|---|---|"]
    lines += [f"| {file.path} | {file.sha256} | {file.url} |" for file in published.files]
    return "\n".join([*lines, ""])


def _rows(
    name: str, published: PublishedSet, split: PublishedSplit, contents: Mapping[SourceFile, bytes]
) -> Iterator[Row]:
    """The rows of a split, which are counted, and whose labels are checked."""
    number = written = 0
    labels, keep = set(published.labels), ROW_FILTERS[split.keep]
    for file in published.files_of(split):
        for row in published.read(contents[file]):
            if keep(number):
                unknown = set(row.get("tags", [row.get("label")])) - labels if labels else ()
                assert not unknown, (file.path, number, unknown)
                yield row
                written += 1
            number += 1
    if written != split.rows:
        raise RunError(
            f"{name} has {written:,} rows in a split that has {split.rows:,}: please report it as a fault of pretrain"
        )


def _contents(
    published: PublishedSet, source: Path | None, scratch: Path, say: Callable[[str], None]
) -> dict[SourceFile, bytes]:
    """The verified bytes of each file of the set."""
    contents: dict[SourceFile, bytes] = {}
    archives: dict[Archive, Path] = {}
    for file in published.files:
        path = _local(file, source) if source is not None else None
        if path is None and file.archive is None:
            if source is not None:
                raise ConfigError(f"--from {source} has neither {file.path} nor {file.name}: download {file.url}")
            say(f"downloading {file.url}")
            path = _download(file.url, scratch / file.sha256)
        elif path is None and file.archive is not None:
            if file.archive not in archives:
                archives[file.archive] = _archive(file.archive, source, scratch, say)
                contents |= _extracted(archives[file.archive], published.files)
            _check(hashlib.sha256(contents[file]).hexdigest(), file.sha256, file.path)
            continue
        assert path is not None
        _check(file_sha256(path), file.sha256, str(path if source is not None else file.url))
        contents[file] = path.read_bytes()
    return contents


def _local(file: SourceFile, source: Path) -> Path | None:
    """The file in `source`, as a copy of the repository has it or by its name alone."""
    return next((source / one for one in (file.path, file.name) if (source / one).is_file()), None)


def _archive(archive: Archive, source: Path | None, scratch: Path, say: Callable[[str], None]) -> Path:
    """The verified package."""
    if source is None:
        say(f"downloading {archive.url}")
        path = _download(archive.url, scratch / archive.file_name)
    else:
        path = source / archive.file_name
        if not path.is_file():
            raise ConfigError(f"--from {source} has no {archive.file_name}: download {archive.url}")
    _check(file_sha256(path), archive.sha256, str(path if source is not None else archive.url))
    return path


def _extracted(archive: Path, files: list[SourceFile]) -> dict[SourceFile, bytes]:
    """The bytes of files of an archive. It is read once, and nothing of it is written to disk."""
    wanted = {file.path: file for file in files}
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            return {file: package.read(path) for path, file in wanted.items()}
    contents = {}
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            content = stream.extractfile(member) if member.name in wanted else None
            if content is not None:
                contents[wanted[member.name]] = content.read()
    return contents


def _download(url: str, path: Path) -> Path:
    try:
        with urlopen(url, timeout=_WAIT_S) as response, path.open("wb") as out:
            while block := response.read(_BLOCK_BYTES):
                out.write(block)
    except (OSError, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"{url} cannot be downloaded ({why:.200}): download it elsewhere and name its directory with --from"
        ) from error
    return path


def _check(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise RunError(f"{what} is not the file that this set was made from: its sha256 is {found}, not {expected}")
