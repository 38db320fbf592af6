"""One assembly for every family: a stack of encoder layers, of decoder layers, or both, as one pipeline of layers; one
chunk of it.

What travels from layer to layer, and so from stage to stage, is one tensor, the stream (`stream.py`). An encoder layer
changes the encoder's part and hands on the rest; a decoder layer changes the decoder's and reads the encoder's. So a
stage boundary may lie anywhere, the encoder's output reaches every decoder stage, and its gradient comes back summed,
all through megatron-core's own schedules, for which it is a tensor like any other.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from megatron.core.enums import ModelType
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from pretrain.attention.cache import KeyValueCache
from pretrain.config.model import Model
from pretrain.models.embeddings import Embedding, StackEmbedding, StackPart
from pretrain.models.inputs import MicroBatch
from pretrain.models.last_states import JudgeStates, LastAnswers, LastStates
from pretrain.models.layer_inputs import InputsOfLayers, layer_inputs
from pretrain.models.layer_states import JudgeLayers, LayerWatch, watch_layers
from pretrain.models.layers import Final, FinalNorm, LayerInputs, Layers
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network_modules import around_layers
from pretrain.models.network_slots import Named
from pretrain.models.output_linear import Judge
from pretrain.models.outputs import ModelOutputs
from pretrain.models.span_head import SpanHead
from pretrain.models.stream import StreamParts
from pretrain.models.task_head import AnswerHead, DetectorHead

Head = Callable[[Model, MegatronConfig], nn.Module]
"""makes what turns the last layer's output into logits: called with it, [L, B, H], and a `heads.Project`"""
Reads = Callable[[Model, MegatronConfig, StackPart], nn.Module]
"""makes what turns token ids into the stream, called as `Embedding`"""
BeforeHead = Callable[[Model, MegatronConfig, int | None], nn.Module]
"""makes what lies between the layers and the head, built in the chunk of this number: called with the parts of the
stream and the batch, it returns what the head reads, [L, B, H]"""


LayersPart = Callable[[Model, MegatronConfig, int | None, Final, bool], Any]
"""makes the layers of a chunk, called as `Layers` and with the methods of it"""


@dataclass(frozen=True, kw_only=True)
class FamilyParts:
    """Components of the models of a family; everything else about them is in their config."""

    head: Head
    embedding: StackPart = StackEmbedding
    final: Final = FinalNorm
    layers: LayersPart = Layers
    reads: Reads = Embedding
    before_head: BeforeHead | None = None
    layer_inputs: Callable[[Model], InputsOfLayers] = layer_inputs


