"""`track`: where figures go besides `metrics.jsonl`."""

import re

from pydantic import Field, field_validator

from pretrain.config.section import Section

_ADDRESS = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://.|https?://[^/]|file:/|databricks|uc:|[^:]*/")


class Track(Section):
    mlflow: bool = Field(True, description="write metrics to MLflow as well as to metrics.jsonl")
    uri: str | None = Field(None, description="MLflow tracking URI; default: the SQLite file mlflow.db beside run.dir")

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, uri: str | None) -> str | None:
        """MLflow takes any other word for a folder here, and makes it."""
        if uri is not None and not _ADDRESS.match(uri):
            raise ValueError(
                f"track.uri={uri[:80]!r} is no address of MLflow: write sqlite:///FILE, https://HOST, or the path of a "
                "folder with a / in it"
            )
        return uri

    experiment: str = Field("pretrain", description="MLflow experiment that the run belongs to")
    every_steps: int = Field(1, gt=0, description="steps between terminal lines and between MLflow points")
