"""A run as a Kubernetes Job: one pod for each node, found by its index, and a ConfigMap with the config.

An Indexed Job (https://kubernetes.io/docs/concepts/workloads/controllers/job/) is enough: nodes agree on starts through
files (`launch/nodes`), so no JobSet, service or name of a pod is needed. A pod that ends with 75 has saved and is
replaced, as is one that was evicted; 1 and 2 fail the Job.
"""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.errors import ExitStatus
from launch.manifest import NodesRun, to_yaml
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import CONFIG

_CONTAINER = "ranks"
_CONFIG_DIR, _SHM = "/etc/pretrain", "/dev/shm"
_LABELS = "metadata.labels['batch.kubernetes.io/controller-uid']"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_KUBECTL_S = 120.0


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of the pods."""

    image: str
    gpus: int
    """GPUs per pod; 0: ranks run on CPUs."""
    volumes: tuple[tuple[str, str], ...]
    """(PersistentVolumeClaim, path in the pods)"""
    namespace: str | None = None
    cpus: str | None = None
    memory: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None
    """Kueue's local queue, which admits all pods together."""
    save_margin_s: int = 300
    """Seconds between SIGTERM and SIGKILL."""


def render(run: NodesRun, pods: PodSettings) -> str:
    """YAML of the ConfigMap and the Job. Raises ConfigError for paths that the pods do not have."""
    run.check_paths([mount for _, mount in pods.volumes])
    for own in (_CONFIG_DIR, _SHM):
        if any(own == mount or PurePosixPath(own).is_relative_to(mount) for _, mount in pods.volumes):
            raise ConfigError(f"--volume: nothing can be mounted over {own}, which pods have of their own")
    comment = (
        f"Trains {run.run_dir}. Written by: {run.command_line}\n"
        "Submit it: kubectl create -f FILE. Cancel it: kubectl delete job " + run.name + ", after which ranks save."
    )
    metadata = {"name": run.name, **({"namespace": pods.namespace} if pods.namespace else {})}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CONFIG: run.config_text}}
    return to_yaml([config, _job(run, pods, metadata)], comment)


def _job(run: NodesRun, pods: PodSettings, metadata: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"labels": {"kueue.x-k8s.io/queue-name": pods.queue}} if pods.queue else {}
    exit_codes = {"containerName": _CONTAINER, "operator": "In"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, **labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": run.nodes,
            "parallelism": run.nodes,
            "backoffLimit": run.restarts,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "Ignore", "onExitCodes": {**exit_codes, "values": [int(ExitStatus.STOPPED)]}},
                    {
                        "action": "FailJob",
                        "onExitCodes": {**exit_codes, "values": [int(ExitStatus.FAILED), int(ExitStatus.BAD_USAGE)]},
                    },
                ]
            },
            "template": {"spec": _pod(run, pods)},
        },
    }


def _pod(run: NodesRun, pods: PodSettings) -> dict[str, Any]:
    words = run.program(f"{_CONFIG_DIR}/{CONFIG}", job="\0JOB", index="\0INDEX", address="\0ADDRESS")
    # "$(" would begin a variable of Kubernetes; ours are put in after that.
    words = [word.replace("$(", "$$(") for word in words]
    for name in ("JOB", "INDEX", "ADDRESS"):
        words = [word.replace(f"\0{name}", f"$(NODE_{name})") for word in words]
    variables: list[dict[str, Any]] = [
        {"name": f"NODE_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("JOB", _LABELS), ("INDEX", _INDEX), ("ADDRESS", "status.podIP"))
    ]
    own = {"PYTHONUNBUFFERED": "1", **pods.env}
    variables += [{"name": name, "value": value.replace("$(", "$$(")} for name, value in own.items()]
    amounts: dict[str, Any] = {"nvidia.com/gpu": str(pods.gpus)} if pods.gpus else {}
    amounts |= {name: value for name, value in (("cpu", pods.cpus), ("memory", pods.memory)) if value is not None}
    claims = list(dict.fromkeys(claim for claim, _ in pods.volumes))
    volumes: list[dict[str, Any]] = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    volumes += [
        {"name": "config", "configMap": {"name": run.name}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # the 64 MB of a container's own are too few for NCCL
    ]
    mounts = [{"name": f"volume-{claims.index(claim)}", "mountPath": path} for claim, path in pods.volumes]
    mounts += [{"name": "config", "mountPath": _CONFIG_DIR}, {"name": "shm", "mountPath": _SHM}]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.save_margin_s,
        **({"nodeSelector": dict(pods.node_selector)} if pods.node_selector else {}),
        "containers": [
            {
                "name": _CONTAINER,
                "image": pods.image,
                "command": words,
                "env": variables,
                **({"resources": {"limits": amounts, "requests": amounts}} if amounts else {}),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def submit(text: str, command: Sequence[str] = ("kubectl", "create", "-f", "-")) -> str:
    """Output of kubectl, which submits `text`. Raises ConfigError with the error that kubectl prints, and RunError
    where kubectl cannot be run."""
    try:
        done = subprocess.run([*command], input=text, capture_output=True, text=True, timeout=_KUBECTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{shlex.join(command)} cannot be run ({error})") from None
    if done.returncode:
        raise ConfigError(f"{shlex.join(command)}: {' '.join(done.stderr.split())[:500]}")
    return done.stdout.strip()
