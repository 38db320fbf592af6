"""`track`: where figures go besides `metrics.jsonl`."""

import re
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from data_pipeline.common.plugins import Registry
from pretrain.config.section import NameIn, Section

TRACKER_NAMES = Registry[str]("pretrain.trackers", {"mlflow": "MLflow"})
"""Names of trackers; `pretrain.observe.track.TRACKERS` has the classes, which may import torch."""

_ADDRESS = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://.|https?://[^/]|file:/|databricks|uc:|[^:]*/")


class Track(Section):
    kind: Annotated[str, NameIn(TRACKER_NAMES)] = Field(
        "mlflow", description="experiment tracker: mlflow, or one of an installed package"
    )
    mlflow: bool = Field(True, description="write metrics to MLflow as well as to metrics.jsonl")
    uri: str | None = Field(
        None, description="address of the tracker; default for MLflow: the SQLite file mlflow.db beside run.dir"
    )

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, uri: str | None, info: ValidationInfo) -> str | None:
        """Refuses what MLflow would take for the name of a folder, and create."""
        if uri is not None and info.data.get("kind") == "mlflow" and not _ADDRESS.match(uri):
            raise ValueError(
                f"track.uri={uri[:80]!r} is no address of MLflow: write sqlite:///FILE, https://HOST, or the path of a "
                "folder with a / in it"
            )
        return uri

    experiment: str = Field("pretrain", description="experiment that the run belongs to, in MLflow")
    every_steps: int = Field(1, gt=0, description="steps between terminal lines and between points of the tracker")

    @property
    def is_on(self) -> bool:
        """Whether the run is tracked beyond metrics.jsonl."""
        return self.mlflow or self.kind != "mlflow"
