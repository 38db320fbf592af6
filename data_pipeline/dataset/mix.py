"""mix.json: datasets that were built together, each in a folder by its name, with one tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data_pipeline.dataset.records import FORMAT, Name, StrictRecord, parse_record, record_bytes, save_record
from data_pipeline.errors import DataError

MIX_MANIFEST = "mix.json"


class MixSource(StrictRecord):
    """One dataset of a mix."""

    name: Name = Field(description="the dataset's folder")
    weight: float = Field(gt=0)
    identity: str = Field(description="the dataset's")


class MixManifest(StrictRecord):
    """Manifest of a mix: its identity and its sources."""

    format: Literal[1] = FORMAT
    identity: str = Field(description="digest of all that decides the content")
    sources: tuple[MixSource, ...] = Field(min_length=1)

    def save(self, directory: Path) -> None:
        """Write mix.json, the same bytes for the same content."""
        save_record(self.model_dump(), directory / MIX_MANIFEST)

    @classmethod
    def load(cls, directory: Path) -> MixManifest:
        """Read and check mix.json. Raises DataError when it is missing, damaged or of another format."""
        path = directory / MIX_MANIFEST
        mix, intact = parse_record(cls, record_bytes(path), str(path))
        if not intact:
            raise DataError(f"{path} was changed by hand: its checksum isn't that of its content; build it again.")
        return mix
