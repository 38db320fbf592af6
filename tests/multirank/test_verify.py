"""`pretrain verify` against planted faults: each is found, at its first step, with the parameter and stage it is in."""

import importlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from pretrain.__main__ import main
from pretrain.config.load import dump
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.optimizer.totals import Holders
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.models.network import Network
from pretrain.plan.layout_names import parse
from pretrain.verify.departure import EXACT, QUANTITIES
from pretrain.verify.jobs import plan, shrink
from pretrain.verify.run import Row, Verification
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config

FINALIZE = importlib.import_module("megatron.core.distributed.finalize_model_grads")  # hidden by its function
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
Fault = Callable[[pytest.MonkeyPatch], None]


def _verify(layouts: str, sections: dict[str, Any], fault: Fault | None, meeting: Path) -> tuple[bool, list[Row]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a peer may still be connecting
    dist.destroy_process_group()
    kinds = [parse(text, zero=1) for text in layouts.split(",")]
    reference, jobs = plan(shrink(tiny_config(**sections), kinds), kinds)
    rows: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        same = Verification(dist.FileStore(str(meeting), world), rank, world, 3).run(reference, jobs, rows.append)
    return same, rows


def _rows(layouts: str, meeting: Path, fault: Fault | None = None, **sections: Any) -> dict[str, Row]:
    """Rows of the table by title and precision; checks that every rank came to the same verdict."""
    world = max(parse(text, 1).world for text in layouts.split(","))
    meeting.mkdir(exist_ok=True)
    found = run_ranks(world, _verify, layouts, sections, fault, meeting / "store")
    rows = found[0][1]
    assert {same for same, _ in found} == {all(row.same for row in rows)}
    return {f"{row.job.title} {row.job.config.precision}": row for row in rows}


def test_layouts_that_are_right_are_the_same_run(tmp_path: Path) -> None:
    model = {**tiny_config().model.model_dump(), **DROPOUT}
    rows = _rows("tp2pp2+sp+vp2,pp2dp2+zero0,dp4+zero1,tp2cp2+zero0,cp4", tmp_path, precision="bf16", model=model)
    titles = ["one rank", "tp2pp2+sp+vp2", "pp2dp2", "dp4+zero1", "tp2cp2", "cp4+zero1"]
    assert list(rows) == [f"{title} {precision}" for precision in ("fp32", "bf16") for title in titles]
    for name, row in rows.items():
        assert row.same, (name, row)
        assert row.verdict is not None
        assert list(row.verdict.largest) == list(QUANTITIES)
        assert [row.verdict.largest[exact] for exact in EXACT] == [0, 0, 0, 0]
        assert 0 < row.verdict.largest["gradient"] < (1e-4 if "fp32" in name else 0.3)


def _norms_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FINALIZE, "_allreduce_non_tensor_model_parallel_grads", lambda *_, **__: None)


def _tied_embedding_not_exchanged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FINALIZE, "_allreduce_word_embedding_grads", lambda *_, **__: None)


def _loss_divided_per_micro_batch(patch: pytest.MonkeyPatch) -> None:
    sums = MegatronEngine._train_loss

    def mean(self: MegatronEngine, batch: Any, logits: Any) -> Any:
        loss_sum, token_count, shown = sums(self, batch, logits)
        return loss_sum / token_count, (token_count > 0).int(), shown

    patch.setattr(MegatronEngine, "_train_loss", mean)


def _virtual_chunks_alike(patch: pytest.MonkeyPatch) -> None:
    initialise = MegatronEngine.initialise

    def alike(self: MegatronEngine) -> None:
        initialise(self)
        for chunk in self.bare[1:]:
            for first, later in zip(self.bare[0].decoder.parameters(), chunk.decoder.parameters(), strict=False):
                later.data.copy_(first.data)

    patch.setattr(MegatronEngine, "initialise", alike)


