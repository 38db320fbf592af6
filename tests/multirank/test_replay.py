"""`health.replay_every`: computing a step twice changes no number of a run, on any layout; a bit that flips is found
before the update, and the rank is named."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pretrain.attention import core
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine.base import TeacherWeights
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.errors import MiscomputedError
from tests.helpers.bit_flips import WHERE, Where, planted
from tests.helpers.breadth import slow
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine, tiny_config, whole_state

_DEEPSPEED = {"zero_engine": "deepspeed"}
_DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
SHARDINGS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "tp2+sp": {"tensor": 2, "sequence": True},
    "pp2+vp2": {"pipeline": 2, "virtual": 2},
    "cp2": {"context": 2},
    "zero1": {"zero": 1},
    "zero1+overlap": {"zero": 1, "overlap": True},
    "zero1 of DeepSpeed": {"zero": 1, **_DEEPSPEED},
    "zero2": {"zero": 2, **_DEEPSPEED},
    "zero2+overlap": {"zero": 2, "overlap": True, **_DEEPSPEED},
    "zero3": {"zero": 3, **_DEEPSPEED},
    "zero3+offload": {"zero": 3, "offload_optimizer": True, "offload_parameters": True, **_DEEPSPEED},
    "pp2+recompute": {"pipeline": 2, "recompute": "full"},
}


def _teacher() -> dict[str, Any]:
    model = family_config("llama").model.model_dump(mode="json") | {"layers": 8}
    return {"distillation": {"teacher": "unused", "teacher_model": model, "temperature": 2.0, "kl_weight": 1.0}}


MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"model": _DROPOUT},
    "gpt in bf16": {"model": _DROPOUT, "precision": "bf16"},
    "gpt in fp16 that overflows": {"model": _DROPOUT, "precision": "fp16", "loss_scale": {"initial": 2.0**18}},
    "gpt in fp8": {"precision": "fp8"},
    "gpt under Muon": {"optimizer": {"name": "muon"}},
    "gpt with QK-Clip, and outputs of layers": {
        "model": _DROPOUT,
        "optimizer": {"name": "muon", "qk_clip_threshold": 0.02},
        "track": {"activations_every_steps": 1},
    },
    "further tokens of a mixture, and outputs of layers": {
        **FAMILIES["biased_experts"],
        "model": {**FAMILIES["biased_experts"]["model"], "mtp": {"num_layers": 2}},
        "track": {"activations_every_steps": 2},
    },
    "biased_experts": FAMILIES["biased_experts"],
    "memory": {"model": FAMILIES["transformer-xl"]["model"] | {"memory_length": 32}},
    "generator": {
        "model": FAMILIES["electra"]["model"] | {"vocabulary": 60},
        "generator": {"hidden": 32, "heads": 4, "ffn": 64},
        "objective": {"name": "replaced_tokens"},
    },
    "teacher": {"model": FAMILIES["llama"]["model"], **_teacher()},
}
QUICK = [("biased_experts", "zero2")]


def _config(model: str, layout: str, every: int) -> RunConfig:
    return tiny_config(**MODELS[model], parallel=SHARDINGS[layout], health={"replay_every": every})


def _steps(engine: MegatronEngine, steps: int) -> list[Any]:
    source = SyntheticStream(engine.config)
    batches = (
        (step, source.batch((step - 1) * ROWS, ROWS, engine.data_rank, engine.data_world))
        for step in range(1, steps + 1)
    )
    return [engine.train_step(batch, 1e-3, step) for step, batch in batches]


def _differences(cases: Sequence[tuple[str, str]]) -> list[str]:
    """What differs between a run and one whose steps 2 and 4 are computed twice."""
    found = []
    for case in cases:
        runs = []
        for every in (0, 2):
            engine = build_engine(_config(*case, every))
            if engine.config.distillation.teacher is not None:
                engine.part(TeacherWeights).initialise()
            results = repr(_steps(engine, 4))  # as no NaN equals itself
            runs.append((results, torch.get_rng_state(), engine.updates, whole_state(engine)))
            meet_again()
        (results, generator, updates, state), (others, other_generator, other_updates, other) = runs
        found += [f"{case}: {results}, {others}"] if results != others else []
        found += [f"{case}: updates"] if updates != other_updates or updates == 0 else []
        found += [f"{case}: random state"] if not torch.equal(generator, other_generator) else []
        assert state.keys() == other.keys()
        found += [f"{case}: {name}" for name in state if state[name].tobytes() != other[name].tobytes()]
    return found


def test_no_number_of_a_run_changes() -> None:
    assert run_ranks(2, _differences, QUICK) == [[], []]


def flipped(flips: int, seed: int, precision: str) -> tuple[int, int, list[str]]:
    """(flips that changed a gradient or the loss; other flips that were reported; what was wrong). Whether one changed
    it is seen by comparing all bits of both computations, not their digests."""
    engine = build_engine(_small(precision, every=1))
    assert engine.sharding is not None
    source, draw = SyntheticStream(engine.config), random.Random(seed)
    before, kept = whole_state(engine), list[list[bytes]]()
    compute = MegatronEngine._compute_gradient

    def keeping(self: MegatronEngine, *arguments: Any, **options: Any) -> Any:
        computed = compute(self, *arguments, **options)
        assert self.sharding is not None
        kept.append([_bits(one.value) for one in self.sharding.reduced()] + [_bits(computed.sums)])
        return computed

    MegatronEngine._compute_gradient = keeping  # type: ignore[method-assign]
    changed, others, wrong = 0, 0, []
    for number in range(flips):
        where, in_pass = WHERE[number % len(WHERE)], draw.randrange(2)
        batch = source.batch(number * ROWS, ROWS, 0, 1)
        kept.clear()
        error = None
        with planted(engine, where, draw, in_pass) as due:
            try:
                engine.train_step(batch, 1e-3, number)
            except MiscomputedError as found:
                error = found
        differs = kept[0] != kept[1]
        changed += differs
        others += error is not None and not differs
        if error is None and (differs or (where == "weight" and not due)):
            wrong.append(f"{number}: a flip in {where} was not found")
        if error is None:  # which has made an update
            for name, part in engine.state().items():
                part.pieces[0].value.copy_(torch.from_numpy(before[name]))
            engine.state_loaded(0)
        elif any(whole_state(engine)[name].tobytes() != before[name].tobytes() for name in before):
            wrong.append(f"{number}: an update after a flip in {where}")
    return changed, others, wrong


def _small(precision: str, every: int) -> RunConfig:
    model = {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 60, "sequence_length": 8, "attention": {}, **_DROPOUT}
    return tiny_config(model=model, precision=precision, batch={"micro_sequences": 4}, health={"replay_every": every})


def _bits(x: torch.Tensor) -> bytes:
    return x.detach().cpu().view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@pytest.mark.timeout(1900)
@pytest.mark.parametrize(("flips", "precision"), [(60, "fp32"), slow((200, "fp32")), slow((200, "bf16"))])
def test_flips_that_change_a_gradient_are_found_before_the_update(flips: int, precision: str) -> None:
    ((changed, others, wrong),) = run_ranks(1, flipped, flips, 5, precision, timeout_s=900)
    print(f"{changed} of {flips} flips in {precision} changed a gradient; {others} others were found in weights")
    assert wrong == []
    assert changed > flips / 2


def replayed(steps: int, precision: str) -> int:
    engine = build_engine(_small(precision, every=1))
    _steps(engine, steps)
    return engine.updates


@pytest.mark.slow
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_thousand_replayed_steps_raise_no_alarm(precision: str) -> None:
    assert run_ranks(1, replayed, 1000, precision, timeout_s=1800) == [1000]


_NAMED: list[tuple[str, Where, list[int]]] = [
    ("dp2", "activation", [1]),
    ("dp2", "gradient", [1]),
    ("dp2", "weight", [1]),
    ("zero2", "activation", [1]),
    ("zero3", "gradient", [1]),
    ("zero1+overlap", "activation", [1]),
    ("pp2+recompute", "activation", [1]),
    ("pp2+recompute", "gradient", [1]),
    ("tp2+sp", "activation", [0, 1]),  # which share what it makes of the rows
    ("cp2", "gradient", [0, 1]),
]


def _facts(cases: Sequence[tuple[str, Where, list[int]]]) -> list[dict[str, Any]]:
    """The facts of an error of a flip on rank 1, in the first computation of a step; weights are those of before."""
    found = []
    for layout, where, _ in cases:
        engine = build_engine(_config("gpt", layout, every=1))
        _steps(engine, 1)
        batch = SyntheticStream(engine.config).batch(ROWS, ROWS, engine.data_rank, engine.data_world)
        for seed in range(20):  # a flip may change nothing, such as one behind dropout
            before, updates, draw = whole_state(engine), engine.updates, random.Random(seed)
            flip = planted(engine, where, draw, in_pass=0) if dist.get_rank() == 1 else nullcontext()
            try:
                with flip:
                    engine.train_step(batch, 1e-3, 2)
            except MiscomputedError as error:
                after = whole_state(engine)
                assert engine.updates == updates
                assert where == "weight" or all(after[name].tobytes() == before[name].tobytes() for name in before)
                found.append({**error.facts, "said": str(error)})
                break
        meet_again()
    return found


def _named(cases: Sequence[tuple[str, Where, list[int]]]) -> None:
    for of_rank in run_ranks(2, _facts, cases, timeout_s=600):
        for (layout, where, ranks), facts in zip(cases, of_rank, strict=True):
            kind = "weights" if where == "weight" else "computation"
            assert (facts["step"], facts["ranks"], facts["kind"]) == (2, ranks, kind), (layout, where, facts)
            if layout == "dp2" and where != "weight":
                assert "The third time it computed the second again, and rank 0" in facts["said"]
                assert "computed the second from these rows" in facts["said"]


def test_the_rank_is_named_that_computes_wrong() -> None:
    _named(_NAMED[:1])


@pytest.mark.slow
def test_the_rank_is_named_on_every_layout() -> None:
    _named(_NAMED[1:])


def _of_wrong_score() -> dict[str, Any]:
    """The facts of an error of a step whose largest attention scores are wrong in the first computation alone."""
    optimizer = {"name": "muon", "qk_clip_threshold": 0.02}
    engine = build_engine(tiny_config(optimizer=optimizer, health={"replay_every": 1}))
    right, calls = core.largest_scores, list[None]()

    def wrong_once(*arguments: Any) -> torch.Tensor:
        calls.append(None)
        return right(*arguments) * (2 if len(calls) == 1 else 1)

    core.largest_scores = wrong_once
    try:
        with pytest.raises(MiscomputedError) as raised:
            _steps(engine, 1)
    finally:
        core.largest_scores = right
    assert engine.updates == 0
    return dict(raised.value.facts)


def test_a_score_that_qk_clip_reads_is_compared() -> None:
    (facts,) = run_ranks(1, _of_wrong_score)
    assert (facts["kind"], facts["ranks"], facts["what"]) == ("computation", [0], "the largest attention scores")


def _of_other_weights() -> dict[str, Any]:
    engine = build_engine(_config("gpt", "dp2", every=1))
    if dist.get_rank() == 1:
        engine.parameters[3].value.data.view(-1)[5] += 1e-6
    with pytest.raises(MiscomputedError) as raised:
        _steps(engine, 1)
    return {**raised.value.facts, "name": engine.parameters[3].name}


@pytest.mark.slow
def test_replicas_that_hold_other_weights_are_found_before_a_step() -> None:
    for facts in run_ranks(2, _of_other_weights):
        assert (facts["kind"], facts["ranks"], facts["what"]) == ("replicas", [0, 1], facts["name"])


@pytest.mark.timeout(1900)
@pytest.mark.slow
def test_no_number_of_a_run_changes_on_any_layout() -> None:
    assert run_ranks(2, _differences, [("gpt", layout) for layout in SHARDINGS], timeout_s=1800) == [[], []]


@pytest.mark.timeout(1900)
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["zero1", "pp2+recompute"])
def test_no_number_of_any_model_changes(layout: str) -> None:
    assert run_ranks(2, _differences, [(model, layout) for model in MODELS], timeout_s=1800) == [[], []]
