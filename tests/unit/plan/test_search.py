"""The search for layouts, what it says where there is none, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from pretrain.__main__ import main
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.layout.names import layouts_to_verify
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.plan.advice import advice
from pretrain.plan.device import FOLDER, find_device
from pretrain.plan.estimate import builder
from pretrain.plan.estimate.constants import StackFactor
from pretrain.plan.estimate.seconds import fastest_first
from pretrain.plan.goodput import FAILURES_PER_GPU_HOUR, Failures, best_goodput, goodput
from pretrain.plan.memory_check import check_memory, nearest_fit, planned_bytes
from pretrain.plan.search import every_choice, near_counts, search
from tests.helpers.small_configs import config

H100, PLAIN = find_device("h100"), StackFactor(1.0, 0.9, 1.1)


def gpt3(name: str, *overrides: str) -> RunConfig:
    return load(RunConfig, f"gpt3/{name}", ["model.vocabulary=50257", *overrides])


def test_of_steps_that_no_estimate_tells_apart_the_one_with_fewer_micro_batches_is_first() -> None:
    seconds, micro_batches = np.array([1.005, 1.0, 1.02, 1.009]), np.array([4.0, 8.0, 1.0, 8.0])
    assert fastest_first(seconds, micro_batches).tolist() == [0, 1, 3, 2]
    assert fastest_first(np.array([]), np.array([])).tolist() == []


def test_what_is_judged_is_legal_and_nothing_legal_is_left_out() -> None:
    run = config(batch={"sequences": 24, "ramp": {"start_sequences": 8, "increment_sequences": 8, "tokens": 10_000}})
    found = set()
    for choice in every_choice(run, 8, 8):
        layout = choice.layout
        parallel = {
            name: getattr(layout, name)
            for name in ("tensor", "context", "pipeline", "virtual", "sequence", "zero", "zero_engine")
        }
        as_config = run.model_copy(
            update={
                "parallel": run.parallel.model_copy(update=parallel),
                "batch": run.batch.model_copy(update={"micro_sequences": choice.micro_sequences}),
            }
        )
        assert plan_layout(as_config, 8) == layout
        found.add((layout.tensor, layout.context, layout.pipeline, layout.virtual, layout.sequence))
    for layout in layouts_to_verify(8):
        sizes = layout.tensor, layout.context, layout.pipeline, layout.virtual, layout.sequence
        parallel = dict(zip(("tensor", "context", "pipeline", "virtual", "sequence"), sizes, strict=True))
        try:
            plan_layout(run.model_copy(update={"parallel": run.parallel.model_copy(update=parallel)}), 8)
        except ConfigError:
            assert sizes not in found
        else:
            assert sizes in found


def test_the_size_of_a_bucket_is_computed_once_for_each_number_of_tensor_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through all parameters of the model; thousands of layouts share it."""
    tensors: list[int] = []

    def counted(config: RunConfig, tensor: int) -> int:
        tensors.append(tensor)
        return bucket_parameters(config, tensor)

    monkeypatch.setattr(builder, "bucket_parameters", counted)
    search(gpt3("6.7b"), H100, 64, per_node=8, stack=PLAIN)
    assert tensors
    assert len(tensors) == len(set(tensors))


def test_the_best_is_first_fits_and_is_faster_than_the_shipped_layout() -> None:
    run = gpt3("6.7b")
    found = search(run, H100, 64, per_node=8, stack=PLAIN)
    times = [option.seconds for option in found.options]
    assert times == sorted(times)
    assert all(option.held_bytes <= 80 * 2**30 for option in found.options)
    assert found.judged > 1000
    least = search(run, H100, 64, per_node=8, stack=PLAIN, target="memory").options[0]
    assert least.held_bytes == min(least.held_bytes, *(option.held_bytes for option in found.options))
    assert least.seconds > times[0]


@pytest.mark.parametrize(("gpus", "counts"), [(10, [9, 8, 12, 7, 6]), (100, [108, 84, 60, 140, 36])])
def test_near_counts_have_small_factors_and_are_whole_machines(gpus: int, counts: list[int]) -> None:
    assert near_counts(gpus)[: len(counts)] == counts