def _rows_of_another_rank(patch: pytest.MonkeyPatch) -> None:
    """The loader gives data rank 1 the rows of data rank 0."""
    batch = SyntheticStream.batch

    def wrong(self: SyntheticStream, start: int, count: int, data_rank: int, data_world: int) -> Any:
        return batch(self, start, count, 0 if data_rank == 1 else data_rank, data_world)

    patch.setattr(SyntheticStream, "batch", wrong)


def _rows_cut_wrong(patch: pytest.MonkeyPatch) -> None:
    """The engine, on data rank 1, trains the first of its micro-batches twice and the second never."""
    cut = MegatronEngine._micro_batches

    def wrong(self: MegatronEngine, *arguments: Any) -> Any:
        first, second, *rest = cut(self, *arguments)
        return [first, first if self.data_rank == 1 else second, *rest]

    patch.setattr(MegatronEngine, "_micro_batches", wrong)


def _mask_lost(patch: pytest.MonkeyPatch) -> None:
    cut = MegatronEngine._micro_batches

    def unmasked(self: MegatronEngine, batch: Any, *rest: Any) -> Any:
        if self.layout.pipeline > 1:
            batch = replace(batch, loss_mask=np.ones_like(batch.loss_mask))
        return cut(self, batch, *rest)

    patch.setattr(MegatronEngine, "_micro_batches", unmasked)


def _zero_divides_again(patch: pytest.MonkeyPatch) -> None:
    update = MegatronSharding.update

    def divided(self: MegatronSharding, learning_rate: float) -> None:
        if isinstance(self.optimizer, DistributedOptimizer):
            self.scale(1 / dist.get_world_size())
        update(self, learning_rate)

    patch.setattr(MegatronSharding, "update", divided)


def _updates_not_shared(patch: pytest.MonkeyPatch) -> None:
    """ZeRO-1: after a step each data rank has only its own part of the new weights."""
    step = DistributedOptimizer.step_with_ready_grads

    def alone(self: DistributedOptimizer) -> bool:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(DistributedDataParallel, "start_param_sync", lambda *_, **__: None)
            return bool(step(self))

    patch.setattr(DistributedOptimizer, "step_with_ready_grads", alone)


def _decay_on_norms(patch: pytest.MonkeyPatch) -> None:
    """Only on tensor rank 1: Adam hides a factor, but not another rule."""
    build = MegatronSharding.__init__

    def everywhere(self: MegatronSharding, config: Any, *rest: Any) -> None:
        build(self, config, *rest)
        if config.parallel.tensor > 1 and dist.get_rank() % config.parallel.tensor:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = config.optimizer.weight_decay

    patch.setattr(MegatronSharding, "__init__", everywhere)


def _dropout_shared(patch: pytest.MonkeyPatch) -> None:
    """Every data rank drops what data rank 0 drops."""
    cut = MegatronEngine._micro_batches

    def shared(self: MegatronEngine, batch: Any, micro: int, first_row: int = 0, weight: float = 0.0) -> Any:
        return cut(self, batch, micro, first_row - self.data_rank * len(batch.tokens), weight)

    patch.setattr(MegatronEngine, "_micro_batches", shared)


def _parameter_nobody_trains(patch: pytest.MonkeyPatch) -> None:
    """In a pipeline, the last layer's feed-forward is left out of the optimizer."""
    for method in ("owned", "gradients"):
        ranges = getattr(MegatronSharding, method)

        def without(self: MegatronSharding, ranges: Any = ranges) -> Any:
            parts = list(ranges(self))
            return parts[:-4] if parallel_state.get_pipeline_model_parallel_rank() else parts

        patch.setattr(MegatronSharding, method, without)


def _slices_attend_to_themselves(patch: pytest.MonkeyPatch) -> None:
    """Context ranks do not exchange: each has attention over its own positions only."""
    for exchange in ("whole_sequences", "own_positions"):
        patch.setattr(f"pretrain.attention.core.{exchange}", lambda x, group: x)


def _loss_not_a_number(patch: pytest.MonkeyPatch) -> None:
    step = MegatronEngine.train_step

    def spoilt(self: MegatronEngine, *arguments: Any) -> Any:
        result = step(self, *arguments)
        return replace(result, loss_sum=float("nan")) if self.layout.tensor > 1 else result

    patch.setattr(MegatronEngine, "train_step", spoilt)


