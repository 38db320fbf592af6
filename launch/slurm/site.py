"""Settings that a cluster requires of every job, written once: `configs/cluster/NAME.yaml`, or any YAML file."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pretrain.config.section import Section

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")  # line breaks among them


def _written(pattern: str, what: str) -> AfterValidator:
    """A validator that refuses text which does not match `pattern`."""

    def checked(text: str, info: ValidationInfo) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"'{info.field_name}' = {text}: it should be {what}")
        return text

    return AfterValidator(checked)


def has_control(text: str) -> bool:
    """Whether a text has a line break or another control character."""
    return _CONTROL.search(text) is not None


_Name = Annotated[str, _written(r"[A-Za-z0-9_.,:@%/+=-]+", "a name as Slurm has it, without blanks and quotes")]
_Features = Annotated[str, _written(r"[A-Za-z0-9_.,:@%/+=&|!*()\[\]-]+", "features as Slurm has them, such as h100&ib")]
_Memory = Annotated[str, _written(r"[0-9]+([KMGTkmgt]B?)?", "a size, such as 900G, or 0")]
_TIME = r"[0-9]+(:[0-5]?[0-9]){0,2}|[0-9]+-[0-9]{1,2}(:[0-5]?[0-9]){0,2}|UNLIMITED|INFINITE"
_Time = Annotated[str, _written(_TIME, "minutes, hours:minutes:seconds or days-hours:minutes:seconds")]


class Site(Section):
    partition: _Name | None = Field(
        None, description="Partition, or several separated by commas, of which Slurm chooses one."
    )
    account: _Name | None = Field(None, description="Account to charge.")
    qos: _Name | None = Field(None, description="Quality of service.")
    constraint: _Features | None = Field(None, description="Features that nodes must have, such as 'h100&ib'.")
    exclusive: bool = Field(False, description="Whether nodes are not shared with other jobs.")
    gpus_per_node: int = Field(0, ge=0, le=64, description="GPUs per node (default 0: ranks run on CPUs).")
    ranks_per_node: int | None = Field(
        None, gt=0, le=1024, description="Ranks per node (default: one per GPU; without GPUs, 1)."
    )
    cpus_per_rank: int | None = Field(None, gt=0, description="CPUs per rank, as Slurm counts them (--cpus-per-task).")
    memory: _Memory | None = Field(None, description="Memory per node, such as 900G; 0: all of it.")
    hardware: str | None = Field(
        None,
        min_length=1,
        description="GPUs by name, such as h100, or a YAML file that describes them, as for pretrain plan; runs that "
        "do not fit are refused.",
    )
    gpu_memory_gib: float | None = Field(
        None, gt=0, description="Memory per GPU in GiB, where it is not that of the hardware."
    )
    time: _Time | None = Field(None, description="Time limit, such as 1-00:00:00.")
    setup: str | None = Field(
        None, description="Shell file that the job sources first, for modules or a virtual environment."
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of all ranks, such as NCCL_IB_HCA."
    )
    container: str | None = Field(None, description="Container image for ranks (pyxis: srun --container-image).")
    container_mounts: str | None = Field(None, description="Container mounts FROM:TO, separated by commas.")
    python: str | None = Field(
        None,
        description="Python of the ranks (default: the one that runs this command; in a container, python3).",
    )
    sbatch: tuple[str, ...] = Field((), description="Further options for sbatch, such as --reservation=name.")
    srun: tuple[str, ...] = Field((), description="Further options for srun.")
    save_margin_s: int = Field(
        300, ge=10, le=86_400, description="Seconds before the time limit at which a run saves and stops."
    )

    @field_validator("*")
    @classmethod
    def _on_one_line(cls, value: Any, info: ValidationInfo) -> Any:
        texts = [*value, *value.values()] if isinstance(value, dict) else [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and any(has_control(str(text)) for text in texts):
            raise ValueError(f"'{info.field_name}': a line break cannot be in a batch script: remove it")
        return value

    @field_validator("sbatch", "srun")
    @classmethod
    def _are_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if re.fullmatch(r"-[A-Za-z-].*", option) is None:
                raise ValueError(f"'{option}' is no option: it should begin with --")
        return options

    @field_validator("env")
    @classmethod
    def _are_names_of_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None:
                raise ValueError(f"'{name}' is no name of a variable")
        return env

    @property
    def ranks(self) -> int:
        """Ranks per node."""
        return self.ranks_per_node or max(1, self.gpus_per_node)
