"""All exhibits, in the order of the page, and the faults that wait for a part of the engine."""

from tests.museum import context, data, experts, model, muon, pipeline, precision, resuming, tensor, zero
from tests.museum.exhibit import Exhibit, Waiting

EXHIBITS: list[Exhibit] = [
    exhibit
    for group in (data, tensor, pipeline, context, zero, muon, experts, precision, resuming, model)
    for exhibit in group.EXHIBITS
]

WAITING = [
    Waiting(
        title="The bias of experts is multiplied by the number of tensor ranks",
        threads=("pytorch/torchtitan#4245",),
        effect="wrong outputs",
        reason="experts have no biases here",
    ),
    Waiting(
        title="A mixture of experts trains to a higher loss than the same model elsewhere",
        threads=("NVIDIA/Megatron-LM#894",),
        effect="2.649 instead of 2.452",
        reason="the thread does not say what the fault is",
    ),
    Waiting(
        title="Recurrent layers carry their state over the borders of packed documents",
        threads=("PrimeIntellect-ai/prime-rl#3000",),
        effect="up to 0.78 in the next document",
        reason="no recurrent layers; attention has its own exhibits",
    ),
]
