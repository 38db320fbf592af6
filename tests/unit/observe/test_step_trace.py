"""Where a step goes, from traces whose times are known, and from one of torch's."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.__main__ import main
from pretrain.config.load import dump
from pretrain.config.profile import Profile
from pretrain.errors import ConfigError
from pretrain.layout.group_names import group_name
from pretrain.observe.profile import StepProfiler, check_profile
from pretrain.observe.step_trace import load_trace, ordered, split_of
from pretrain.run_dir.paths import RunDir
from tests.helpers.tiny import tiny_config


def event(name: str, first: float, last: float, cat: str = "cpu_op", tid: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": first, "dur": last - first, "tid": tid, "args": arguments}


def span(name: str, first: float, last: float) -> dict[str, Any]:
    return event(name, first, last, "user_annotation")


def write(path: Path, *events: dict[str, Any], rank: int = 0, world: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": list(events)}, file)
    return path


HOST = (
    span("step 3", 0, 1000),
    span("step/data", 0, 50),
    span("step/forward", 50, 400),
    event("aten::matmul", 60, 160),
    event("aten::mm", 65, 155),
    span("module/decoder.layers.0.self_attention.core_attention", 160, 260),
    event("aten::bmm", 170, 250, **{"Sequence number": 7}),
    span("exchange/tensor", 260, 300),
    event("c10d::allreduce_", 265, 295),
    span("gloo:all_reduce", 265, 650),  # until it is waited for: no part of the nesting
    event("aten::gelu", 300, 340),
    span("step/pipeline", 400, 500),
    span("exchange/pipeline", 410, 420),
    span("step/backward", 500, 800),
    event("autograd::engine::evaluate_function: BmmBackward0", 510, 610, **{"Sequence number": 7, "Fwd thread id": 1}),
    event("aten::bmm", 520, 600),
    event("LinearWithGradAccumulationAndAsyncCommunicationBackward", 610, 700),
    event("aten::add_", 700, 720),
    span("step/optimizer", 800, 990),
    event("aten::mm", 810, 820),
    span("exchange/data", 900, 930),
    event("aten::mm", 100, 900, tid=9),  # another thread
)


def test_each_moment_of_the_host_belongs_to_one_thing(tmp_path: Path) -> None:
    split = split_of(load_trace(write(tmp_path / "trace.json.gz", *HOST, rank=1)))
    micros = {name: round(seconds * 1e6) for name, seconds in split.seconds.items()}
    assert micros == {
        "data": 50,
        "matrix products": 100 + 90,
        "attention": 100 + 100,  # of the backward pass by autograd's number
        "exchange: tensor": 40,
        "exchange: pipeline": 10,
        "exchange: data": 30,
        "waiting": 90,
        "optimizer": 190 - 30,
        "other": 10 + 100 + 10 + 100 + 10,
    }
    assert split.total == pytest.approx(1000e-6)
    assert (split.rank, split.world, split.on_gpu) == (1, 2, False)


def test_each_moment_of_a_device_belongs_to_what_computes(tmp_path: Path) -> None:
    def kernel(name: str, first: float, last: float, correlation: int, **arguments: Any) -> dict[str, Any]:
        return event(name, first, last, "kernel", 7, correlation=correlation, **arguments)

    nccl = {"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}
    path = write(
        tmp_path / "trace.json.gz",
        span("step 3", 0, 1000),
        span("step/optimizer", 300, 320),
        event("cudaLaunchKernel", 305, 306, "cuda_runtime", correlation=5),
        kernel("nvjet_tst_128x256", 100, 300, 1),
        kernel("ncclDevKernel_AllReduce_Sum_bf16", 250, 400, 2, **nccl),
        kernel("flash_fwd_kernel", 400, 500, 3),
        kernel("vectorized_elementwise_kernel", 500, 550, 4),
        kernel("vectorized_elementwise_kernel", 600, 700, 5),
        kernel("nvjet_tst_128x256", 990, 1200, 6),  # runs on after the step
    )
    split = split_of(load_trace(path))
    assert {name: round(seconds * 1e6) for name, seconds in split.seconds.items()} == {
        "waiting": 100 + 50 + 290, "matrix products": 200 + 10, "exchange: tensor": 100, "attention": 100, "other": 50,
        "optimizer": 100,
    }  # fmt: skip
    assert round(split.hidden_s * 1e6) == 50


def test_groups_have_the_planner_s_names() -> None:
    assert group_name("DATA_PARALLEL_GROUP_WITH_CP") == "data"
    assert group_name("EXPERT_DATA_PARALLEL_GROUP") == "data"
    assert group_name("EXPERT_MODEL_PARALLEL_GROUP") == "expert"
    assert group_name("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP") == "stage"
    assert group_name("POSITION_EMBEDDING_GROUP") == "position_embedding"
    assert ordered(["other", "exchange: tensor", "exchange: data"])[2:4] == ["exchange: data", "exchange: tensor"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files = RunDir(tmp_path / "run")
    for rank in (0, 1):
        write(files.trace(3, rank), *HOST, rank=rank)
    (files.path / "config.yaml").write_text(dump(tiny_config(parallel={"tensor": 2})))
    return files.path


def test_a_table_has_a_column_for_each_rank(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("step 3, milliseconds and share of the step on 2 ranks")
    table = {line[:24].strip(): line[24:].split() for line in lines[1:]}
    assert table[""] == ["rank", "0", "rank", "1"]
    assert table["matrix products"] == ["0.2", "19.0%", "0.2", "19.0%"]
    assert table["step"] == ["1.0", "1.0"]


def test_the_plan_stands_beside_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run), "--hardware", "h100"]) == 0
    out = capsys.readouterr().out
    beside = {line[:24].strip(): line[24:].split() for line in out.partition("planned, h100")[2].splitlines()}
    assert [values[0] for values in beside.values() if len(values) == 2] == [
        *("0.6", "0.0", "0.0", "0.0", "0.1", "0.0", "0.2", "0.1", "1.0"),  # computing, tensor, ..., the step
    ]
    assert main(["profile", str(run), "--hardware", "h100", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sum(record["planned"].values()) * 1e3 == pytest.approx(float(beside["step"][1]), abs=0.06)


def test_ranks_that_fill_no_whole_nodes_of_the_hardware_are_planned(run: Path) -> None:
    for rank in (0, 1):
        write(RunDir(run).trace(3, rank), *HOST, rank=rank, world=12)
    batch = {"sequences": 12, "micro_sequences": 1}
    (run / "config.yaml").write_text(dump(tiny_config(parallel={"tensor": 2}, batch=batch)))
    assert main(["profile", str(run), "--hardware", "h100"]) == 0


def test_a_run_without_a_profiled_step_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run), "--step", "4"]) == 2
    assert "step 4 of" in capsys.readouterr().err
    assert main(["profile", str(run / "none")]) == 2
    assert "no such run" in capsys.readouterr().err
    RunDir(run).trace(3, 0).write_bytes(b"no trace")
    assert main(["profile", str(run)]) == 2
    assert "is no trace of a profiled step" in capsys.readouterr().err
    assert main(["profile", str(run.parent)]) == 2
    assert "train with profile.steps=[N,...] first" in capsys.readouterr().err


def test_only_named_steps_of_named_ranks_are_traced(tmp_path: Path) -> None:
    marked: list[str] = []

    class Ranges:
        def __enter__(self) -> None:
            marked.append("on")

        def __exit__(self, *_: object) -> None:
            marked.append("off")

    a = torch.randn(300, 300)
    for rank in (0, 1):
        profiler = StepProfiler(Profile(steps=(2,), ranks=(1,)), tmp_path, rank, Ranges)  # type: ignore[arg-type]
        for step in (1, 2, 3):
            with profiler.step(step):
                a @ a
    assert marked == ["on", "off"]
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["step-00000002-rank-00001.json.gz"]
    split = split_of(load_trace(RunDir(tmp_path).trace(2, 1)))
    assert split.seconds["matrix products"] > 0


def test_profiles_that_could_not_be_made_are_refused() -> None:
    check_profile(Profile(steps=(4,), ranks=(1,)), 2, 4, on_gpu=False)
    for profile, said in {
        Profile(steps=(5,)): "profile.steps=5 is beyond the run's 4 steps",
        Profile(steps=(4,), ranks=(0, 2)): "profile.ranks=2 is no rank of 2",
        Profile(steps=(4,), nsight=True): "profile.nsight=true needs CUDA",
    }.items():
        with pytest.raises(ConfigError, match=said):
            check_profile(profile, 2, 4, on_gpu=False)
    for settings, said in (
        ({"steps": [4], "ranks": []}, "at least 1 item"),
        ({"memory": True}, "profile.memory=true is for the steps of profile.steps"),
        ({"steps": [4], "memory": True, "nsight": True}, "choose one of them"),
    ):
        with pytest.raises(ValueError, match=said):
            Profile.model_validate(settings)