def test_numbers_near_a_million_are_found_among_those_with_small_factors() -> None:
    """Dividing each number around it would take minutes."""
    found = near_counts(999_983)
    assert len(found) > 0
    assert all(n % 8 == 999_983 % 8 for n in found)


def test_numbers_that_forbid_good_layouts_are_named() -> None:
    run = gpt3("175b")
    with pytest.raises(
        ConfigError, match=r"10,000 GPUs have no legal layout .* nearest numbers that have one are 10,240"
    ):
        search(run, H100, 10_000, per_node=8, stack=PLAIN)
    best = search(run, H100, 1024, per_node=8, stack=PLAIN, top=1).options[0]
    assert best.choice.layout.data <= 16
    ramp, batch = advice(run, H100, 1024, per_node=8, stack=PLAIN, best=best)
    assert ramp.startswith("batch.ramp starts at 16, so that no more data ranks can share a batch: start_sequences=32")
    assert batch.startswith("batch.sequences=1,568 has few divisors that suit data ranks and stages: 1,536")


def test_a_run_that_does_not_fit_names_the_part_and_the_nearest_layout_that_does() -> None:
    asked = ("batch.ramp=null", "parallel.tensor=2", "batch.micro_sequences=16", "parallel.recompute=none")
    run = gpt3("6.7b", *asked)
    layout = plan_layout(run, 16)
    with pytest.raises(ConfigError, match=r"does not fit in memory: tp2\S* holds .* most of it activations") as caught:
        check_memory(run, layout, 80 * 2**30, host=False)
    said = str(caught.value).split("the nearest that fits: ")[1].split()
    assert len(said) == 1, said
    changed = gpt3("6.7b", *asked, *said)
    check_memory(changed, plan_layout(changed, 16), 80 * 2**30, host=False)


def test_a_rehearsal_that_needs_more_than_planned_names_a_layout_that_has_room_for_it() -> None:
    """The planner lets the run's own layout pass: others are taken to need as much more as was counted."""
    asked = ("batch.ramp=null", "parallel.tensor=2", "batch.micro_sequences=2", "parallel.recompute=none")
    run, limit = gpt3("6.7b", *asked), 80 * 2**30
    layout = plan_layout(run, 16)
    check_memory(run, layout, limit, host=False)
    said = (nearest_fit(run, layout, limit, 1.5 * limit) or "").split("the nearest that fits: ")[1].split()
    changed = gpt3("6.7b", *asked, *said)
    planned, of_changed = planned_bytes(run, layout), planned_bytes(changed, plan_layout(changed, 16))
    assert planned is not None
    assert of_changed is not None
    assert 1.5 * limit / planned * of_changed <= limit


