"""All exhibits, in the order of the page, and the faults that wait for a part of the engine."""

from tests.museum import context, data, model, muon, pipeline, precision, resuming, tensor, zero
from tests.museum.exhibit import Exhibit, Waiting

EXHIBITS: list[Exhibit] = [
    exhibit
    for group in (data, tensor, pipeline, context, zero, muon, precision, resuming, model)
    for exhibit in group.EXHIBITS
]

_EXPERTS = "no mixture of experts yet"

WAITING = [
    Waiting(
        title="Gradients of experts are not divided by the number of expert ranks",
        threads=("NVIDIA/Megatron-LM#5956", "NVIDIA/Megatron-LM#1628"),
        effect="a bad loss curve",
        reason=_EXPERTS,
    ),
    Waiting(
        title="The loss jumps after resuming a mixture of experts",
        threads=("NVIDIA/Megatron-LM#761",),
        effect="a jump",
        reason=_EXPERTS,
    ),
    Waiting(
        title="Experts are identical on expert ranks under a distributed optimizer",
        threads=("databricks/megablocks#160",),
        effect="half of the model",
        reason=_EXPERTS,
    ),
    Waiting(
        title="The load-balancing loss differs by pipeline size",
        threads=("databricks/megablocks#85",),
        effect="0.1005, 0.1007 and 0.1013 for 1, 2 and 4 stages",
        reason=_EXPERTS,
    ),
    Waiting(
        title="Load balancing counts tokens twice under recomputation",
        threads=("pytorch/torchtitan#4772", "pytorch/torchtitan#3000", "pytorch/torchtitan#2061"),
        effect="wrong balance",
        reason=_EXPERTS,
    ),
    Waiting(
        title="The bias of experts is multiplied by the number of tensor ranks",
        threads=("pytorch/torchtitan#4245", "pytorch/torchtitan#4154", "pytorch/torchtitan#4054"),
        effect="wrong outputs; gradients below experts lost",
        reason=_EXPERTS,
    ),
    Waiting(
        title="A mixture of experts trains to a higher loss than the same model elsewhere",
        threads=("NVIDIA/Megatron-LM#894",),
        effect="2.649 instead of 2.452",
        reason=_EXPERTS,
    ),
    Waiting(
        title="Recurrent layers carry their state over the borders of packed documents",
        threads=("PrimeIntellect-ai/prime-rl#3000",),
        effect="up to 0.78 in the next document",
        reason="no recurrent layers; attention has its own exhibits",
    ),
]
