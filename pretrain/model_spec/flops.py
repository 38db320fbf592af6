"""Model FLOPs: what the training of a model computes, whatever its layout and kernels. No torch."""

from pretrain.config.model import Model
from pretrain.model_spec.gradients import LayerGradients, ModelGradients, model_gradients
from pretrain.model_spec.mtp import mtp_depths
from pretrain.model_spec.row_flops import RowFlops
from pretrain.model_spec.slots import feed_forward_matrices, specs_apart


def training_flops_per_token(model: Model) -> float:
    """`TrainingFlops` per token of a full sequence (for an encoder-decoder, per token of its input)."""
    return TrainingFlops(model).row(model.sequence_length, model.label_length) / model.sequence_length


class TrainingFlops(RowFlops):
    """Floating-point operations of the forward and backward pass of rows. Where everything is trained, those of a full
    row are

        3 * (2 * (layers * layer weights + vocabulary * hidden) + sum over layers of 4 * keys * heads * head width)

    per token. A multiply-add is two operations; backward is twice forward (Kaplan et al. 2020, arXiv 2001.08361,
    section 2.1; the attention term as in Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Unlike both, `keys`
    counts only the keys that a query attends to: half the sequence under a causal mask, fewer in a band. These are
    model FLOPs, independent of the kernels: recomputed activations, padding, norms and softmax are not counted. Layers
    of an encoder-decoder, and its output layer, count once per position that they process. Vectors of distances
    (Shaw's, DeBERTa's) count as additional keys; Transformer-XL's, which add nothing to values, as half of one each.
    Shared layers count each time they are computed, and a source encoder's as the encoder's. Factorized embeddings
    count with their own width in place of `hidden`, and so do their projections. The mask decoder counts as its uses of
    the last layer, whose keys and values are those of one use, a convolution as three products of hidden * hidden. Keys
    and values of memory, made again in each step, count too; memory has no gradient. Of experts, those count that a
    token passes through, and the router. Layers that read fewer positions than a row has count for these, and what
    is around them as its part says (`NetworkPart.multiply_adds`).

    Layers without attention have no term of keys: what they have in its place counts as its part says. Block-diagonal
    matrices count with the values that they have.

    Where a part is trained (`finetune`), the product that gives a weight's gradient counts for trained weights alone,
    and the one that gives an input's gradient where something below is trained. LoRA's matrices and adapters count as
    matrices of their own. Layers that join later (`finetune.unfreeze_steps`) count from the first step, as they are
    computed.

    Modules that predict further tokens count at every position, each with its projection, a layer and the output layer.

    Recurrent layers count as their part says.
    """

    def __init__(self, model: Model) -> None:
        gradients = model_gradients(model)
        super().__init__(model, specs_apart(model), (1 + 2 * gradients.has_embedding, 1 + 2 * gradients.head_input))
        self._decoder = self._last_layer_again(gradients)
        self._head = self._head_work(gradients)
        if model.recurrence is not None:  # whose layers its part counts
            return
        scores, depth = model.heads * (model.dim_per_head + model.value_dim), 0
        source_layers = 0 if model.front_encoder is None else model.front_encoder.layers
        every = [(0, number, gradients.source_layer) for number in range(source_layers)]
        for stack, layers in enumerate(model.stacks):
            every += [(stack, number, gradients.layers[depth + number]) for number in range(layers)]
            depth += layers
        for stack, number, gradient in every:
            passes = (1 + 2 * ("core" in gradient.inputs)) * model.capabilities.self_attention
            pattern = model.attention.layer_pattern(number)
            pairs = self._of_pair[stack]
            pairs[pattern] = pairs.get(pattern, 0.0) + passes * scores
            self._of_distance[stack] += passes * scores
            keys = 2 * model.num_kv_heads * model.dim_per_head
            self._of_memory += model.memory_length * model.hidden * keys * (1 + ("qkv" in gradient.weights))
            crosses = bool(stack) and model.is_encoder_decoder
            self._of_position[stack] += self._layer(gradient, crosses, number)
            if crosses:
                for of_matrix in (self._linear, self._update):
                    self._of_encoder_position += of_matrix(gradient, "cross_kv", model.hidden, keys)
                self._of_cross_pair += (1 + 2 * ("cross_core" in gradient.inputs)) * scores
        self._count_further_predictions(gradients)
        if model.embedding_size is not None:
            passes = 1 + gradients.embedding_projection + gradients.has_embedding
            self._embedding = float(passes * model.embedding_size * model.hidden)
        beside_first = sum(part.positions_beside_first(model) for part in specs_apart(model))
        if beside_first:
            passes = 1 + gradients.has_embedding + ("qkv" in gradients.layers[0].weights)
            self._embedding += passes * beside_first * model.hidden * model.hidden

    def _count_further_predictions(self, gradients: ModelGradients) -> None:
        """Counts the modules of `model.mtp`, whose products all have both gradients: of each its projection, a layer,
        and the head once more."""
        model, pairs = self._model, self._of_pair[1]
        of_logits = self._head
        for depth in mtp_depths(model):
            number = model.layers + depth
            self._of_position[1] += self._layer(gradients.layers[-1], False, number) + 3 * 2 * model.hidden**2
            pattern = model.attention.layer_pattern(number)
            pairs[pattern] = pairs.get(pattern, 0.0) + 3 * model.heads * (model.dim_per_head + model.value_dim)
            self._head += of_logits

    def _layer(self, gradient: LayerGradients, crosses: bool, number: int) -> float:
        """Multiply-adds of the matrices of a stack's layer `number` for each of its positions, without those on an
        encoder's."""
        model = self._model
        hidden, queries = model.hidden, model.heads * model.dim_per_head
        first, second = feed_forward_matrices(model, number)
        sizes = {"projection": (model.heads * model.value_dim, hidden), "fc1": first, "fc2": second}
        if model.experts is not None and model.has_experts(number):  # whose router is beside their first matrices
            sizes["fc1"] = hidden, sizes["fc1"][1] + model.experts.count
        if crosses:
            sizes |= {"cross_q": (hidden, queries), "cross_projection": (queries, hidden)}
        found = sum(self._linear(gradient, "qkv", *size) for size in model.query_key_value_matrices)
        found += sum(self._linear(gradient, name, *size) for name, size in sizes.items())
        matrices = 1
        if model.experts is not None and model.has_experts(number):
            matrices = model.experts.top_k + (model.experts.shared > 0)
            sizes["fc1"] = hidden, (2 if model.gated else 1) * model.active_ffn_dim(number)
        for name, (inputs, outputs) in sizes.items():  # each expert reads all hidden states, and makes all
            reads, makes = (matrices if name == of_experts else 1 for of_experts in ("fc1", "fc2"))
            found += self._update(gradient, name, reads * inputs, makes * outputs)
        found += sum(self._update(gradient, "qkv", *size) for size in model.query_key_value_matrices)
        if model.finetune.adapters is not None:  # of which every matrix and input has a gradient, or nearly
            found += 3 * (2 + crosses) * 2 * hidden * model.finetune.adapters.size
        return found

    def _linear(self, gradient: LayerGradients, name: str, inputs: int, outputs: int) -> float:
        """Multiply-adds of a linear layer for each position."""
        return float((1 + (name in gradient.inputs) + (name in gradient.weights)) * inputs * outputs)

    def _update(self, gradient: LayerGradients, name: str, inputs: int, outputs: int) -> float:
        """Multiply-adds of LoRA beside a linear layer for each position."""
        lora = self._model.finetune.lora
        if lora is None or name not in lora.targets:
            return 0.0
        return float(lora.rank * ((2 + (name in gradient.inputs)) * inputs + 3 * outputs))

    def _last_layer_again(self, gradients: ModelGradients) -> tuple[float, float]:
        """Multiply-adds of further uses of the last layer: for each position, and for each pair of query and key."""
        model = self._model
        if not model.last_layer_uses:
            return 0.0, 0.0
        gradient, uses = gradients.layers[-1], model.last_layer_uses - 1
        keys = 2 * model.hidden * model.num_kv_heads * model.dim_per_head
        passes = 1 + ("qkv" in gradient.inputs) + ("qkv" in gradient.weights)
        of_pair = (1 + 2 * ("core" in gradient.inputs)) * 2 * model.heads * model.dim_per_head
        number = model.stacks[0] - 1
        return uses * (self._layer(gradient, False, number) - passes * keys), uses * float(of_pair)

    def _head_work(self, gradients: ModelGradients) -> float:
        """Multiply-adds of logits or answers, and of a matrix before them, for each position with a label."""
        model, head = self._model, 0
        before = 1 + gradients.transform + gradients.head_input
        if model.task_head is not None:
            transforms = model.has_pooler or model.task_head.kind == "span"
            passes = 1 + gradients.answers + (gradients.head_input or (transforms and gradients.transform))
            head += model.hidden * model.task_head.trained_outputs * passes + transforms * before * model.hidden**2
        if model.has_vocabulary_logits:
            transforms = model.capabilities.masked_head
            passes = 1 + gradients.logits + (gradients.head_input or (transforms and gradients.transform))
            head += model.output_rows * model.embedding_dim * passes
            head += transforms * before * model.hidden * model.embedding_dim
        return float(head)