# fault, layouts, the row that shows it, the first step it shows at, and there: quantity, parameter, stages
FAULTS: dict[str, tuple[Fault, str, str, int, str, str, tuple[int, ...]]] = {
    "norm gradients not summed over tensor ranks": (
        *(_norms_not_summed, "tp2+sp,pp2", "tp2+sp fp32", 1),
        *("gradient", "layernorm", (0,)),
    ),
    "tied embedding not exchanged between stages": (
        *(_tied_embedding_not_exchanged, "tp2,pp2", "pp2 fp32", 1),
        *("gradient", "^embedding.word_embeddings.weight$", (0, 1)),
    ),
    "loss divided per micro-batch": (
        *(_loss_divided_per_micro_batch, "dp2", "dp2+zero1 fp32", 1),
        *("gradient norm", "", ()),
    ),
    "virtual chunks initialised alike": (
        *(_virtual_chunks_alike, "pp2,pp2+vp2", "pp2+vp2 fp32", 0),
        *("initial weights", "layers.[23].*weight", (0,)),
    ),
    "another rank's batch slice": (
        *(_rows_of_another_rank, "tp2,dp2", "dp2+zero1 fp32", 1),
        *("samples", "", (0,)),
    ),
    "micro-batches cut wrong on one data rank": (
        *(_rows_cut_wrong, "tp2,dp2", "dp2+zero1 fp32", 1),
        *("loss", "", ()),
    ),
    "mask lost": (
        *(_mask_lost, "tp2,pp2", "pp2 fp32", 1),
        *("token count", "", ()),
    ),
    "dropout shared by data ranks": (
        *(_dropout_shared, "tp2,dp2", "dp2+zero1 fp32", 1),
        *("gradient", "", (0,)),
    ),
    "ZeRO divides twice": (
        *(_zero_divides_again, "dp2+zero0,dp2+zero1", "dp2+zero1 fp32", 1),
        *("gradient", "", (0,)),
    ),
    "parameters that nobody holds": (
        *(_parameter_nobody_trains, "tp2,pp2", "pp2 fp32", 0),
        *("initial weights", "", ()),
    ),
    "context ranks do not exchange": (
        *(_slices_attend_to_themselves, "tp2,cp2", "cp2+zero1 fp32", 1),
        *("gradient", ".", (0,)),
    ),
    "a loss that is not a number": (
        *(_loss_not_a_number, "tp2,pp2", "tp2 fp32", 1),
        *("loss", "", ()),
    ),
    "updates not shared by data ranks": (
        *(_updates_not_shared, "dp2+zero0,dp2+zero1", "dp2+zero1 fp32", 1),
        *("copies", ".", (0,)),
    ),
    "weight decay on norms on one tensor rank": (
        *(_decay_on_norms, "tp2,pp2", "tp2 fp32", 1),
        *("update", "layernorm.weight", (0,)),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_where_it_is_and_nowhere_else(name: str, tmp_path: Path) -> None:
    fault, layouts, shown_by, step, quantity, parameter, stages = FAULTS[name]
    rows = _rows(layouts, tmp_path, fault, model={**tiny_config().model.model_dump(), **DROPOUT})
    verdict = rows[shown_by].verdict
    assert verdict is not None, rows[shown_by].error
    found = {departure.quantity: departure for departure in verdict.departures}
    assert quantity in found, list(map(str, found.values()))
    assert (found[quantity].step, found[quantity].stages) == (step, stages)
    assert re.search(parameter, found[quantity].parameter or "")
    # One rank cuts its rows into micro-batches too, of another size than the reference.
    alone = ["one rank fp32"] if name == "loss divided per micro-batch" else []
    assert [title for title, row in rows.items() if not row.same] == [*alone, shown_by]


@pytest.mark.parametrize(
    ("fault", "layout"), [(_norms_not_summed, "tp2+sp"), (_tied_embedding_not_exchanged, "pp2"), (_mask_lost, "pp2")]
)
def test_bf16_alone_shows_it_too(fault: Fault, layout: str, tmp_path: Path) -> None:
    rows = _rows(layout, tmp_path, fault, precision="bf16")
    assert [title for title, row in rows.items() if not row.same] == [f"{layout} fp32", f"{layout} bf16"]


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 9))])
def test_bf16_rounding_that_one_rank_happens_not_to_show_is_no_departure(seed: int, tmp_path: Path) -> None:
    rows = _rows("tp2,tp2+sp", tmp_path, precision="bf16", run={"dir": "unused", "seed": seed})
    assert all(row.same for row in rows.values()), [str(row) for row in rows.values() if not row.same]


