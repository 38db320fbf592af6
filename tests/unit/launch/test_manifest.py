"""Descriptions of a run for Kubernetes and SkyPilot, held against a strict schema of fields that their pages name, and
against the published schemas where kubernetes-validate and SkyPilot are installed."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from pretrain.commands import launch_kubernetes, launch_skypilot
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

RUN = [
    "debug/gpt",
    "data.path=/shared/book",
    "run.dir=/shared/runs/$(A) it's",
    "run.name=My_Run",
    "parallel={}",
    "batch={sequences: 64, micro_sequences: 4}",
]
KUBERNETES = [*RUN, "--nodes", "2", "--image", "registry.example/pretrain:cuda", "--volume", "shared:/shared"]
EVERY = [
    *(
        "--gpus-per-node",
        "8",
        "--hardware",
        "h100",
        "--cpus",
        "64",
        "--memory",
        "900Gi",
        "--namespace",
        "team",
        "--queue",
        "gpus",
    ),
    *(
        "--node-selector",
        "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
        "--env",
        "NCCL_DEBUG=1",
        "--env",
        "WORDS=yes $(B)",
        "--save-margin",
        "120",
    ),
    *("--volume", "data-1:/data"),
]
LARGE = ["model.layers=80", "model.hidden=8192", "model.heads=64", "model.ffn=32768", "model.vocabulary=512"]
Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
AbsolutePath = Annotated[str, Field(pattern="^/")]
Quantity = Annotated[str, Field(pattern=r"^[0-9.]+([KMGT]i?|m)?$")]


# batch/v1 Job and v1 ConfigMap (https://kubernetes.io/docs/reference/kubernetes-api/): the fields that runs use.


class Strict(BaseModel):
    """No other field, and no text for a number or the other way."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ObjectMeta(Strict):
    name: Name
    namespace: Name | None = None
    labels: dict[str, str] = {}


class ConfigMap(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: ObjectMeta
    data: dict[str, str]


class OnExitCodes(Strict):
    containerName: Name
    operator: Literal["In", "NotIn"]
    values: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=255)]


class OnPodCondition(Strict):
    type: str
    status: Literal["True", "False", "Unknown"]


class FailureRule(Strict):
    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    onExitCodes: OnExitCodes | None = None
    onPodConditions: Annotated[list[OnPodCondition], Field(max_length=20)] | None = None

    def model_post_init(self, context: Any) -> None:
        assert (self.onExitCodes is None) != (self.onPodConditions is None), "one of both, not both"


class FailurePolicy(Strict):
    rules: Annotated[list[FailureRule], Field(max_length=20)]


class FieldRef(Strict):
    fieldPath: Annotated[str, Field(pattern=r"^(metadata\.(labels|annotations)\['[a-z0-9./-]+'\]|status\.podIP)$")]


class ValueFrom(Strict):
    fieldRef: FieldRef


class EnvVar(Strict):
    name: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
    value: str | None = None
    valueFrom: ValueFrom | None = None


class Resources(Strict):
    limits: dict[str, Quantity]
    requests: dict[str, Quantity]


class VolumeMount(Strict):
    name: Name
    mountPath: AbsolutePath


class Container(Strict):
    name: Name
    image: str
    command: list[str]
    env: list[EnvVar]
    resources: Resources | None = None
    volumeMounts: list[VolumeMount]


class Claim(Strict):
    claimName: Name


class ConfigMapSource(Strict):
    name: Name


class EmptyDir(Strict):
    medium: Literal["", "Memory"]


class Volume(Strict):
    name: Name
    persistentVolumeClaim: Claim | None = None
    configMap: ConfigMapSource | None = None
    emptyDir: EmptyDir | None = None


class PodSpec(Strict):
    restartPolicy: Literal["Never"]  # which a podFailurePolicy requires
    terminationGracePeriodSeconds: Annotated[int, Field(ge=0)]
    nodeSelector: dict[str, str] = {}
    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume]


