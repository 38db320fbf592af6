"""Faults of stopping and resuming a run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.batch import Cursor
from data_pipeline.loader import SampleStream
from data_pipeline.order.sample_order import SampleOrder
from pretrain.checkpoint import snapshot
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.state import fill_initial
from pretrain.engine.zero.megatron import MegatronSharding
from pretrain.model_spec.modules import parameter_specs
from pretrain.training import loop
from pretrain.training import resume as resuming
from tests.helpers import hidden_faults
from tests.museum.comparing import REFUSED, Compare
from tests.museum.exhibit import Exhibit
from tests.museum.tensor import DROPOUT
from tests.museum.verifying import Verify


def schedule_late_after_resuming(patch: pytest.MonkeyPatch) -> None:
    resume, rate, late = loop.resume, loop.learning_rate, [0]

    def noted(session: Any) -> Any:
        state = resume(session)
        late[0] = int(state.step > 0)
        return state

    patch.setattr(loop, "resume", noted)
    patch.setattr(loop, "learning_rate", lambda config, at, end: rate(config, (at[0] - late[0], at[1]), end))


def position_lost_after_resuming(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints of a resumed run hold the position at which a loader begins."""
    resume, record_of, resumed = loop.resume, loop.record_of, [False]

    def noted(session: Any) -> Any:
        state = resume(session)
        resumed[0] = state.step > 0
        return state

    def stale(run: Any, state: Any) -> Any:
        record = record_of(run, state)
        return replace(record, cursor=run.stream.cursor(0).to_dict()) if resumed[0] else record

    patch.setattr(loop, "resume", noted)
    patch.setattr(loop, "record_of", stale)


def epoch_begun_again(patch: pytest.MonkeyPatch) -> None:
    """After the first epoch, a resumed loader begins the epoch again."""
    load, ids, back = resuming.load, SampleOrder.ids, [0]

    def noted(stream: SampleStream, cursor: Cursor, *rest: Any, **keywords: Any) -> Any:
        samples = stream.num_samples[0]
        back[0] = cursor.samples % samples if cursor.samples >= samples else 0
        return load(stream, cursor, *rest, **keywords)

    patch.setattr(resuming, "load", noted)
    patch.setattr(SampleOrder, "ids", lambda self, start, count: ids(self, start - back[0], count))


