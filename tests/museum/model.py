"""Faults that every layout shares: of the model's arithmetic, and of scoring."""

from typing import Any

import pytest
import torch.nn.functional as F

from pretrain.models import kernels
from tests.helpers import hidden_faults
from tests.museum.exhibit import Exhibit
from tests.museum.failing import Failing
from tests.museum.tensor import DROPOUT
from tests.museum.verifying import SCORING, Verify


def exact_gelu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernels, "_GELU_TANH", F.gelu)


CAPS: dict[str, Any] = {"attention_logit_softcap": 50.0, "final_logit_softcap": 30.0}
PARITY = "tests/multirank/test_hf.py::test_loss_and_every_gradient_are_those_of_hugging_face"

EXHIBITS = [
    Exhibit(
        group="model",
        title="GELU is exact where the model was made with its tanh form",
        threads=("google/gemma_pytorch#37", "Lightning-AI/litgpt#1031"),
        effect="one of eight differences between Gemma and its implementations",
        plant=exact_gelu,
        finder=Failing(test=f"{PARITY}[gemma]"),
    ),
    Exhibit(
        group="model",
        title="Attention and logits are capped in training only",
        threads=("huggingface/transformers#31887", "vllm-project/vllm-metal#665"),
        effect="other outputs than the model was trained with",
        plant=hidden_faults.caps_in_training_alone,
        finder=Verify(family="gemma2", layout="tp1", quantity=SCORING, sections={"model": CAPS}),
    ),
    Exhibit(
        group="model",
        title="Dropout stays on while a model is scored",
        threads=("wolny/pytorch-3dunet#53",),
        effect="not measured",
        plant=hidden_faults.dropout_left_on,
        finder=Verify(layout="tp2", quantity="scores", sections={"model": DROPOUT}),
    ),
    Exhibit(
        group="model",
        title="Dropout stays off once a model was scored",
        threads=("fartashf/vsepp#4", "shubhamagarwal92/mmd#14"),
        effect="results change noticeably; one project kept the fault to stay reproducible",
        plant=hidden_faults.dropout_left_off,
        finder=Verify(layout="tp2", step=2, quantity="gradient", parameter=".", sections={"model": DROPOUT}),
    ),
]