class PodTemplate(Strict):
    spec: PodSpec


class JobSpec(Strict):
    completionMode: Literal["Indexed", "NonIndexed"]
    completions: Annotated[int, Field(ge=0)]
    parallelism: Annotated[int, Field(ge=0, le=100_000)]
    backoffLimit: Annotated[int, Field(ge=0)]
    podReplacementPolicy: Literal["Failed"]  # the only one beside a podFailurePolicy
    podFailurePolicy: FailurePolicy
    template: PodTemplate


class Job(Strict):
    apiVersion: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: ObjectMeta
    spec: JobSpec


# SkyPilot's task (https://docs.skypilot.co/en/latest/reference/yaml-spec.html).


class JobRecovery(Strict):
    strategy: Literal["FAILOVER", "EAGER_NEXT_REGION"] | None = None
    max_restarts_on_errors: Annotated[int, Field(ge=0)]
    recover_on_exit_codes: list[Annotated[int, Field(ge=0, le=255)]]


class SkyResources(Strict):
    accelerators: str | None = None
    cpus: str | None = None
    memory: str | None = None
    infra: str | None = None
    image_id: str | None = None
    use_spot: bool = False
    job_recovery: JobRecovery


class SkyTask(Strict):
    name: Name
    num_nodes: Annotated[int, Field(ge=1)]
    resources: SkyResources
    volumes: dict[AbsolutePath, str] = {}
    envs: dict[str, str]
    setup: str | None = None
    run: str


