"""What follows from the keys of `model`: sizes, and the parts that a model is made of."""

from typing import Self

from pydantic import PrivateAttr

from data_pipeline.recipes.objective import ModelShape
from pretrain.config.families import CAPABILITIES, Capabilities
from pretrain.config.finetune import Finetune
from pretrain.config.init import NormalInit
from pretrain.config.mixer import Mixer
from pretrain.config.model_keys import KEYS_OF_PACKAGES, ModelKeys
from pretrain.config.positions import (
    DisentangledPositions,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    ShawPositions,
    TransformerXlPositions,
    YarnScaling,
)
from pretrain.config.recurrent import Recurrent


class ModelValues(ModelKeys):
    """The keys with what follows from them, as properties."""

    _finetune: Finetune = PrivateAttr(default_factory=Finetune)

    @property
    def width_ratio(self) -> float:
        """Width of the model, relative to the one that its hyperparameters are for (`mup`)."""
        return 1.0 if self.mup is None else self.hidden / self.mup.base_width

    @property
    def ffn_ratio(self) -> float:
        """`width_ratio` of the inner features of feed-forward layers."""
        if self.mup is None or self.mup.base_ffn is None:
            return self.width_ratio
        return self.ffn_dim / self.mup.base_ffn

    @property
    def base_width(self) -> int:
        """Width of the model that the hyperparameters are for."""
        return self.hidden if self.mup is None else self.mup.base_width

    @property
    def input_multiplier(self) -> float:
        """Factor of the sum of embeddings."""
        return 1.0 if self.mup is None else self.mup.input_multiplier

    @property
    def output_multiplier(self) -> float:
        """Factor of the logits; one of rows of a fixed size (`embedding_size`) does not fall with the width."""
        if self.mup is None:
            return 1.0
        return self.mup.output_multiplier / (1.0 if self.embedding_size else self.width_ratio)

    @property
    def parts_of_packages(self) -> tuple[str, ...]:
        """Keys of the parts that it has from installed packages."""
        return tuple(name for name, key in KEYS_OF_PACKAGES.items() if key.of(self) is not None)

    @property
    def layers_share_by(self) -> str | None:
        """The key by which several layers have weights in common; None: none have."""
        keys = {
            "model.shared_layers": self.shared_layers,
            "model.tie_encoder_decoder": self.tie_encoder_decoder,
            "sharing=layerwise of model.attention.pattern": self.shares_projection,
            "model.positions.shared_biases": self.shares_biases,
        }
        return next((key for key, is_so in keys.items() if is_so), None)

    @property
    def long_convolution(self) -> Mixer | None:
        """Settings of the long convolutions that layers have in place of attention; None: they have attention."""
        return (self.mixer or Mixer()) if self.capabilities.long_convolution else None

    @property
    def cells(self) -> Recurrent:
        """`recurrent` of a model that has it."""
        assert self.recurrent is not None
        return self.recurrent

    @property
    def shares_projection(self) -> bool:
        """Whether all layers project keys and values along the sequence by one matrix, and have other weights of their
        own."""
        projection = self.attention.projection
        return projection is not None and projection.sharing == "layerwise" and not self.shared_layers

    @property
    def finetune(self) -> Finetune:
        """Which parameters are trained, and which are added for that: the `finetune` section of the run's config."""
        return self._finetune

    def trained_by(self, finetune: Finetune) -> Self:
        """This model in a run with the section `finetune`."""
        model = self.model_copy()
        model._finetune = finetune
        return model

    @property
    def source_model(self) -> Self:
        """`source_encoder` as a model of one stack of encoder layers, whose vocabulary is its own."""
        assert self.source_encoder is not None
        changes = {"layers": 0, "encoder_layers": self.source_encoder.layers, "source_encoder": None}
        return self.model_copy(update={**changes, "vocabulary": self.source_encoder.vocabulary, "target_length": None})

    @property
    def picks_labels(self) -> bool:
        """Whether rows say at which positions something is predicted, and nothing is computed at others behind the
        layers."""
        return self.characters is not None and self.task_head is None

    @property
    def predicts_in_order(self) -> bool:
        """Whether each prediction of a row reads what was to be predicted before it."""
        return self.picks_labels and self.characters is not None and self.characters.autoregressive

    @property
    def ends_in_characters(self) -> bool:
        """Whether something is predicted of single characters, not of the row."""
        return self.characters is not None and (self.task_head is None or self.task_head.kind == "token")

    @property
    def layer_length(self) -> int:
        """Positions of a row of `sequence_length` in the layers of the first stack."""
        return self.sequence_length // (1 if self.characters is None else self.characters.rate)

    @property
    def position_rows(self) -> int:
        """Rows of the first stack's table of learned positions."""
        return self.sequence_length if self.characters is None else self.characters.buckets

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
        """Distances to both sides that have vectors of their own; 0 where positions are neither Shaw's nor
        disentangled."""
        positions = self.positions
        if isinstance(positions, DisentangledPositions):
            return 2 * (positions.num_buckets or positions.max_distance)
        return 2 * positions.max_distance + 1 if isinstance(positions, ShawPositions) else 0

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
        """Factor of attention scores: 1 with T5's biases; with disentangled positions it counts the three products that
        a score is the sum of. `query_pre_attn_scalar` takes the place of the head size. Under `mup` it falls with the
        head size, not with its root."""
        if isinstance(self.positions, RelativePositions):
            return 1.0
        products = 3 if isinstance(self.positions, DisentangledPositions) else 1
        scale = float((products * (self.query_pre_attn_scalar or self.dim_per_head)) ** -0.5)
        if isinstance(self.positions, RotaryPositions) and isinstance(self.positions.scaling, YarnScaling):
            scale *= self.positions.scaling.score_gain
        if self.mup is not None and self.mup.base_head_dim is not None:
            scale *= (self.mup.base_head_dim / self.dim_per_head) ** 0.5
        return scale

    @property
    def init_std(self) -> float:
        """Standard deviation of weights drawn from a normal distribution: that of `init`, or the default."""
        return (self.init if isinstance(self.init, NormalInit) else NormalInit()).std

    @property
    def scale_residual_init(self) -> bool:
        return isinstance(self.init, NormalInit) and self.init.scale_residual

    @property
    def dim_per_head(self) -> int:
        """Features of a head's query and key, and but for latent attention of its value."""
        if self.latent_attention is not None:
            return self.latent_attention.qk_head_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """Features of a head's value."""
        return self.dim_per_head if self.latent_attention is None else self.latent_attention.v_head_dim

    @property
    def rotary_dim(self) -> int:
        """Features of a head that rotary positions turn."""
        return self.dim_per_head if self.latent_attention is None else self.latent_attention.qk_rope_head_dim

    @property
    def query_key_value_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices that make a layer's queries, keys and values."""
        latent, heads = self.latent_attention, self.heads
        if latent is None:
            return ((self.hidden, (heads + 2 * self.num_kv_heads) * self.dim_per_head),)
        queries, keys_values = heads * latent.qk_head_dim, heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        return (
            *(
                ((self.hidden, queries),)
                if latent.q_lora_rank is None
                else ((self.hidden, latent.q_lora_rank), (latent.q_lora_rank, queries))
            ),
            (self.hidden, latent.kv_lora_rank + latent.qk_rope_head_dim),
            (latent.kv_lora_rank, keys_values),
        )

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def ffn_dim(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def expert_ffn_dim(self) -> int:
        """Size of one expert's feed-forward layer."""
        assert self.experts is not None
        return self.experts.ffn or self.ffn_dim

    def has_experts(self, layer: int) -> bool:
        """Whether this layer of the decoder, from 0, has experts in place of one feed-forward layer."""
        return self.experts is not None and layer >= self.experts.dense_layers

    def active_ffn_dim(self, layer: int) -> int:
        """Features of feed-forward layers that each token passes through in this layer of the decoder."""
        if self.experts is None or not self.has_experts(layer):
            return self.ffn_dim
        return (self.experts.top_k + self.experts.shared) * self.expert_ffn_dim

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
    def has_mask_decoder(self) -> bool:
        """The last layer is applied to queries with absolute positions before tokens are predicted."""
        return self.mask_decoder_layers > 0 and self.has_vocabulary_logits

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
        """Which positions see each other, and so which objectives suit it."""
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
