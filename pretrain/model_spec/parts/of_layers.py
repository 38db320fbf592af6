"""The parts that a Transformer layer may have, in the order of their parameters."""

from pretrain.model_spec.parts.experts import ExpertSpecs
from pretrain.model_spec.parts.latent_attention import LatentAttentionSpecs
from pretrain.model_spec.parts.transformer_xl import TransformerXlSpecs
from pretrain.model_spec.slots import LayerPart

LAYER_PARTS: tuple[LayerPart, ...] = (
    LatentAttentionSpecs(),
    TransformerXlSpecs(),
    ExpertSpecs(),
)
