"""Values derived from the keys of `model`: sizes, and the parts that a model is made of."""

from typing import Self

from pydantic import PrivateAttr

from data_pipeline.recipes.objective import ModelShape
from pretrain.config.families import CAPABILITIES, Capabilities
from pretrain.config.finetune import Finetune
from pretrain.config.init import NormalInit
from pretrain.config.last_layer import LastLayerKey
from pretrain.config.model_keys import ModelKeys
from pretrain.config.part_keys import KEYS_APART
from pretrain.config.positions import (
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    TransformerXlPositions,
    YarnScaling,
)
from pretrain.config.values.parts import PartValues

LAST_LAYER_KEYS = tuple(key for key in KEYS_APART.values() if isinstance(key, LastLayerKey))


class ModelValues(PartValues, ModelKeys):
    """The keys with what follows from them, as properties."""

    _finetune: Finetune = PrivateAttr(default_factory=Finetune)

    @property
    def parts_apart(self) -> tuple[str, ...]:
        """Keys of the parts that it has from `pretrain/classics` and from installed packages."""
        return tuple(name for name, key in KEYS_APART.items() if key.of(self) is not None)

    @property
    def named_parts(self) -> tuple[str, ...]:
        """Names of all that it has from them with parameters: these keys, its pattern if that projects keys, and its
        positions if these have vectors of distances."""
        projection, positions = self.attention.projection, self.positions
        of_attention = (
            *([] if projection is None else [projection.name]),
            *[positions.name] * (positions.distance_rows > 0),
        )
        return *self.parts_apart, *of_attention

    @property
    def layers_share_by(self) -> str | None:
        """The key by which several layers have weights in common; None: none have."""
        keys = {
            "model.shared_layers": self.shared_layers,
            "model.tie_encoder_decoder": self.tie_encoder_decoder,
            f"{self.projection_shared_by} of model.attention.pattern": self.projection_shared_by is not None,
            "model.positions.shared_biases": self.shares_biases,
        }
        return next((key for key, is_so in keys.items() if is_so), None)

    @property
    def projection_shared_by(self) -> str | None:
        """The setting by which all layers project keys and values along the sequence by the same weights, and have
        other weights of their own; None: they do not."""
        projection = self.attention.projection
        return None if projection is None or self.shared_layers else projection.layers_share_by

    @property
    def finetune(self) -> Finetune:
        """The `finetune` section of the run's config: which parameters are trained, and which are added for that."""
        return self._finetune

    def trained_by(self, finetune: Finetune) -> Self:
        """This model in a run with the section `finetune`."""
        model = self.model_copy()
        model._finetune = finetune
        return model

    @property
    def position_offset(self) -> int:
        """Number of the first position."""
        return self.positions.offset if isinstance(self.positions, LearnedPositions) else 0

    @property
    def relative_num_buckets(self) -> int:
        """Number of buckets of distances; 0 where positions are not relative."""
        return self.positions.num_buckets if isinstance(self.positions, RelativePositions) else 0

    @property
    def relative_max_distance(self) -> int:
        """Distance from which on all share one bucket; 0 where positions are not relative."""
        return self.positions.max_distance if isinstance(self.positions, RelativePositions) else 0

    @property
    def distance_rows(self) -> int:
        """Distances to both sides that have vectors of their own; 0: none have."""
        return self.positions.distance_rows

    @property
    def adds_distance_scores(self) -> bool:
        """Whether attention scores have Transformer-XL's terms."""
        return isinstance(self.positions, TransformerXlPositions)

    @property
    def biased_queries(self) -> int:
        """Biases that queries are multiplied with keys with, one after the other."""
        return 2 * self.adds_distance_scores + self.compares_segments

    @property
    def compares_segments(self) -> bool:
        """Whether attention scores have a term for keys of the query's segment and one for others (XLNet), in place of
        segment embeddings."""
        return self.adds_distance_scores and self.segments > 0

    @property
    def needs_explicit_scores(self) -> bool:
        """No fused kernel computes its attention."""
        return self.attention_logit_softcap is not None or self.distance_rows > 0 or self.adds_distance_scores

    @property
    def score_scale(self) -> float:
        """Factor of attention scores: 1 with T5's biases; it counts the products that a score is the sum
        of. `query_pre_attn_scalar` takes the place of the head size. Under `mup` it falls with the
        head size, not with its root."""
        if isinstance(self.positions, RelativePositions):
            return 1.0
        scale = float((self.positions.score_products * (self.query_pre_attn_scalar or self.dim_per_head)) ** -0.5)
        if isinstance(self.positions, RotaryPositions) and isinstance(self.positions.scaling, YarnScaling):
            scale *= self.positions.scaling.score_gain
        return scale * self.score_factor

    @property
    def init_std(self) -> float:
        """Standard deviation of weights drawn from a normal distribution: that of `init`, or the default."""
        return (self.init if isinstance(self.init, NormalInit) else NormalInit()).std

    @property
    def scale_residual_init(self) -> bool:
        return isinstance(self.init, NormalInit) and self.init.scale_residual

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def ffn_dim(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def embedding_dim(self) -> int:
        """Size of embedding rows, and of the vectors that they are multiplied with to make logits."""
        return self.embedding_size or self.hidden

    @property
    def has_vocabulary_logits(self) -> bool:
        """Whether it has a language-model head, beside a task head or without one."""
        return self.task_head is None or self.task_head.language_model

    @property
    def ties_output(self) -> bool:
        """Whether the token embedding is the output projection: a task head has none."""
        return self.tie_word_embeddings and self.has_vocabulary_logits

    @property
    def classifier_bias(self) -> bool:
        """Whether a task head has a bias: all but the row classifiers of decoders (as in transformers) and those of
        choices, of which none would win or lose by it."""
        head = self.task_head
        return head is not None and head.kind != "choice" and (head.kind == "token" or not self.is_causal)

    @property
    def shares_biases(self) -> bool:
        """Whether all layers have the same biases of queries."""
        return isinstance(self.positions, TransformerXlPositions) and self.positions.shared_biases

    @property
    def answers_at_end(self) -> bool:
        """Whether the last position of a text answers for it; otherwise the first one does."""
        return self.has_decoder or self.capabilities.input_format == "xlnet"

    @property
    def has_pooler(self) -> bool:
        """Whether a task head has a dense layer before its classifier."""
        head = self.task_head
        return head is not None and head.kind in ("sequence", "choice") and self.capabilities.pooler is not None

    @property
    def drops_before_pooler(self) -> bool:
        """Whether the input of that dense layer drops out too."""
        head = self.task_head
        return head is not None and head.kind == "sequence" and self.capabilities.drops_before_pooler

    @property
    def head_outputs(self) -> int:
        """Numbers that the head makes for each position, those that pad the vocabulary included."""
        vocabulary = self.padded_vocab_size if self.has_vocabulary_logits else 0
        return vocabulary + (0 if self.task_head is None else self.task_head.outputs)

    @property
    def gated(self) -> bool:
        return self.activation.startswith("gated_")

    @property
    def norm_first(self) -> bool:
        """Sublayers read a norm of the residual stream, which has one more at its end."""
        return self.norm != "post"

    @property
    def has_qkv_bias(self) -> bool:
        """Queries, keys and values have a bias."""
        return self.capabilities.key_bias and (self.bias if self.qkv_bias is None else self.qkv_bias)

    @property
    def last_layer_uses(self) -> int:
        """Times that a part applies the last layer before tokens are predicted; 0: it is like the others."""
        uses = (key.of(self) for key in LAST_LAYER_KEYS)
        return next((count for count in uses if count is not None), 0) if self.has_vocabulary_logits else 0

    @property
    def last_layer_again(self) -> tuple[str, ...]:
        """Names of the uses of the last layer that follow its first one."""
        key = next((key for key in LAST_LAYER_KEYS if key.of(self) is not None), None)
        return () if key is None else tuple(f"{key.module}.layers.{n}" for n in range(self.last_layer_uses - 1))

    def headless(self) -> Self:
        """This model without a task head and without what is there to predict tokens alone."""
        return self.model_copy(update={"task_head": None} | {key.name: key.default for key in LAST_LAYER_KEYS})

    @property
    def has_projection_bias(self) -> bool:
        """The projection after attention has a bias."""
        return self.bias and self.projection_bias

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of its family."""
        return CAPABILITIES[self.family]

    @property
    def stacks(self) -> tuple[int, int]:
        """(encoder, decoder) layers."""
        if not self.capabilities.encoder:
            return 0, self.layers
        if not self.capabilities.decoder:
            return self.layers, 0
        return self.layers if self.encoder_layers is None else self.encoder_layers, self.layers

    @property
    def has_encoder(self) -> bool:
        return self.stacks[0] > 0

    @property
    def has_decoder(self) -> bool:
        """Whether it can generate token by token, with a key-value cache."""
        return self.stacks[1] > 0

    @property
    def shape(self) -> ModelShape:
        """Kind of the model by which positions see each other, and so by which objectives suit it."""
        if not self.has_decoder:
            return "encoder"
        if self.has_encoder:
            return "encoder_decoder"
        return "prefix_decoder" if self.capabilities.prefix else "decoder"

    @property
    def is_encoder_decoder(self) -> bool:
        return self.has_encoder and self.has_decoder

    @property
    def is_causal(self) -> bool:
        """Whether it is a decoder alone, which continues what it reads."""
        return not self.has_encoder

    @property
    def context_length(self) -> int:
        """Most positions of a text that is scored or continued: those of a row, and in a decoder of the memory before
        it."""
        return self.sequence_length + (self.memory_length if self.is_causal else 0)

    @property
    def label_length(self) -> int:
        """Positions with a label."""
        if not (self.is_encoder_decoder or self.picks_labels):
            return self.sequence_length
        assert self.target_length is not None, "a run's config has one"
        return self.target_length

    @property
    def vocab_size(self) -> int:
        """Token ids: `vocabulary`, once it is known."""
        assert self.vocabulary is not None, "the vocabulary is resolved before it is used"
        return self.vocabulary

    @property
    def output_rows(self) -> int:
        """Rows of the output projection: words, and the clusters of an adaptive softmax behind them."""
        return self.vocab_size + len(self.cutoffs)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: words, and clusters of an adaptive softmax, rounded up. The same for every layout."""
        return -(-self.output_rows // self.vocabulary_multiple) * self.vocabulary_multiple