class TestGoodput:
    def test_agrees_with_a_simulation(self) -> None:
        work, save, restart, rate = 1800.0, 60.0, 600.0, 1 / 7200
        random, clock, done, failure = np.random.default_rng(0), 0.0, 0.0, 0.0
        failure = random.exponential(1 / rate)
        for _ in range(40_000):
            if clock + work + save <= failure:
                clock, done = clock + work + save, done + work
            else:
                clock = failure + restart
                failure = clock + random.exponential(1 / rate)
        assert goodput(work, save, restart, rate) == pytest.approx(done / clock, rel=0.01)

    def test_the_best_is_better_than_its_neighbours(self) -> None:
        rate = FAILURES_PER_GPU_HOUR * 16_384 / 3600
        best = best_goodput(5.0, 16_384, Failures(20.0, 600.0))
        for steps in (best.every_steps // 2, best.every_steps * 2):
            assert goodput(steps * 5.0, 20.0, 600.0, rate) < best.share

    def test_llama_3_was_interrupted_eight_times_a_day_and_worked_about_nine_tenths_of_it(self) -> None:
        found = best_goodput(5.0, 16_384, Failures(20.0, 600.0))
        assert found.failures_per_day * 54 == pytest.approx(419)
        assert found.share == pytest.approx(0.9, abs=0.02)


class TestCommand:
    def test_prints_figures_for_programs(self, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["gpt3/1.3b", "--gpus", "16", "--hardware", "a100-80", "--price", "2", "--watts", "800", "--json"]
        assert main(["plan", *asked]) == 0
        told = json.loads(capsys.readouterr().out)
        best = told["options"][0]
        assert best["cost"] == pytest.approx(2 * best["gpu_hours"])
        assert best["energy_kwh"] == pytest.approx(0.8 * best["gpu_hours"])
        assert sum(best["seconds"].values()) == pytest.approx(best["step_s"])
        assert sum(best["held"].values()) == pytest.approx(best["held_bytes"])
        assert best["mfu"] == pytest.approx(best["flops_per_step"] / best["step_s"] / 16 / 312e12)
        assert best["step_s_between"][0] < best["step_s"] < best["step_s_between"][1]

    def test_prints_overrides_that_a_command_takes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", "gpt3/1.3b", "--gpus", "16", "--hardware", "h100", "--explain"]) == 0
        printed = capsys.readouterr().out
        assert "the fullest rank, in GiB:" in printed
        pasted = printed.splitlines()[-1].split()
        plan_layout(load(RunConfig, "gpt3/1.3b", ["model.vocabulary=50257", *pasted]), 16)

    def test_the_overrides_are_of_the_fastest_that_leaves_a_tenth_free(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked = ["plan", "gpt3/2.7b", "--gpus", "1", "--hardware", "h100", "batch.ramp=null", "--top", "99"]
        assert main([*asked, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        limit, room = told["memory_bytes"], told["with_room"]
        assert told["options"][0]["held_bytes"] > 0.9 * limit >= room["held_bytes"]
        assert all(o["held_bytes"] > 0.9 * limit for o in told["options"] if o["step_s"] < 0.98 * room["step_s"])
        assert main(asked) == 0
        said = capsys.readouterr().out
        assert f"with a tenth free: {room['layout']}, micro {room['micro_sequences']}, " in said
        assert said.splitlines()[-1] == room["overrides"] != told["options"][0]["overrides"]
        assert main(["plan", "gpt3/760m", *asked[2:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["with_room"] is None, "the first leaves as much"

    def test_judges_the_layout_of_the_config_as_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["plan", "gpt3/6.7b", "--gpus", "16", "--hardware", "h100", "batch.ramp=null"]
        own = [
            "parallel.tensor=4",
            "parallel.sequence=true",
            "parallel.zero=0",
            "batch.micro_sequences=2",
            "parallel.recompute=full",
        ]
        assert main([*asked, *own, "--as-is", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (only,) = told["options"]
        assert (only["layout"], only["micro_sequences"], only["recompute"]) == ("tp4pp1dp4+sp", 2, "full")
        assert (told["layouts_judged"], told["advice"]) == (1, [])
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["options"][0]["step_s"] < only["step_s"]
        assert main([*asked, "--as-is", "parallel.tensor=1", "parallel.sequence=false", "parallel.zero=0"]) == 0
        assert "of a device: it does not fit" in capsys.readouterr().out

    def test_takes_hardware_of_ones_own(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        own = tmp_path / "ours.yaml"
        shipped = (FOLDER / "h100.yaml").read_text()
        own.write_text(shipped.replace("memory_gib: 79.1", "memory_gib: 20"))
        assert main(["plan", "gpt3/1.3b", "--gpus", "8", "--hardware", str(own), "--json"]) == 0
        assert all(o["held_bytes"] < 20 * 2**30 for o in json.loads(capsys.readouterr().out)["options"])

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--gpus", "100", "--hardware", "h100"], "--gpus 100 are no whole number of machines with 8 each: use 96"),
            (["--gpus", "1", "--hardware", "a100-40"], "use more than 1 devices, larger ones, or a smaller model"),
            (["--gpus", "0", "--hardware", "h100"], "'0' must be an integer of at least 1"),
        ],
    )
    def test_says_what_is_impossible(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
    ) -> None:  # fmt: skip
        assert main(["plan", "gpt3/13b", *arguments]) == 2
        assert said in capsys.readouterr().err
