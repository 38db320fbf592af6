"""`track`: where figures go besides `metrics.jsonl`."""

import re
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from data_pipeline.common.plugins import Registry
from pretrain.config.section import NameIn, Section

TRACKER_NAMES = Registry[str](
    "pretrain.trackers", {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}
)
"""Names of trackers; `pretrain.observe.track.TRACKERS` has the classes, which may import torch."""

_ADDRESS = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://.|https?://[^/]|file:/|databricks|uc:|[^:]*/")


class Track(Section):
    kind: Annotated[str | tuple[str, ...], NameIn(TRACKER_NAMES)] = Field(
        "mlflow",
        description="experiment tracker: mlflow, tensorboard, wandb or one of an installed package; or a list of them",
    )
    mlflow: bool = Field(True, description="whether to use MLflow where track.kind names it")
    uri: str | None = Field(
        None,
        description="address of MLflow, or of the tracker of a package; default for MLflow: the SQLite file mlflow.db "
        "beside run.dir",
    )

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, uri: str | None, info: ValidationInfo) -> str | None:
        """Refuses what MLflow would take for the name of a folder, and create, or for settings of a database."""
        if uri is None or "mlflow" not in _names(info.data.get("kind", ())):
            return uri
        if not _ADDRESS.match(uri):
            raise ValueError(
                f"track.uri={uri[:80]!r} is no address of MLflow: write sqlite:///FILE, https://HOST, or the path of a "
                "folder with a / in it"
            )
        if uri.startswith("sqlite:") and "?" in uri and "=" not in uri.partition("?")[2]:
            raise ValueError(
                f"track.uri={uri[:80]!r} names a database by what comes before its ?: write a ? of a path as %3F, and "
                "a % as %25"
            )
        return uri

    experiment: str = Field(
        "pretrain", description="experiment that the run belongs to, in MLflow; project, in Weights & Biases"
    )
    offline: bool = Field(
        False, description="Weights & Biases: write to run.dir/wandb, which `wandb sync` uploads, without a server"
    )
    every_steps: int = Field(1, gt=0, description="steps between terminal lines and between points of trackers")
    norms_every_steps: int = Field(
        0,
        ge=0,
        description="steps between norms of gradients and weights by layer, in metrics.jsonl and trackers; 0: none",
    )

    activations_every_steps: int = Field(
        0,
        ge=0,
        description="steps between sizes of layers' outputs, in metrics.jsonl and trackers; 0: none",
    )

    experts_every_steps: int = Field(
        100,
        ge=0,
        description="steps between counts of the tokens that chose each expert, by layer of experts, in metrics.jsonl "
        "and trackers; 0: none",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Trackers of the run, beyond metrics.jsonl."""
        return tuple(name for name in _names(self.kind) if self.mlflow or name != "mlflow")


def _names(kind: str | tuple[str, ...]) -> tuple[str, ...]:
    return (kind,) if isinstance(kind, str) else tuple(dict.fromkeys(kind))
