"""`track`: where figures go besides `metrics.jsonl`."""

from pydantic import Field

from pretrain.config.section import Section


class Track(Section):
    mlflow: bool = Field(True, description="write to MLflow as well as to metrics.jsonl")
    uri: str | None = Field(None, description="tracking URI; absent: sqlite file mlflow.db beside run.dir")
    experiment: str = Field("pretrain", description="MLflow experiment that the run belongs to")
    every_steps: int = Field(1, gt=0, description="steps between terminal lines and MLflow points")