def documents(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def job_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[ConfigMap, Job]:
    assert launch_kubernetes.main([*KUBERNETES, *words]) == 0
    config, job = documents(capsys.readouterr().out)
    return ConfigMap.model_validate(config), Job.model_validate(job)


@pytest.mark.parametrize("more", [(), EVERY])
def test_the_job_is_one_and_reads_its_config(
    more: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, job = job_of(capsys, *more)
    (tmp_path / "config.yaml").write_text(config.data["config.yaml"])
    loaded = load(RunConfig, tmp_path / "config.yaml")
    assert (loaded.run.dir, loaded.run.name, loaded.health.preflight) == ("/shared/runs/$(A) it's", "My_Run", "warn")
    assert config.metadata.name == job.metadata.name == "my-run"
    assert job.spec.completions == job.spec.parallelism == 2
    (container,) = job.spec.template.spec.containers
    words, variables = container.command, {one.name: one for one in container.env}
    assert words[words.index("--run") + 1] == "/shared/runs/$$(A) it's", "which Kubernetes reads as $(A)"
    assert words[words.index("--ranks") + 1] == ("8" if more else "1")
    for option, name in (("--job", "NODE_JOB"), ("--index", "NODE_INDEX"), ("--address", "NODE_ADDRESS")):
        assert words[words.index(option) + 1] == f"$({name})"
        assert variables[name].valueFrom is not None
    volumes = {volume.name for volume in job.spec.template.spec.volumes}
    assert {mount.name for mount in container.volumeMounts} == volumes
    if more:
        assert container.resources is not None
        assert container.resources.limits == {"nvidia.com/gpu": "8", "cpu": "64", "memory": "900Gi"}
        assert variables["NCCL_DEBUG"].value == "1", "a text"
        assert variables["WORDS"].value == "yes $$(B)"
        assert (job.metadata.namespace, job.spec.template.spec.terminationGracePeriodSeconds) == ("team", 120)
        assert job.metadata.labels == {"kueue.x-k8s.io/queue-name": "gpus"}


def test_statuses_mean_what_they_mean_under_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    """Kubernetes applies the first rule that matches."""
    _, job = job_of(capsys)

    def action(status: int, evicted: bool) -> str:
        for rule in job.spec.podFailurePolicy.rules:
            if rule.onPodConditions is not None and evicted:
                return rule.action
            if rule.onExitCodes is not None and status in rule.onExitCodes.values:
                return rule.action
        return "Count"

    assert action(75, False) == "Ignore", "saved: replaced, without being counted"
    assert action(1, False) == action(2, False) == "FailJob"
    assert action(137, True) == action(1, True) == "Ignore"
    assert action(137, False) == "Count"
    assert job.spec.backoffLimit == 3


def test_the_task_is_one_and_its_script_starts_the_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("pip install pretrain\n")
    words = [*RUN, "--nodes", "2", "--accelerators", "H100:8", "--spot", "--infra", "aws", "--env", "A=1"]
    words += ["--image", "registry.example/p:cuda", "--volume", "shared:/shared", "--setup", str(tmp_path / "setup.sh")]
    assert launch_skypilot.main(words) == 0
    task = SkyTask.model_validate(documents(capsys.readouterr().out)[0])
    assert task.resources.job_recovery.recover_on_exit_codes == [75]
    assert task.resources.image_id == "docker:registry.example/p:cuda"
    assert task.volumes == {"/shared": "shared"}
    script = task.run.replace("pretrain-config.yaml", str(tmp_path / "config.yaml"))
    script = script.replace("exec python3", "printf '%s\\0'")
    environment = {
        **{"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_TASK_ID": "sky-7"},
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    found = done.stdout.split("\0")
    for option, value in (("--job", "sky-7"), ("--index", "1"), ("--address", "10.0.0.1"), ("--ranks", "8")):
        assert found[found.index(option) + 1] == value
    assert found[found.index("--run") + 1] == "/shared/runs/$(A) it's"
    assert load(RunConfig, tmp_path / "config.yaml").run.name == "My_Run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.dir=runs/book"], "name its absolute path on the nodes"),
        (["run.dir=/other/run"], "is on no volume of the nodes"),
        (["run.name=7-a"], "name it with a letter first"),
        (["parallel={tensor: 3}"], "parallel.tensor=3"),
        *(
            ([f"--{option}", value], f"--{option}: {value!r} is not ")
            for option, value in (
                *(("image", ""), ("image", "a b"), ("image", "Upper/Case"), ("image", "x:"), ("image", "x@y")),
                *(("cpus", "0"), ("cpus", "many"), ("cpus", "8+"), ("cpus", "0.0")),
                *(("memory", "lots"), ("memory", "0Gi"), ("memory", "900"), ("memory", "900GB")),
                *(("namespace", "Team"), ("namespace", "a.b"), ("namespace", ""), ("namespace", "a" * 64)),
                *(("queue", ""), ("queue", "a_b"), ("volume", "shared:shared"), ("volume", "Shared:/x")),
                *(("volume", "a:/"), ("volume", "a:/x/../y"), ("volume", "a:/x:y"), ("node-selector", "gpu")),
                *(("node-selector", "_a=b"), ("env", "1=2")),
            )
        ),
        (["--cpus=-1"], "--cpus: '-1' is not CPUs as Kubernetes counts them"),
        (["--node-selector", "gpu=a b"], "a label's value has up to 63"),
        (["--env", "NODE_INDEX=0"], "NODE_INDEX is set for each node"),
        (["--env", "A=b\nc"], "a line break cannot be in a variable"),
        (["--volume", "other:/shared"], "two volumes cannot be mounted at /shared"),
        (["--volume", "other:/dev"], "nothing can be mounted over /dev/shm"),
        (["run.dir=/shared/../run"], "name it without .."),
        (["data.path=book"], "data.path=book: name its absolute path on the nodes, such as /shared/book"),
        (["data={sources: [{path: a/b}]}"], "data.sources[].path=a/b: name its absolute path on the nodes"),
        (["run.start_from=runs/a"], "run.start_from=runs/a: name its absolute path"),
        (["evaluate.data=files"], "evaluate.data=files: name its absolute path"),
        (["--restarts", "3000000000"], "--restarts 3,000,000,000: at most 2,147,483,647"),
        (["--nodes", "200000"], "--nodes 200,000: at most 100,000"),
        (["--gpus-per-node", "8"], "how much memory a GPU has is not known"),
        (["--gpus-per-node", "4", "--ranks-per-node", "8"], "nodes have 4 GPUs, and each rank needs its own"),
        (["--hardware", "h100"], "--hardware h100 names GPUs, and nodes have none"),
        (["--gpus-per-node", "8", "--hardware", "v100", *LARGE], "does not fit in memory"),
    ],
)
def test_what_could_not_run_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        launch_kubernetes.main([*KUBERNETES, *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run.dir=/shared/runs/$(A) it's is on no volume of the nodes"),
        (["--volume", "a:/other"], "is on no volume of the nodes"),
        (["--volume", "a:/shared", "data.path=book"], "data.path=book: name its absolute path"),
        *(
            (["--volume", "a:/shared", f"--{option}={value}"], f"--{option}: {value!r} is not ")
            for option, value in (
                *(("image", ""), ("cpus", "-1"), ("cpus", "500m"), ("memory", "lots"), ("memory", "0")),
                *(("accelerators", "H100:0"), ("accelerators", ":8"), ("accelerators", "H100:8:9"), ("infra", "")),
                *(("infra", "aws/"), ("infra", "a b")),
            )
        ),
        (["--volume", "a:/shared", "--accelerators", "V100:8"], "how much memory a GPU has is not known"),
        (["--volume", "a:/shared", "--accelerators", "A100-80GB:8", *LARGE], "does not fit in memory"),
        (["--env", "SKYPILOT_NODE_RANK=0"], "SKYPILOT_NODE_RANK is set for each node"),
    ],
)
def test_what_could_not_run_through_skypilot_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        launch_skypilot.main([*RUN, "--nodes", "2", "--image", "registry.example/p:cuda", *words])


