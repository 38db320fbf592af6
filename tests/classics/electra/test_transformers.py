"""ELECTRA's step of two passes: its loss and every gradient are those of transformers' two models on the same
samples."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_pipeline.tokenizers.specials import Specials
from pretrain.data.synthetic import SyntheticStream
from pretrain.model_spec.generator import PREFIX
from pretrain.objectives.replaced_tokens import ReplacedTokensLoss
from tests.helpers.hf import randomise
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import ROWS, build_engine
from tests.multirank.test_replaced_tokens import VOCABULARY, WEIGHT, replaced_config

SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)


def _parity() -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, float, float]:
    """(each gradient, ours and theirs; our loss; theirs; share of masked tokens that were replaced)."""
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    from pretrain.classics.electra import hf as electra
    from pretrain.interop.hf.links import linear

    config = replaced_config({}, optimizer={"clip_norm": 0.0})
    assert config.generator_model is not None
    engine = build_engine(config)
    randomise(engine)
    state = {name.removeprefix("model/"): part.pieces[0].value.clone() for name, part in engine.state().items()}
    generator_links = list(electra.links(config.generator_model))
    head = [*linear("head.dense", "discriminator_predictions.dense", config.model)]
    head += [*linear("head.detector", "discriminator_predictions.dense_prediction", config.model)]
    model_links = [*electra.encoder_links(config.model), *head]
    of_generator = ElectraForMaskedLM(electra.hf_config(config.generator_model, SPECIALS)).eval()
    of_model = ElectraForPreTraining(electra.hf_config(config.model, SPECIALS)).eval()
    pairs = []  # (our name, link, their name, their parameter, index in the link)
    for prefix, links, theirs in ((PREFIX, generator_links, of_generator), ("", model_links, of_model)):
        named = dict(theirs.named_parameters(remove_duplicate=False))
        for link in links:
            (own,) = link.mcore_names
            ours = prefix + own if prefix + own in state else own  # the tables that both have
            for index, (name, weight) in enumerate(zip(link.hf_names, link.out(state[ours]), strict=True)):
                with torch.no_grad():
                    named[name].copy_(weight)
                pairs.append((ours, link, name, named[name], index))
    engine.keeps_gradients = True
    samples = []
    read = ReplacedTokensLoss.read_samples
    ReplacedTokensLoss.read_samples = lambda self, batch, tokens: (
        samples.append(tokens.clone()) or read(self, batch, tokens)
    )  # type: ignore
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    result = engine.train_step(batch, 0.0, 1)
    ReplacedTokensLoss.read_samples = read  # type: ignore[method-assign]
    tokens, labels = torch.cat(samples), torch.from_numpy(batch.labels)
    assert batch.attention_mask is not None
    assert batch.segments is not None
    shown, asked = torch.from_numpy(batch.attention_mask), torch.from_numpy(batch.loss_mask).bool()
    more = {"attention_mask": shown.long(), "token_type_ids": torch.from_numpy(batch.segments)}
    logits = of_generator(input_ids=torch.from_numpy(batch.tokens), **more).logits
    replaced = (tokens != labels).float()
    found = of_model(input_ids=tokens, **more).logits
    of_replaced = F.binary_cross_entropy_with_logits(found[shown], replaced[shown])
    loss = F.cross_entropy(logits[asked], labels[asked]) + WEIGHT * of_replaced
    loss.backward()
    gradients, compared = engine.gradients(), {}
    sums: dict[str, torch.Tensor] = {}
    for ours, link, name, parameter, index in pairs:
        key = f"{ours}:{index}"
        sums[key] = sums.get(key, 0) + parameter.grad.clone()
        own = link.out(gradients[f"gradient/{ours}"].pieces[0].value)[index].clone()
        if name.endswith("word_embeddings.weight"):
            own[SPECIALS.pad] = sums[key][SPECIALS.pad] = 0  # theirs learns nothing from reading padding
        compared[key] = own.numpy(), sums[key].numpy()
    share = float(replaced[asked].mean())
    return compared, result.loss_sum / result.token_count, loss.item(), share


def test_loss_and_gradients_are_those_of_transformers_models() -> None:
    pairs, loss, expected, share = run_ranks(1, _parity)[0]
    assert loss == pytest.approx(expected, rel=1e-5)
    assert 0.5 < share < 1, "some samples are the original tokens"
    assert len(pairs) > 100
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs.values())
    for name, (ours, theirs) in pairs.items():
        assert np.abs(ours - theirs).max() <= 2e-5 * largest, name