def moments_lost(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded

    def without(self: MegatronEngine, updates: int, *rest: Any) -> None:
        for name, part in self.state().items():
            for piece in part.pieces if not name.startswith("model/") else ():
                piece.value.zero_()
        loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", without)


def loss_scale_lost(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded
    patch.setattr(MegatronEngine, "state_loaded", lambda self, updates, *scale: loaded(self, updates))


def initialised_after_loading(patch: pytest.MonkeyPatch) -> None:
    loaded = MegatronEngine.state_loaded

    def afresh(self: MegatronEngine, updates: int, *rest: Any) -> None:
        weights = {name: part for name, part in self.state().items() if name.startswith("model/")}
        fill_initial(parameter_specs(self.config.model), self.config.run.seed, weights)
        loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", afresh)


def weights_in_use_not_refreshed(patch: pytest.MonkeyPatch) -> None:
    """The fp32 weights are those of the checkpoint; the model computes with its initial ones until the next update."""
    loaded, publish = MegatronEngine.state_loaded, MegatronSharding._publish

    def without(self: MegatronEngine, updates: int, *rest: Any) -> None:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(MegatronSharding, "_publish", publish if updates == 0 else lambda self: None)
            loaded(self, updates, *rest)

    patch.setattr(MegatronEngine, "state_loaded", without)


def dropout_begun_again(patch: pytest.MonkeyPatch) -> None:
    loaded, step = MegatronEngine.state_loaded, MegatronEngine.train_step

    def noted(self: MegatronEngine, updates: int, *rest: Any) -> None:
        loaded(self, updates, *rest)
        self.resumed_at = updates  # type: ignore[attr-defined]

    def again(self: MegatronEngine, batch: Any, learning_rate: float, number: int) -> Any:
        return step(self, batch, learning_rate, number - self.resumed_at)  # type: ignore[attr-defined]

    patch.setattr(MegatronEngine, "state_loaded", noted)
    patch.setattr(MegatronEngine, "train_step", again)


def parts_of_another_replica(patch: pytest.MonkeyPatch) -> None:
    """What data rank 1 writes of a checkpoint lies in the wrong place."""
    copy = snapshot.copy

    def shifted(pieces: Any, buffer: Tensor) -> None:
        copy(pieces, buffer)
        if dist.get_rank() == 1:
            values = buffer.view(torch.float32)
            values.copy_(torch.roll(values, 1))

    patch.setattr(snapshot, "copy", shifted)


ADAMW = "exp_avg"

EXHIBITS = [
    Exhibit(
        group="resuming",
        title="After a resume, the learning rate is that of the step before",
        threads=(
            "Lightning-AI/pytorch-lightning#1772",
            "Lightning-AI/pytorch-lightning#4655",
            "InternLM/InternEvo#351",
        ),
        effect="not measured",
        plant=schedule_late_after_resuming,
        finder=Compare(quantity="learning rate", step=5),
    ),
    Exhibit(
        group="resuming",
        title="The second resume starts the data again from the beginning",
        threads=("pytorch/torchtitan#3907", "pytorch/torchtitan#3908", "huggingface/datasets#8308"),
        effect="repeated data; checkpoints of a resumed run hold a stale position",
        plant=position_lost_after_resuming,
        finder=Compare(quantity=REFUSED, step=8, stops=(4, 8)),
    ),
    Exhibit(
        group="resuming",
        title="After the first epoch, a resume starts the epoch again",
        threads=(
            "pytorch/torchtitan#1357",
            "huggingface/accelerate#2823",
            "huggingface/accelerate#4071",
            "huggingface/accelerate#2016",
        ),
        effect="repeated data, and data never seen",
        plant=epoch_begun_again,
        finder=Compare(quantity="samples", step=9, stops=(8,)),
    ),
    Exhibit(
        group="resuming",
        title="After a resume, Adam corrects its moments for another step",
        threads=("NVIDIA-NeMo/Megatron-Bridge#3832", "tenstorrent/tt-metal#53212"),
        effect="silent: presents as slow convergence",
        plant=hidden_faults.power_off_by_one,
        finder=Verify(layout="dp2", step=3, quantity="update", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="resuming",
        title="Adam's moments are not restored",
        threads=("KempnerInstitute/KempnerForge#114", "KempnerInstitute/KempnerForge#115"),
        effect="gradient norm 0.973 instead of 0.930 two steps after the resume",
        plant=moments_lost,
        finder=Verify(layout="dp2", step=2, quantity="checkpoint", parameter="exp_avg", stages=(0,)),
    ),
    Exhibit(
        group="resuming",
        title="The loss scale is not restored",
        threads=("NVIDIA-NeMo/Megatron-Bridge#3832",),
        effect="dropped silently",
        plant=loss_scale_lost,
        finder=Verify(
            layout="tp1",
            step=2,
            quantity="checkpoint",
            parameter="loss scale",
            precision="fp16",
            sections={"precision": "fp16"},
        ),
    ),
    Exhibit(
        group="resuming",
        title="Weights are initialised after the checkpoint was loaded",
        threads=("huggingface/picotron#32",),
        effect="a resumed run begins with random weights",
        plant=initialised_after_loading,
        finder=Verify(layout="tp2", step=2, quantity="checkpoint", parameter="model/", stages=(0,)),
    ),
    Exhibit(
        group="resuming",
        title="fp32 weights and the weights that a model computes with are not brought together after loading",
        threads=("hpcaitech/ColossalAI#4618", "NovaSky-AI/SkyRL#2149"),
        effect="the next update writes other weights over those of the checkpoint",
        plant=weights_in_use_not_refreshed,
        finder=Verify(
            layout="tp1", step=3, quantity="replicas", precision="bf16", parameter=".", sections={"precision": "bf16"}
        ),
    ),
    Exhibit(
        group="resuming",
        title="After a resume, dropout draws the masks of the run's first steps",
        threads=("AI-Hypercomputer/maxtext#4343", "NVIDIA/Megatron-LM#6858"),
        effect="random state wrong on 252 of 256 ranks of a 120B run",
        plant=dropout_begun_again,
        finder=Verify(
            layout="dp2", step=3, quantity="gradient", parameter=".", stages=(0,), sections={"model": DROPOUT}
        ),
    ),
    Exhibit(
        group="resuming",
        title="A checkpoint assembled from replicas holds values in the wrong place",
        threads=("NVIDIA/Megatron-LM#5281",),
        effect="NaN after it was trusted; 44 restarts",
        plant=parts_of_another_replica,
        finder=Verify(layout="dp2", step=2, quantity="checkpoint", parameter=".", stages=(0,)),
    ),
    Exhibit(
        group="resuming",
        title="Checkpoints hold weights and moments in bf16",
        threads=("TensorAuto/OpenTau#185", "TensorAuto/OpenTau#184"),
        effect="16 bits of each weight lost by a resume",
        plant=hidden_faults.checkpoints_rounded,
        finder=Verify(layout="dp2+zero2", step=2, quantity="checkpoint", parameter=".", stages=(0,)),
    ),
]