class Network(LanguageModule):
    """Called with a MicroBatch: the stream for the next stage, or on the last one the `ModelOutputs`."""

    def __init__(
        self, model: Model, megatron: MegatronConfig, parts: FamilyParts, first: bool, last: bool, chunk: int | None
    ) -> None:
        super().__init__(config=megatron)
        self.model, self.vp_stage = model, chunk
        self.pre_process, self.post_process = first, last
        self.share_embeddings_and_output_weights = model.ties_output
        self.model_type = ModelType.encoder_or_decoder  # one pipeline, to megatron-core
        self.position_embedding_type = model.positions.name  # which it reads, looking for its own rotary ones
        self.received: Tensor | None = None
        self.layer_inputs, self.stream_parts = parts.layer_inputs(model), StreamParts(model, self.tp_group.size())
        self.output_stack: Literal["encoder", "decoder"] = "decoder" if model.has_decoder else "encoder"
        self.output_multiplier, self.has_logits = model.output_multiplier, model.has_vocabulary_logits
        self.front_name: str | None = None
        """name of the module that is in front of the embedding; None: there is none"""
        self.further_name: str | None = None
        """name of the module that makes states for further tokens; None: there is none"""
        around = around_layers(model)
        if first:
            of_front = (one.front(model, megatron, parts.embedding, parts.final, chunk) for one in around)
            self.front_name = self._added(of_front)
            self.embedding: Any = parts.reads(model, megatron, parts.embedding)
        # Layers of either stack: megatron-core looks for the name.
        self.decoder = parts.layers(model, megatron, chunk, parts.final, last)
        self.before_head: nn.Module | None = None
        if last and parts.before_head is not None:
            self.before_head = parts.before_head(model, megatron, chunk)
        if last:
            self.further_name = self._added(one.further(model, megatron, parts.final, chunk) for one in around)
        if last and model.teacher_hidden is not None:
            self.teacher_projection = megatron.kernels.linear(model.hidden, model.teacher_hidden)
        if last and model.task_head is not None:
            answers = {"detector": DetectorHead, "span": SpanHead}.get(model.task_head.kind, AnswerHead)
            self.head: nn.Module = answers(model, megatron)
        if last and model.has_vocabulary_logits:
            vocabulary_head = parts.head(model, megatron)
            if model.task_head is None:
                self.head = vocabulary_head
            else:
                self.vocabulary_head = vocabulary_head
            self.output_layer = megatron.kernels.output_linear(
                model.embedding_dim,
                model.padded_vocab_size,
                config=megatron,
                init_method=lambda weight: weight,
                bias=getattr(vocabulary_head, "bias", False),
                gather_output=False,
                skip_weight_param_allocation=first and model.tie_word_embeddings,
            )
        if model.has_vocabulary_logits and (first or last):
            self.setup_embeddings_and_output_layer()

    def _added(self, found: Iterable[Named | None]) -> str | None:
        """Adds the first module that there is, and returns its name."""
        for name, module in filter(None, found):
            self.add_module(name, module)
            return name
        return None

    def set_input_tensor(self, input_tensor: list[Tensor]) -> None:
        """From the stage before: megatron-core's schedules call this."""
        self.received = input_tensor[0]

    def forward(
        self,
        batch: MicroBatch,
        cache: KeyValueCache | None = None,
        judge: Judge | None = None,
        head: bool = True,
        judge_states: JudgeStates | None = None,
        judge_layers: JudgeLayers | None = None,
        judge_mtp: Sequence[Judge] = (),
    ) -> Any:
        """Without its `head`, the last stage returns the stream as the others do. `judge` is handed logits, and so are
        those of `judge_mtp`, one for each further token. `judge_layers` is for one stage alone.
        With a `cache`, `batch` holds the positions that follow those read before.
        Of an encoder-decoder it is the decoder's that are cached; the first call has nothing to decode, and leaves what
        decoder layers read of the encoder."""
        inputs = self._inputs(batch, cache)
        watch: AbstractContextManager[LayerWatch | None] = nullcontext()
        if judge_layers is not None:
            # Before the embedding, whose output is watched too.
            watch = watch_layers(self, range(self.model.layers))
        with watch as watched:
            stream = self.decoder(self._before_layers(batch, inputs), inputs, head)
        if cache is not None and "encoder" in inputs.stream:
            self.decoder.remember(inputs.stream.part(stream, "encoder"), cache)
            return stream
        if not self.post_process or not (head or self.before_head is not None):
            return stream
        hidden = self._predicting(stream, inputs, batch)
        if not head:  # of what lies between the layers and the head
            return stream
        # Before any logits, of which each call of the head keeps the gradients until its backward pass, which is first.
        further = self.get_submodule(str(self.further_name))(hidden, stream, batch, inputs) if judge_mtp else ()
        outputs = self._predict(hidden, batch, judge)
        if judge_states is not None:
            outputs = outputs._replace(judged_states=judge_states(hidden))
        if judge_layers is not None and watched is not None:
            project = None if self.model.teacher_hidden is None else self.teacher_projection
            outputs = outputs._replace(judged_layers=judge_layers(watched.states(project)))
        predicted = (self._predict(one, batch, of) for one, of in zip(further, judge_mtp, strict=True))
        return outputs._replace(judged_mtp=tuple(one.judged for one in predicted))

    def last_states(self, batch: MicroBatch, layers: Sequence[int] = ()) -> Any:
        """The stream for the next stage, or on the last one the `LastStates`, of a fine-tuned model the `LastAnswers`;
        on one stage alone with the states of some `layers`. Without gradients."""
        inputs = self._inputs(batch, None)
        with watch_layers(self, layers) if layers else nullcontext() as watched:
            stream = self.decoder(self._before_layers(batch, inputs), inputs)
        if not self.post_process:
            return stream
        hidden = self._predicting(stream, inputs, batch)
        of_layers = None if watched is None else watched.states()
        if self.model.task_head is not None:
            return LastAnswers(self._answers(hidden, batch), of_layers)
        output: Any = self.output_layer
        shares = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shares else output.weight
        projected: list[LastStates] = []

        def keep(x_LBH: Tensor, finish: Callable[[Tensor], Tensor] = _as_they_are) -> ModelOutputs:
            x_LBH, shared = self._multiplied(x_LBH), self.config.sequence_parallel
            last, before_logits = (gather_from_sequence_parallel_region(x) if shared else x for x in (hidden, x_LBH))
            projected.append(
                LastStates(
                    hidden_LBH=last,
                    projected_LBH=before_logits,
                    weight_VH=weight,
                    bias_V=output.bias,
                    finish=finish,
                    layers=of_layers,
                )
            )
            return ModelOutputs(x_LBH)

        self.head(hidden, keep)
        return projected[0]

    def _before_layers(self, batch: MicroBatch, inputs: LayerInputs) -> Tensor | None:
        """The stream that this chunk's layers read."""
        if not self.pre_process:
            return self.received
        in_place_BSH = None
        if self.front_name is not None and "encoder" in inputs.stream:
            in_place_BSH = self.get_submodule(self.front_name)(batch, inputs)
        embedded: Tensor = self.embedding(batch, inputs.stream, in_place_BSH)
        return embedded

    def _inputs(self, batch: MicroBatch, cache: KeyValueCache | None) -> LayerInputs:
        slices = self.tp_group.size() if self.config.sequence_parallel else 1
        stream = self.stream_parts.call_stream(batch, cache is not None, slices)
        return self.layer_inputs(batch, stream, cache)

    def _predicting(self, stream_PBH: Tensor, inputs: LayerInputs, batch: MicroBatch) -> Tensor:
        """The last layer's output at the positions with a label."""
        if self.before_head is not None:
            between: Tensor = self.before_head(inputs.stream.apart(stream_PBH), batch)
            return between
        stream = self.decoder.output_stream(inputs.stream)
        hidden: Tensor = stream.part(stream_PBH, self.output_stack)
        labels = batch.labels_BL.shape[1] // (self.tp_group.size() if self.config.sequence_parallel else 1)
        if batch.label_positions_BL is not None:
            hidden = hidden.gather(0, batch.label_positions_BL.T[..., None].expand(-1, -1, hidden.shape[-1]))
        elif labels < len(hidden):
            hidden = hidden[-labels:]
        return hidden

    def _multiplied(self, x_LBH: Tensor) -> Tensor:
        """Input of the output projection: the hidden states times the factor of logits."""
        return x_LBH if self.output_multiplier == 1 else x_LBH * self.output_multiplier

    def _predict(self, hidden: Tensor, batch: MicroBatch, judge: Judge | None) -> ModelOutputs:
        if not self.has_logits:
            return ModelOutputs(answers=self._answers(hidden, batch))
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None

        # The weight is named, since hooks of DeepSpeed make a view of each positional tensor: kept for the backward
        # pass, it would keep what was gathered for the forward pass, too.
        def project(x_LBH: Tensor, finish: Callable[[Tensor], Tensor] = _as_they_are) -> ModelOutputs:
            x_LBH = self._multiplied(x_LBH)
            if judge is None:
                return ModelOutputs(finish(self.output_layer(x_LBH, weight=weight)[0]))
            finished: Judge = lambda logits, where: judge(finish(logits), where)  # noqa: E731
            return ModelOutputs(judged=self.output_layer(x_LBH, weight=weight, judge=finished)[0])

        head = self.head if self.model.task_head is None else self.vocabulary_head
        outputs: ModelOutputs = head(hidden, project)
        return outputs if self.model.task_head is None else outputs._replace(answers=self._answers(hidden, batch))

    def _answers(self, hidden: Tensor, batch: MicroBatch) -> Tensor:
        """Answers of a task head."""
        answers: Tensor = self.head(hidden, batch) if isinstance(self.head, SpanHead) else self.head(hidden)
        return answers


def _as_they_are(logits_LBV: Tensor) -> Tensor:
    return logits_LBV
