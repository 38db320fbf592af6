"""Texts that a fine-tuned model writes for the rows of a split, by greedy decoding, and how they compare with the texts
that the rows expect."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.labelled import TextSamples
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.evaluate.decoding.base import GREEDY, DecodeRequest, Stops
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.decoding.prompts import USUAL
from pretrain.evaluate.heldout import heldout_loss
from pretrain.finetune.answers import RowAnswer
from pretrain.finetune.judge import AnsweredSplit
from pretrain.finetune.metric_context import MetricContext
from pretrain.finetune.metrics import check_metric, compute_metric, default_metrics
from pretrain.finetune.text_figures import how_computed, unfit_notes
from pretrain.process import watchdog


@dataclass(frozen=True, kw_only=True)
class TextJudge:
    """Answers rows with a text each."""

    config: RunConfig
    engine: Engine
    dataset: LabelledDataset
    recipe: Recipe
    figures: Sequence[str]

    @property
    def obstacle(self) -> str | None:
        """Why this layout writes no texts, and what to do; None: it does."""
        shards_weights = self.engine.shares_weights and self.config.parallel.zero == 3
        if self.engine.decodes and not shards_weights:
            return None
        return (
            "the answers of the model are not judged: a model with parallel.virtual, parallel.context or, in training, "
            "parallel.zero=3 writes no texts; run the same `pretrain finetune` without them, which judges the finished "
            "run"
        )

    def __call__(self, split: LabelledSplit) -> AnsweredSplit:
        """Writes an answer to every row of a split, each once on any layout, and computes the figures. A prompt that
        leaves no space for an answer is answered by the empty text. Collective; call it where there is no `obstacle`.
        """
        samples = self.recipe.samples(self.dataset, split)
        assert isinstance(samples, TextSamples), "the objective asks for texts"
        scored = heldout_loss(self.engine, self.dataset, self.recipe, split=split)
        requests = [self._request(samples, number) for number in range(self.dataset.num_rows(split))]
        posed = [request for request in requests if request is not None]

        def progress(done: str) -> None:
            watchdog.kick(f"answering the {split} rows, {done}")

        progress("0")
        stops = Stops(samples.answer_ends)
        decoded = decode(self.engine, posed, GREEDY, stops, progress=progress) if posed else []
        texts, ended = iter(decoded), Counter[str]()
        answers = []
        for number, request in enumerate(requests):
            text = ""
            if request is not None:
                (generated,) = next(texts)
                ended[generated.ended] += 1
                text = _text(self.dataset.tokenizer(), generated.tokens)
            answers.append(RowAnswer(number=number, predicted=text, expected=samples.references(number)))
        predicted, expected = [one.predicted for one in answers], [one.expected for one in answers]
        context = MetricContext.of(self.config.evaluate)
        return AnsweredSplit(
            heldout=scored,
            figures={name: compute_metric(name, predicted, expected, context) for name in self.figures},
            predictions=answers,
            notes=(
                *_notes(split, cut=ended["longest"], too_long=len(requests) - len(posed)),
                *unfit_notes(self.figures, predicted, expected, context),
            ),
            how_computed=how_computed(self.figures, predicted, expected, context),
        )

    def _request(self, samples: TextSamples, number: int) -> DecodeRequest | None:
        """Request for an answer to a row; None if the row leaves no space for one."""
        model, new_tokens = self.config.model, self.config.evaluate.new_tokens or USUAL
        reads, start = samples.question(number, new_tokens)
        space = self.recipe.target_length if model.is_encoder_decoder else model.sequence_length - len(reads)
        longest = min(new_tokens, space)
        return DecodeRequest(reads.tolist(), start, longest, str(number)) if longest > 0 else None


def make_text_judge(
    config: RunConfig, engine: Engine, dataset: LabelledDataset, recipe: Recipe, figures: Sequence[str]
) -> TextJudge:
    """The judge of a source of a run whose rows are answered by texts, by `figures`; empty: the objective's. Raises
    ConfigError for figures that do not suit its objective."""
    objective = config.objective.name
    figures = figures or default_metrics(objective)
    for name in figures:
        check_metric(name, objective, MetricContext.of(config.evaluate))
    return TextJudge(config=config, engine=engine, dataset=dataset, recipe=recipe, figures=figures)


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of an answer, without special ids and without spaces around it."""
    special = {tokenizer.end_of_text, tokenizer.begin_of_text, *tokenizer.special_pieces().values()}
    return tokenizer.decode([i for i in ids if i < tokenizer.vocabulary_size and i not in special]).strip()


def _notes(split: LabelledSplit, *, cut: int, too_long: int) -> tuple[str, ...]:
    notes = []
    if cut:
        notes.append(
            f"{cut:,} answers to the {split} rows reached the most tokens of an answer and are cut there: raise "
            "evaluate.new_tokens if their rows expect longer ones"
        )
    if too_long:
        notes.append(
            f"{too_long:,} prompts of the {split} rows leave no space for an answer within the positions of the model, "
            "and are answered by the empty text"
        )
    return tuple(notes)
