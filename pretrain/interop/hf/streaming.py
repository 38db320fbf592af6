"""The checkpoint of an import, written one tensor at a time: what it takes of memory does not grow with the model.

It comes into being inside the run's directory, where the gate reads it, and only then gets its name.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from data_pipeline.common.atomic import fsync
from pretrain.checkpoint import directory as directories
from pretrain.checkpoint.snapshot import StreamedSnapshot, pieces_of
from pretrain.checkpoint.state import Record
from pretrain.checkpoint.writing import Writer
from pretrain.config.model import Model
from pretrain.engine.base import GlobalPart
from pretrain.engine.collective import file_group
from pretrain.errors import ConfigError, RunError
from pretrain.interop.hf import folder as folders
from pretrain.interop.hf.folder import Folder, values_of
from pretrain.interop.hf.links import Link
from pretrain.run_dir.paths import RunDir, checkpoint_name

Read = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""gives some of Hugging Face's tensors, by name"""
_TEMPORARY = "importing.tmp"
_AT_ONCE = 2**24  # values whose finiteness is looked at together
_TIMEOUT_S = 600.0


class ImportedTensors:
    """Our tensors by name, each made as it is asked for: of a link to what was read, or else given as it is."""

    def __init__(self, source: Path) -> None:
        """`source`: the folder, for messages."""
        self._source = source
        self._links: dict[str, tuple[Link, Read]] = {}
        self._given: dict[str, Tensor] = {}

    def add_links(self, links: Iterable[Link], read: Read) -> None:
        """Takes what `links` lead to, from the tensors that `read` gives."""
        self._links |= {name: (link, read) for link in links for name in link.mcore_names}

    def add(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Takes values as they are, by our names."""
        self._given |= dict(values)

    def in_order(self, state: Mapping[str, GlobalPart]) -> Iterator[Tensor]:
        """The values of `state`, one after the other. Raises ConfigError for values that are no finite numbers, and
        RunError for those of another shape."""
        names = {key.removeprefix("model/") for key in state}
        assert names == self._links.keys() | (self._given.keys() & names), "links lead to each tensor, and to no other"
        of_link: dict[str, Tensor] = {}
        for key, part in state.items():
            name = key.removeprefix("model/")
            if name in self._links:
                of_link |= {} if name in of_link else self._values_of_link(name)
                value = of_link.pop(name)
            else:
                value = self._given[name]
            if tuple(value.shape) != part.shape:
                raise RunError(
                    f"{self._source}: {self._source_of(name)} makes {tuple(value.shape)}, and {part.shape} is needed"
                )
            yield value

    def _values_of_link(self, name: str) -> dict[str, Tensor]:
        link, read = self._links[name]
        found = read(link.hf_names)
        for hf_name in link.hf_names:
            if not is_finite(found[hf_name]):
                raise ConfigError(f"{self._source}: {hf_name} has values that are no finite numbers")
        values = link.back(*(found[hf_name].float() for hf_name in link.hf_names))
        return dict(zip(link.mcore_names, values, strict=True))

    def _source_of(self, name: str) -> str:
        return self._links[name][0].hf_names[0] if name in self._links else name


def is_finite(value: Tensor) -> bool:
    """Whether all values are finite numbers; without a copy of them all."""
    return all(bool(part.isfinite().all()) for part in value.reshape(-1).split(_AT_ONCE))


def reader(folder: Folder, model: Model, drawn: Mapping[str, Tensor]) -> Read:
    """Reads tensors of a folder by the names of its family's links; what the folder lacks comes from `drawn`."""

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        places = {name: folders.name_in(folder, model, name) for name in names}
        values = values_of(folder, [place for place in places.values() if place is not None])
        return {name: drawn[name] if place is None else values[place] for name, place in places.items()}

    return read


def write(
    directory: Path,
    *,
    record: Record,
    tokenizer: bytes,
    state: dict[str, GlobalPart],
    tensors: ImportedTensors,
    warn: Callable[[str], None],
) -> Path:
    """Writes the checkpoint of `record` into `directory`, byte for byte as a save of `state` with these values, and
    returns it. Raises what `ImportedTensors.in_order` does."""
    problems: list[ConfigError | RunError] = []

    def values() -> Iterator[Tensor]:
        try:
            yield from tensors.in_order(state)
        except (ConfigError, RunError) as error:
            problems.append(error)
            raise

    stream = StreamedSnapshot(record, tokenizer, [part for part, _ in pieces_of(state)], values())
    try:
        Writer(directory, 1, file_group(_TIMEOUT_S), lambda: None, warn).write(stream)
    except RunError:
        if problems:  # of the folder, and not of the disk
            raise problems[0] from None
        raise
    return directory / checkpoint_name(record.step)


@contextmanager
def directory_for_import(run: RunDir) -> Iterator[Path]:
    """A directory inside that of `run`, whose checkpoints become the run's if no error is raised. Nothing is left of it
    otherwise, nor of a run's directory that was not there."""
    temporary = run.path / _TEMPORARY
    created = [path for path in (run.path, *run.path.parents) if not path.exists()]
    shutil.rmtree(temporary, ignore_errors=True)  # of an import that was killed
    try:
        temporary.mkdir(parents=True)
        yield temporary
        run.checkpoints.mkdir(exist_ok=True)
        for checkpoint in temporary.iterdir():
            directories.publish(checkpoint, run.checkpoints / checkpoint.name)
        fsync(run.checkpoints)
    except OSError as error:
        raise RunError(f"not imported: {run.path} cannot be written ({error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not run.checkpoints.exists():
            with suppress(OSError):
                for path in created:
                    path.rmdir()
