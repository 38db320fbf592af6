"""A new encoder in front of an encoder-decoder's, which reads another vocabulary (BART: Lewis et al. 2020, arXiv
1910.13461, section 3.4).

It has an embedding of its own (tokens, positions, norm), and layers as the model's encoder. What leaves its last layer
takes the place of the encoder's token embeddings: as it is, without their scale. The encoder's positions, norm and
dropout follow. The decoder and the output layer use the model's token embeddings as before.

Shapes: S positions (this context rank's), B rows, H width.
"""

from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from pretrain.classics.source_encoder.key import KEY
from pretrain.config.model import Model
from pretrain.models.embeddings import Embedding, StackPart
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import Final, LayerInputs, Layers
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network_slots import Named, NetworkModules
from pretrain.models.slots import PartModules
from pretrain.models.stream import Stream


class SourceEncoderModules(PartModules, NetworkModules):
    """Modules of the source encoder."""

    def front(
        self, model: Model, megatron: MegatronConfig, embedding: StackPart, final: Final, chunk: int | None
    ) -> Named | None:
        """See `NetworkModules`."""
        if KEY.of(model) is None:
            return None
        return KEY.name, SourceEncoder(model, megatron, embedding, final, chunk)


class SourceEncoder(nn.Module):
    """All of it lies on the first pipeline stage."""

    def __init__(
        self, model: Model, megatron: MegatronConfig, part: StackPart, final: Final, chunk: int | None
    ) -> None:
        """`chunk`: that which it is built in, the first one."""
        super().__init__()
        shape = KEY.of(model)
        assert shape is not None
        source, count = model.source_model, shape.layers
        self.megatron = megatron
        self.embedding = Embedding(source, megatron, part)
        self.layers = Layers(source, megatron, chunk, final, last=False, count=count)
        for number, layer in enumerate(self.layers.layers):
            layer.global_name = f"{KEY.name}.layers.{number}"  # type: ignore[assignment]

    def forward(self, batch: MicroBatch, inputs: LayerInputs) -> Tensor:
        """The encoder's input in place of embedded tokens, [B, S, H]; also under sequence parallelism of all
        positions."""
        stream = Stream({"encoder": inputs.stream.lengths["encoder"]})
        own = LayerInputs(stream, {"encoder": inputs.own["encoder"]})
        x_SBH: Tensor = self.layers(self.embedding(batch, stream), own)
        if self.megatron.sequence_parallel:
            # Each tensor rank adds positions to all of them, and has the gradient of all.
            x_SBH = gather_from_sequence_parallel_region(x_SBH, tensor_parallel_output_grad=False)
        return x_SBH.transpose(0, 1)


MODULES = SourceEncoderModules()
