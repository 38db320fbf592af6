"""`model`: the shape of the network."""

from operator import attrgetter
from typing import Any, Literal

from pydantic import Field, PositiveInt, PrivateAttr, model_validator

from data_pipeline.recipes.objective import ModelShape
from pretrain.config.attention import Attention, Dense
from pretrain.config.characters import CharacterShape
from pretrain.config.experts import Experts
from pretrain.config.families import CAPABILITIES, Capabilities, Family
from pretrain.config.finetune import Finetune
from pretrain.config.init import Init, NormalInit
from pretrain.config.mixer import Mixer
from pretrain.config.mup import Mup
from pretrain.config.positions import (
    DisentangledPositions,
    LearnedPositions,
    NtkScaling,
    Positions,
    RelativePositions,
    RotaryPositions,
    ShawPositions,
    TransformerXlPositions,
)
from pretrain.config.recurrent import Recurrent
from pretrain.config.section import Section
from pretrain.config.source_encoder import SourceEncoderShape
from pretrain.config.task_head import TaskHeadShape


class Model(Section):
    family: Family = Field("gpt", description="kind of model, which decides the parts it is made of (docs/families.md)")
    layers: int = Field(gt=0, description="number of decoder layers; of encoder layers in a model without a decoder")
    encoder_layers: int | None = Field(
        None,
        ge=0,
        description="number of encoder layers of an encoder-decoder; 0: decoder only (t5, rnn); default: layers",
    )
    hidden: int = Field(gt=0, description="hidden size, the width of the residual stream (d_model)")
    heads: int = Field(gt=0, description="number of attention heads in each layer")
    kv_heads: int | None = Field(
        None,
        gt=0,
        description="number of key and value heads, each shared by heads / kv_heads query heads; default: same as "
        "heads",
    )
    head_dim: int | None = Field(None, gt=0, description="size of one attention head; default: hidden / heads")
    ffn: int | None = Field(
        None, gt=0, description="size of the feed-forward layer (intermediate size); default: 4 * hidden"
    )
    sequence_length: int = Field(gt=0, description="tokens per sequence; of the input in an encoder-decoder")
    target_length: int | None = Field(
        None,
        gt=0,
        description="tokens that the decoder of an encoder-decoder predicts, or positions of a row at which a model of "
        "characters predicts something; default: as many as the objective makes",
    )
    vocabulary: int | None = Field(
        None, gt=0, description="number of token ids; default: those of the tokenizer and the objective"
    )
    vocabulary_multiple: int = Field(
        128, gt=0, description="embedding rows are padded up to a multiple of this, so that tensor ranks can share them"
    )
    norm: Literal["pre", "post", "sandwich"] = Field(
        "pre",
        description="placement of norms. pre: before each sublayer (GPT-2, 3, T5, Llama); post: after its "
        "residual (GPT); sandwich: before and after each sublayer, inside its residual (Gemma 3)",
    )
    norm_type: Literal["layer", "rms", "rms_zero_centered"] = Field(
        "layer",
        description="kind of norm. layer: LayerNorm; rms: without mean and bias (T5, Llama); rms_zero_centered: "
        "stored as weight - 1 (Gemma)",
    )
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="epsilon added to the variance in norms")
    bias: bool = Field(True, description="whether linear layers have a bias")
    qkv_bias: bool | None = Field(
        None, description="whether the query, key and value projections have a bias (Qwen2); default: same as bias"
    )
    projection_bias: bool = Field(
        True, description="whether, with bias, the projection after attention has one, too (Transformer-XL: not)"
    )
    qk_norm: bool = Field(False, description="norm of each head's query and key (Qwen3, Gemma 3)")
    qk_norm_span: Literal["head", "all_heads"] = Field(
        "head",
        description="features that such a norm spans. head: those of one head, with the same weights for each; "
        "all_heads: those of all heads (OLMoE)",
    )
    activation: Literal["gelu_tanh", "gelu", "relu", "gated_gelu", "gated_silu", "gated_relu"] = Field(
        "gelu_tanh",
        description="activation of the feed-forward layer. gelu: exact (BERT); gelu_tanh: its tanh form; gated: "
        "multiplied by a second projection: GELU in its tanh form (T5 v1.1, Gemma), SiLU (Llama) or "
        "ReLU",
    )
    positions: Positions = LearnedPositions()
    segments: int = Field(0, ge=0, description="number of segment (token type) embeddings (BERT: 2); 0: none")
    binary_head: bool = Field(
        False,
        description="binary classification head on the first position, for next-sentence or sentence-order "
        "prediction (BERT, ALBERT)",
    )
    embedding_norm: bool = Field(False, description="norm after the sum of embeddings (BERT, BART)")
    embedding_scale: bool = Field(False, description="multiply token embeddings by sqrt(hidden) (Transformer, Gemma)")
    embedding_size: int | None = Field(
        None,
        gt=0,
        description="size of the embeddings where it differs from hidden (ALBERT: 128): a projection maps them to "
        "hidden, and the head's transform back; default: hidden",
    )
    shared_layers: bool = Field(False, description="share one set of weights between all layers of a stack (ALBERT)")
    tie_encoder_decoder: bool = Field(
        False,
        description="share one set of weights between layer i of the encoder and layer i of the decoder, whose "
        "cross-attention is its own (the shared encoder-decoder of T5's study)",
    )
    mask_decoder_layers: int = Field(
        0,
        ge=0,
        description="times that the last layer is applied, with embeddings of absolute positions added to its first "
        "queries, before tokens are predicted (DeBERTa's enhanced mask decoder: 2); 0: once, without them",
    )
    convolution: Literal["gelu", "tanh"] | None = Field(
        None,
        description="activation of a convolution over each token and its two neighbours, which reads what the first "
        "layer reads and is added to its output (DeBERTa v2 xlarge: gelu); default: no convolution",
    )
    mixer: Mixer | None = Field(
        None, description="long convolutions of the monarch_mixer family; default: those of M2-BERT"
    )
    ffn_blocks: int = Field(
        1,
        gt=0,
        description="blocks of the block-diagonal matrices of the feed-forward layer (monarch_mixer; M2-BERT: 4)",
    )
    tie_word_embeddings: bool = Field(True, description="use the token embedding as output projection")
    source_encoder: SourceEncoderShape | None = Field(
        None,
        description="a new encoder that reads tokens of another vocabulary, such as another language's, and whose "
        "output takes the place of the encoder's token embeddings (BART, section 3.4); default: none",
    )
    characters: CharacterShape | None = Field(
        None, description="how a model of characters reads them (CANINE); default: that of its family, or none"
    )
    task_head: TaskHeadShape | None = Field(
        None,
        description="head of a fine-tuned model in place of the vocabulary's logits; default: that of the objective",
    )
    teacher_hidden: int | None = Field(
        None,
        gt=0,
        description="hidden size of the teacher that a learned projection of hidden states leads to; default: that of "
        "distillation.teacher with distillation.hidden_weight, or none",
    )
    cutoffs: list[PositiveInt] = Field(
        [],
        description="first ids of clusters of rarer words in an adaptive softmax (Transformer-XL on WikiText-103: "
        "[20000, 40000, 200000]); default: one softmax over all words",
    )
    final_logit_softcap: float | None = Field(
        None, gt=0, description="cap of the logits: cap * tanh(logits / cap) (Gemma 2); default: none"
    )
    attention_logit_softcap: float | None = Field(
        None,
        gt=0,
        description="cap of attention scores before the softmax: cap * tanh(scores / cap) (Gemma 2); default: none",
    )
    memory_length: int = Field(
        0,
        ge=0,
        description="positions before a row that each layer attends to (mem_len of Transformer-XL); rows of "
        "training then continue each other, in as many lanes as a batch has sequences; 0: none",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after the embedding and each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention probabilities")
    ffn_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout between the two matrices of the feed-forward layer (T5)"
    )
    experts: Experts | None = Field(
        None,
        description="a router and several feed-forward layers, the experts, in place of one (llama); default: none",
    )
    init: Init = NormalInit()
    mup: Mup | None = Field(
        None,
        description="maximal update parametrization: what is tuned at mup.base_width suits this width (docs/mup.md); "
        "default: none",
    )
    attention: Attention = Attention()
    recurrent: Recurrent | None = Field(
        None, description="cells, encoder and attention of a recurrent network (rnn); default: none"
    )
    _finetune: Finetune = PrivateAttr(default_factory=Finetune)

    @model_validator(mode="before")
    @classmethod
    def _characters_of_the_family(cls, tree: Any) -> Any:
        """Families of characters have a shape of them, by default the published one."""
        family = tree.get("family") if isinstance(tree, dict) else None
        if not isinstance(family, str) or family not in CAPABILITIES or not CAPABILITIES[family].characters:
            return tree
        return {**tree, "characters": tree.get("characters") or {}}

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "Model":
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.heads={self.heads}: set model.head_dim"
            )
        if self.kv_heads is not None:
            if self.heads % self.kv_heads:
                raise ValueError(f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}")
            if self.is_encoder_decoder:
                raise ValueError("model.kv_heads is for models of one stack: leave it out for an encoder-decoder")
        return self

    @model_validator(mode="after")
    def _family_has_these_parts(self) -> "Model":
        can = self.capabilities
        if not (can.encoder and can.decoder):
            for key in ("encoder_layers",) if can.characters else ("encoder_layers", "target_length"):
                if getattr(self, key) is not None:
                    raise ValueError(f"model.{key} is for encoder-decoders: leave it out for the {self.family} family")
        if self.encoder_layers == 0 and not can.decoder_alone:
            raise ValueError(
                "model.encoder_layers=0, a decoder alone, is a variant of the t5 family (and rnn), or use gpt"
            )
        if (self.segments or self.binary_head) and not can.fewest_segments:
            raise ValueError(f"model.segments and model.binary_head are BERT's: leave them out for {self.family}")
        if (self.recurrent is not None) != can.recurrent:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.recurrent)
            raise ValueError(
                f"model.recurrent is for the {having} family: leave it out for {self.family}"
                if self.recurrent is not None
                else f"model.family={self.family} is made of recurrent cells: set model.recurrent.cell"
            )
        has_two_widths = (can.masked_head and "embedding_size" not in can.only) or can.recurrent
        if self.embedding_size is not None and not has_two_widths:
            having = " or ".join(
                name for name, other in CAPABILITIES.items() if other.masked_head and "embedding_size" not in other.only
            )
            raise ValueError(
                f"model.embedding_size is for the {having} family, whose head has a transform: leave it out for "
                f"{self.family}"
            )
        if self.mask_decoder_layers and not can.mask_decoder:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.mask_decoder)
            raise ValueError(f"model.mask_decoder_layers is for the {having} family: leave it out for {self.family}")
        if not can.long_convolution and (self.mixer is not None or self.ffn_blocks > 1):
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.long_convolution)
            raise ValueError(
                f"model.mixer and model.ffn_blocks are for the {having} family: leave them out for {self.family}"
            )
        if self.convolution is not None:
            if not can.convolution:
                having = " or ".join(name for name, other in CAPABILITIES.items() if other.convolution)
                raise ValueError(f"model.convolution is for the {having} family: leave it out for {self.family}")
            if self.layers == 1 and self.mask_decoder_layers:
                raise ValueError(
                    f"model.convolution is beside the first layer, which model.mask_decoder_layers="
                    f"{self.mask_decoder_layers} would apply again with model.layers=1: use more layers"
                )
        if self.source_encoder is not None:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.source_encoder)
            if not (can.source_encoder and self.is_encoder_decoder):
                raise ValueError(f"model.source_encoder is for the {having} family: leave it out for {self.family}")
            if self.shared_layers or self.tie_encoder_decoder or self.shares_projection:
                raise ValueError(
                    "model.source_encoder is for models whose layers share no parameters: leave out "
                    "model.shared_layers, model.tie_encoder_decoder and projections that layers share"
                )
            if self.positions.name == "relative":
                raise ValueError(
                    "model.source_encoder has positions of its own, which model.positions=relative gives to two stacks "
                    "alone: use learned or sinusoidal"
                )
        if 0 < self.segments < can.fewest_segments:
            raise ValueError(f"model.segments={self.segments} adds the same to every token: leave it out")
        for key, value in can.only.items():
            if (configured := attrgetter(key)(self)) != value:
                raise ValueError(f"model.{key}={configured} is not in the {self.family} family: leave it out")
        if self.cutoffs and not can.adaptive_softmax:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.adaptive_softmax)
            raise ValueError(f"model.cutoffs is for the {having} family: leave it out for {self.family}")
        if self.memory_length and not can.memory:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.memory)
            raise ValueError(
                f"model.memory_length={self.memory_length} is for the {having} family, whose positions are distances: "
                f"leave it out for {self.family}"
            )
        if self.memory_length and self.norm != "post":
            raise ValueError(
                f"model.memory_length={self.memory_length} keeps what layers read, which norms would change with "
                f"model.norm={self.norm}: use post"
            )
        if self.positions.name not in can.positions:
            suitable = " or ".join(can.positions)
            raise ValueError(
                f"model.positions={self.positions.name} is not in the {self.family} family: use {suitable}"
            )
        return self

    @model_validator(mode="after")
    def _recurrent_sizes_meet(self) -> "Model":
        if self.recurrent is not None:
            self.recurrent.check(self.hidden, self.has_encoder, *self.stacks)
        return self

    @model_validator(mode="after")
    def _characters_are_read_whole(self) -> "Model":
        shape = self.characters
        if shape is None:
            return self
        if not self.capabilities.characters:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.characters)
            raise ValueError(f"model.characters is for the {having} family: leave it out for {self.family}")
        if self.hidden % shape.hashes:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.characters.hashes={shape.hashes}, which embed "
                "a part of it each"
            )
        if self.sequence_length % shape.rate or self.sequence_length < 2 * shape.rate:
            raise ValueError(
                f"model.sequence_length={self.sequence_length} is not a multiple, at least twice, of "
                f"model.characters.rate={shape.rate}: each position of the layers is made of so many characters"
            )
        if self.sequence_length > shape.buckets:
            raise ValueError(
                f"model.sequence_length={self.sequence_length} is more than the model.characters.buckets="
                f"{shape.buckets} positions of the table: shorten it"
            )
        if self.attention != Attention(pattern=[Dense()]):
            raise ValueError(
                "model.attention is dense in the layers of a model of characters, whose first layer has blocks of "
                "model.characters.block: leave model.attention out"
            )
        return self

    @model_validator(mode="after")
    def _cutoffs_are_words(self) -> "Model":
        if self.cutoffs and sorted(set(self.cutoffs)) != self.cutoffs:
            raise ValueError(f"model.cutoffs={self.cutoffs} must grow: each is the first id of a cluster")
        if self.cutoffs and self.vocabulary is not None and self.cutoffs[-1] >= self.vocabulary:
            raise ValueError(
                f"model.cutoffs={self.cutoffs} leaves no word for the last cluster: its first id must be less than "
                f"model.vocabulary={self.vocabulary}"
            )
        return self

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Model":
        if self.encoder_layers == 0 and self.target_length is not None:
            raise ValueError(
                f"model.target_length={self.target_length} does nothing with model.encoder_layers=0: leave it out"
            )
        if self.tie_encoder_decoder and (self.stacks[0] != self.stacks[1] or self.shared_layers):
            raise ValueError(
                "model.tie_encoder_decoder pairs the layers of an encoder and a decoder: give both as many, and "
                "leave out model.shared_layers"
            )
        if isinstance(self.positions, RotaryPositions) and self.dim_per_head % 2:
            raise ValueError(
                f"model.positions=rotary turns pairs of features: a head of {self.dim_per_head} has an odd one"
            )
        scaling = self.positions.scaling if isinstance(self.positions, RotaryPositions) else None
        if isinstance(scaling, NtkScaling) and self.dim_per_head < 4:
            raise ValueError(
                f"model.positions.scaling=ntk makes the last of several wavelengths longer: a head of "
                f"{self.dim_per_head} has one"
            )
        return self

    @model_validator(mode="after")
    def _blocks_divide_it(self) -> "Model":
        if self.long_convolution is None:
            return self
        if not all(isinstance(kind, Dense) for kind in self.attention.kinds):
            raise ValueError(
                f"model.attention.pattern does nothing in the {self.family} family, whose layers have no attention: "
                "leave it out"
            )
        if self.heads != 1:
            raise ValueError(
                f"model.heads={self.heads} counts heads of attention, which the {self.family} family has not: set "
                "model.heads=1"
            )
        if self.ffn_blocks % 2:
            raise ValueError(
                f"model.ffn_blocks={self.ffn_blocks}: half of the blocks make gates and half values, so use an even "
                "number"
            )
        for key, size in (("hidden", self.hidden), ("ffn", self.ffn_dim)):
            if size % self.ffn_blocks:
                raise ValueError(
                    f"model.{key}={size} is not a multiple of model.ffn_blocks={self.ffn_blocks}: use one that is"
                )
        return self

    @model_validator(mode="after")
    def _experts_suit_it(self) -> "Model":
        if self.qk_norm_span != "head" and not (self.qk_norm and self.norm_type == "rms"):
            raise ValueError(
                "model.qk_norm_span=all_heads is of RMS norms of queries and keys: set model.qk_norm=true and "
                "model.norm_type=rms, or leave it out"
            )
        experts = self.experts
        if experts is None:
            return self
        if not self.capabilities.experts:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.experts)
            raise ValueError(f"model.experts is for the {having} family: leave it out for {self.family}")
        if self.bias:
            raise ValueError("model.experts has no biases: set model.bias=false")
        if self.mup is not None and self.mup.base_ffn is not None:
            raise ValueError(
                "model.mup.base_ffn is of one feed-forward layer, and experts have their own size: leave it out, so "
                "that both are in proportion to the width"
            )
        if self.ffn_dropout:
            raise ValueError(
                f"model.ffn_dropout={self.ffn_dropout} is drawn by row and position, and experts see tokens in another "
                "order: leave it out with model.experts"
            )
        if self.shared_layers:
            raise ValueError("model.experts is for layers of their own: leave out model.shared_layers")
        if experts.dense_layers >= self.layers:
            raise ValueError(
                f"model.experts.dense_layers={experts.dense_layers} leaves no layer with experts, of "
                f"model.layers={self.layers}: lower it, or leave out model.experts"
            )
        if experts.ffn is not None and not experts.dense_layers:
            raise ValueError(
                f"model.experts.ffn={experts.ffn} leaves no use for model.ffn, as all layers have experts: set "
                "model.ffn to the size of an expert, or set model.experts.dense_layers"
            )
        return self

    @model_validator(mode="after")
    def _patterns_suit_it(self) -> "Model":
        self.attention.check(self.heads, self.sequence_length, self.has_encoder, self.has_decoder)
        if self.attention.projection is not None and (
            self.positions.name not in ("learned", "sinusoidal") or self.kv_heads is not None
        ):
            raise ValueError(
                "model.attention.pattern: a key of linformer is of all positions: set model.positions to learned or "
                "sinusoidal, and leave out model.kv_heads"
            )
        if self.attention.weighs and (
            self.attention_dropout or self.needs_explicit_scores or self.positions.name in ("relative", "alibi")
        ):
            raise ValueError(
                "model.attention.pattern: first_again counts keys where torch's kernel computes all scores: leave it "
                "out, or model.attention_dropout, model.attention_logit_softcap and positions that change scores"
            )
        return self

    @model_validator(mode="after")
    def _mup_suits_it(self) -> "Model":
        if self.mup is None:
            return self
        if not self.capabilities.mup:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.mup)
            raise ValueError(f"model.mup is for the {having} family: leave it out for {self.family}")
        if self.source_encoder is not None:
            raise ValueError("model.mup is for models of one vocabulary: leave it out with model.source_encoder")
        if self.mup.zero_head and self.tie_word_embeddings:
            raise ValueError(
                "model.mup.zero_head would start the embedding at zero, too: set model.tie_word_embeddings=false"
            )
        if self.embedding_norm and self.mup.input_multiplier != 1:
            raise ValueError(
                f"model.mup.input_multiplier={self.mup.input_multiplier:g} is undone by the norm of "
                "model.embedding_norm: leave it out"
            )
        if self.mup.base_head_dim not in (None, self.dim_per_head):
            kept = "model.qk_norm" if self.qk_norm else f"model.positions={self.positions.name}"
            if self.qk_norm or isinstance(self.positions, RelativePositions | ShawPositions):
                raise ValueError(
                    f"model.mup.base_head_dim={self.mup.base_head_dim} would scale attention scores by another power "
                    f"of the head size than {kept} does: keep heads of one size, and give wider models more of them"
                )
        return self

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

    def trained_by(self, finetune: Finetune) -> "Model":
        """This model in a run with the section `finetune`."""
        model = self.model_copy()
        model._finetune = finetune
        return model

    @property
    def source_model(self) -> "Model":
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
        a score is the sum of. Under `mup` it falls with the head size, not with its root."""
        if isinstance(self.positions, RelativePositions):
            return 1.0
        products = 3 if isinstance(self.positions, DisentangledPositions) else 1
        scale = float((products * self.dim_per_head) ** -0.5)
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
        return self.head_dim or self.hidden // self.heads

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