def _documents_lost(patch: pytest.MonkeyPatch) -> None:
    """In a pipeline, packed documents see each other; their positions are right."""
    forward = Network.forward

    def seeing(self: Network, batch: Any, cache: Any = None) -> Any:
        if self.config.pipeline_model_parallel_size > 1 and self.post_process:
            batch = replace(batch, documents_BS=None)
        return forward(self, batch, cache)

    patch.setattr(Network, "forward", seeing)


def test_packed_documents_that_see_each_other_on_one_stage_are_found(tmp_path: Path) -> None:
    packed = {"packing": "best_fit"}
    rows = _rows("tp2+sp,cp2,pp2", tmp_path, _documents_lost, objective=packed)
    assert [title for title, row in rows.items() if not row.same] == ["pp2 fp32"]
    verdict = rows["pp2 fp32"].verdict
    assert verdict is not None
    found = {departure.quantity: departure for departure in verdict.departures}
    assert found["gradient"].step == found["loss"].step == 1


def _fails_on_rank_1(patch: pytest.MonkeyPatch) -> None:
    initialise = MegatronEngine.initialise

    def broken(self: MegatronEngine) -> None:
        if self.groups.rank == 1:
            raise ValueError("no such weights")
        initialise(self)

    patch.setattr(MegatronEngine, "initialise", broken)


def test_layout_that_fails_says_why_and_the_next_goes_on(tmp_path: Path) -> None:
    rows = _rows("tp2,pp2", tmp_path, _fails_on_rank_1)
    assert rows["one rank fp32"].same
    for title in ("tp2 fp32", "pp2 fp32"):
        assert rows[title].error == "ValueError: no such weights (rank 1)"
        assert not rows[title].same


def _command(config: Path, out: Path, fault: Fault | None) -> int:
    dist.destroy_process_group()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]  # as a user calls it
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        return main(["verify", str(config), "--layouts", "tp1", "--steps", "1", "--out", str(out)])


@pytest.mark.parametrize(("fault", "status"), [(None, 0), (_loss_divided_per_micro_batch, 1)])
def test_exit_status_and_json_tell_a_departure(fault: Fault | None, status: int, tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "verify.json"
    config.write_text(dump(tiny_config()))
    assert run_ranks(1, _command, config, out, fault) == [status]
    report = json.loads(out.read_text())
    assert (report["same"], report["finished"]) == (not status, True)
    assert len(report["layouts"][0]["departures"]) == (3 if status else 0)


def _wholes_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holders, "sum_over_holders", lambda *_: None)


@pytest.mark.parametrize("optimizer", ["lamb", "adafactor"])
def test_a_rule_that_takes_a_part_for_the_whole_is_found(optimizer: str, tmp_path: Path) -> None:
    settings = {"name": optimizer, "learning_rate": 1e-3}
    assert all(row.same for row in _rows("tp2,dp2+zero1", tmp_path / "right", optimizer=settings).values())
    rows = _rows("tp2,dp2+zero0", tmp_path / "wrong", _wholes_not_summed, optimizer=settings)
    assert rows["one rank fp32"].same
    assert rows["dp2 fp32"].same, "every rank has all of each parameter"
    assert rows["tp2 fp32"].verdict is not None
    assert (1, "update") in [(found.step, found.quantity) for found in rows["tp2 fp32"].verdict.departures]
