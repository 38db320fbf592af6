"""The parameters of an encoder that reads another vocabulary."""

from pretrain.classics.source_encoder.key import KEY
from pretrain.config.model import Model
from pretrain.model_spec.embeddings import embeddings
from pretrain.model_spec.layer import final_norm, layer
from pretrain.model_spec.linears import norm, under
from pretrain.model_spec.slots import PartSpecs, Specs

PREFIX = f"{KEY.name}."
"""how names of all that it has begin"""
_TRAINED_WITH_IT = frozenset(
    {
        "embedding.encoder.position_embeddings.weight",
        "embedding.decoder.position_embeddings.weight",
        "encoder.layers.0.self_attention.linear_qkv.weight",
    }
)
"""arXiv 1910.13461, section 3.4"""


class SourceEncoderSpecs(PartSpecs):
    """Parameters of the encoder that reads another vocabulary in front of the model's own."""

    def front(self, model: Model) -> Specs:
        """See `NetworkPart`."""
        shape = KEY.of(model)
        if shape is None:
            return
        source = model.source_model
        yield from under(f"{PREFIX}embedding.", embeddings(source))
        for number in range(shape.layers):
            name = f"{PREFIX}layers.{number}."
            yield from under(name, layer(source, False, number))
        if model.norm_first:
            yield from under(final_norm(source, name), norm(source))

    def trained_first(self, name: str) -> bool:
        """See `NetworkPart`."""
        return name.startswith(PREFIX) or name in _TRAINED_WITH_IT


SPECS = SourceEncoderSpecs()
