"""Tables of embeddings whose gradients are summed in fp32."""

from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from megatron.core.tensor_parallel.layers import VocabParallelEmbedding
from torch import Tensor, nn

from pretrain.models.parameter_gradients import is_half, lookup
from pretrain.models.products import unrounded


class ReplicatedEmbedding(nn.Embedding):
    """torch's embedding with its gradient summed in fp32."""

    def forward(self, ids: Tensor) -> Tensor:
        return lookup(ids, self.weight)


class VocabEmbedding(VocabParallelEmbedding):
    """megatron-core's embedding with its gradient summed in fp32 and accumulated as `OutputLinear` does, which may
    share its weight."""

    def forward(self, ids: Tensor) -> Tensor:
        if not is_half(self.weight):
            return super().forward(ids)  # type: ignore[no-any-return]
        outside = (ids < self.vocab_start_index) | (ids >= self.vocab_end_index)
        rows = lookup((ids - self.vocab_start_index).masked_fill(outside, 0), self.weight, unrounded(self.weight))
        own = rows.masked_fill(outside[..., None], 0)
        out: Tensor = reduce_from_tensor_model_parallel_region(own, group=self.tp_group)
        return out