def test_machines_without_pretrain_are_refused_and_one_needs_no_volume() -> None:
    with pytest.raises(ConfigError, match="machines have no pretrain"):
        launch_skypilot.main([*RUN, "--nodes", "1"])
    assert launch_skypilot.main([*RUN, "--nodes", "1", "--image", "p"]) == 0


@pytest.mark.parametrize("more", [(), EVERY])
def test_the_job_suits_kubernetes_own_schema(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (108 MB)")
    assert launch_kubernetes.main([*KUBERNETES, *more]) == 0
    for document in documents(capsys.readouterr().out):
        kubernetes.validate(document, "1.31", strict=True)


@pytest.mark.parametrize(
    "more",
    [[], ["--accelerators", "H100:8", "--cpus", "64+", "--memory", "900+", "--infra", "aws/us-east-1", "--spot"]],
)
def test_the_task_suits_skypilots_own_schema(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="SkyPilot is not installed (60 dependencies)")
    jsonschema = pytest.importorskip("jsonschema")
    assert launch_skypilot.main([*RUN, "--nodes", "2", "--image", "p:1", "--volume", "a:/shared", *more]) == 0
    (task,) = documents(capsys.readouterr().out)
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_it_is_submitted_by_kubectl_and_its_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$*" > {shlex.quote(str(tmp_path))}/called\ncat > {tmp_path}/read\necho made\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert launch_kubernetes.main([*KUBERNETES, "--submit"]) == 0
    assert capsys.readouterr().out == "made\n"
    assert (tmp_path / "called").read_text() == "create -f -\n"
    assert [one["kind"] for one in documents((tmp_path / "read").read_text())] == ["ConfigMap", "Job"]
    program.write_text("#!/bin/sh\necho 'jobs \"my-run\" already exists' >&2\nexit 1\n")
    with pytest.raises(ConfigError, match="already exists"):
        launch_kubernetes.main([*KUBERNETES, "--submit"])
