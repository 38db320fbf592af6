"""A run as a task file of SkyPilot (https://docs.skypilot.co/en/latest/reference/yaml-spec.html), for managed jobs.

`sky jobs launch` recovers a job whose machines are preempted, and one that ends with 75, as it has saved. After other
failures the supervisor restarts, so SkyPilot does not.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.errors import ExitStatus
from launch.manifest import NodesRun, to_yaml

_CONFIG = "pretrain-config.yaml"  # in the working directory of the task
_END = "END_OF_CONFIG"


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of the machines."""

    accelerators: str | None
    """Kind and number per node, such as H100:8; None: ranks run on CPUs."""
    cpus: str | None = None
    memory: str | None = None
    infra: str | None = None
    """Cloud, region or Kubernetes context, such as aws/us-east-1."""
    image: str | None = None
    spot: bool = False
    volumes: tuple[tuple[str, str], ...] = ()
    """(SkyPilot's volume, path on the nodes)"""
    env: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    """Shell lines that install pretrain; None: the image has it."""


def render(run: NodesRun, task: TaskSettings) -> str:
    """YAML of the task. Raises ConfigError for paths that the nodes do not have."""
    run.check_paths([mount for _, mount in task.volumes])
    wanted = {
        "accelerators": task.accelerators,
        "cpus": task.cpus,
        "memory": task.memory,
        "infra": task.infra,
        "image_id": f"docker:{task.image}" if task.image is not None else None,
    }
    resources: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    resources |= {"use_spot": True} if task.spot else {}
    resources["job_recovery"] = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [int(ExitStatus.STOPPED)]}
    words = run.program(_CONFIG, job="\0JOB", index="\0INDEX", address="\0ADDRESS")
    line = " ".join(
        {
            "\0JOB": '"$SKYPILOT_TASK_ID"',
            "\0INDEX": '"$SKYPILOT_NODE_RANK"',
            "\0ADDRESS": '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
        }.get(word)
        or shlex.quote(word)
        for word in words
    )
    document = {
        "name": run.name,
        "num_nodes": run.nodes,
        "resources": resources,
        **({"volumes": {path: name for name, path in task.volumes}} if task.volumes else {}),
        "envs": {"PYTHONUNBUFFERED": "1", **task.env},
        **({"setup": task.setup} if task.setup else {}),
        "run": f"cat > {_CONFIG} <<'{_END}'\n{run.config_text.rstrip()}\n{_END}\nexec {line}\n",
    }
    comment = f"Trains {run.run_dir}. Written by: {run.command_line}\nSubmit it: sky jobs launch FILE"
    return to_yaml([document], comment)
