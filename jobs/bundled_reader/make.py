"""Making the bundled reader: its start, the phases of its training, and what it can do at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from engine.reading.plan import INPUTS
from engine.reading.readers import load
from engine.sources.articles.article import Article
from engine.sources.io.folders import Folder
from engine.sources.passages.cut import passages
from engine.tables import DOC_IDS, QUERY_ID, TEXT
from engine.training import dev
from engine.training.examples import Examples, Readings
from engine.training.settings import Precision, Recipe
from engine.training.start import Start, specify_start
from engine.training.train import Plan, fetch_model, train
from jobs.bundled_reader import lists as made
from jobs.bundled_reader.drills import Drill, Drills
from jobs.bundled_reader.text import Asked, Part, asked, parts
from jobs.bundled_reader.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from engine.training.checkpoints import OnProgress

TOKENS = 8192
# Passages of the lists that the reader is tested with.
LISTED = 10
# How often each phase is evaluated, and on how many questions.
_EVALUATIONS, _DEVELOPMENT = 6, 300


@dataclass(frozen=True)
class Size:
    """The sizes of a T5: its width; layers of the encoder and the decoder."""

    width: int
    encoder: int = 5
    decoder: int = 2


# By millions of parameters, nearly.
SIZES: dict[str, Size] = {"2m": Size(128), "5m": Size(192), "8m": Size(256)}


@dataclass(frozen=True)
class Phase:
    """A part of the training.

    Attributes:
        name: of the folder of its checkpoints.
        steps: how many.
        recipe: its batch and its learning rate; whatever else it has.
        drills: the share of each kind; None for made-up questions with lists.
        lengths: of these lists, one drawn for each.
    """

    name: str
    steps: int
    recipe: Recipe
    drills: Mapping[Drill, float] | None = None
    lengths: tuple[int, ...] = ()

    def scaled(self, hours: float) -> Phase:
        """The phase in a training of so many hours; as it stands, it is that of one."""
        return replace(self, steps=max(1, round(self.steps * hours)))

    def with_precision(self, precision: Precision | None) -> Phase:
        """The phase in another arithmetic; None for the machine's own."""
        return replace(self, recipe=replace(self.recipe, precision=precision))


_USUAL = Recipe(
    k=1,
    epochs=1,
    batch=32,
    learning_rate=5e-4,
    weight_decay=0.01,
    checkpoint_every=100,
    gradient_checkpointing=False,
)
PHASES = (
    Phase("spans", 250, _USUAL, drills={"restore": 0.8, "denoise": 0.1, "copy": 0.1}),
    Phase("short", 600, _USUAL, drills={"short": 0.7, "restore": 0.25, "copy": 0.05}),
    Phase("passages", 1500, _USUAL, drills={"passage": 0.9, "restore": 0.1}),
    Phase(
        "lists",
        600,
        replace(_USUAL, k=10, batch=8, learning_rate=2e-4),
        lengths=(1, 1, 2, 4, 6, 10),
    ),
)


@dataclass(frozen=True, eq=False)
class Text:
    """The articles in parts.

    Attributes:
        articles: of each part.
        corpora: the passages of each part.
    """

    articles: Mapping[Part, Sequence[Article]]
    corpora: Mapping[Part, pl.DataFrame]

    @property
    def corpus(self) -> pl.DataFrame:
        """The passages of all parts."""
        return pl.concat([self.corpora[part] for part in ("train", "dev", "test")])


def in_parts(articles: Iterable[Article]) -> Text:
    """Articles and their passages, apart for training, development and test."""
    known = list(articles)
    part = parts(article.title for article in known)
    names: tuple[Part, ...] = ("train", "dev", "test")
    split = {name: [one for one in known if part[one.title] == name] for name in names}
    return Text(split, {name: passages(split[name]) for name in names})


def make_start(
    text: Text, size: Size, directory: Path, seed: int, *, pretrained: bool = False
) -> None:
    """Write what training starts from: a tokenizer, a configuration, and weights that can look things up.

    Args:
        text: whose training part the tokenizer is trained on.
        size: of the model.
        directory: an empty one.
        seed: of the weights.
        pretrained: whether tokens begin with what they mean to the bundled encoder.
    """
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    from jobs.bundled_reader.initial import HEADS, PASSAGE, QUESTION, arrange, describe
    from jobs.bundled_reader.pretrained import meanings

    # The prompt's words, often enough that each becomes a token.
    prompt = ": ".join((QUESTION, *PASSAGE)) * len(text.articles["train"])
    train_tokenizer([*(one.text for one in text.articles["train"]), prompt], TOKENS, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=size.width,
        d_ff=4 * size.width,
        d_kv=size.width // HEADS,
        num_layers=size.encoder,
        num_decoder_layers=size.decoder,
        num_heads=HEADS,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    tokens = describe(tokenizer, text.corpora["train"][TEXT])
    known = meanings(tokenizer, size.width // 2) if pretrained else None
    arrange(model, tokens, torch.Generator().manual_seed(seed), known)
    model.save_pretrained(directory)


@dataclass(frozen=True)
class Point:
    """Of the curve of a training.

    Attributes:
        phase: its name.
        step: of the phase.
        examples: of all phases until then.
        tokens: of the encoder, of all phases until then, without padding.
        dev: exact match on made-up questions of the development articles, each with its passage alone.
    """

    phase: str
    step: int
    examples: int
    tokens: int
    dev: float


class Trained(NamedTuple):
    """What a phase came to: its evaluations, all its examples and encoder tokens, and its arithmetic."""

    points: list[Point]
    examples: int
    tokens: int
    precision: str


def run_phase(
    phase: Phase, start: Path, text: Text, folder: Folder, seed: int, on_progress: OnProgress
) -> Trained:
    """Train from a directory on; the model is then in the folder, and ``fetch_model`` takes it from there.

    What is kept is the model that answers the most questions on the development articles; or, of a phase
    without any questions, the last.

    Args:
        phase: what is trained, and how.
        start: a directory that training starts from.
        text: the articles.
        folder: of the checkpoints; taken up again.
        seed: of what is drawn.
        on_progress: told after each step.

    Returns:
        The evaluations of the phase, with the examples and tokens of this phase alone, and all of these.
    """
    every = max(1, -(-phase.steps // _EVALUATIONS))
    recipe = replace(phase.recipe, seed=seed, evaluate_every=every)
    examples: Readings | Callable[[Start, Any], Examples]
    if phase.drills is None:
        examples = _questions(text, phase, recipe)
    else:
        examples = _drills(list(asked(text.articles["train"])), phase, recipe)
    begin = specify_start(str(start), augmentation="fid")
    asks = phase.drills is None or phase.drills.keys() & {"short", "passage"}
    plan = Plan(begin, recipe, examples, _development(text, seed) if asks else None)
    progress = train(plan, folder, on_progress=on_progress)
    points = [
        Point(phase.name, one.step, one.step * recipe.batch, one.tokens, one.value)
        for one in progress.evaluations
    ]
    return Trained(points, phase.steps * recipe.batch, progress.tokens, progress.precision)


def _development(text: Text, seed: int) -> Readings:
    corpus = text.corpora["dev"]
    queries = made.made_queries(corpus, _DEVELOPMENT, seed)
    alone = made.lists(queries, {}, (1,), seed)
    return Readings(queries.drop(made.GOLD), alone, corpus)


def _questions(text: Text, phase: Phase, recipe: Recipe) -> Readings:
    """Made-up questions on the training articles, with lists."""
    corpus = text.corpora["train"]
    queries = made.made_queries(corpus, phase.steps * recipe.batch, recipe.seed)
    others = made.others(queries, corpus, max(phase.lengths) - 1)
    listed = made.lists(queries, others, phase.lengths, recipe.seed)
    return Readings(queries.drop(made.GOLD), listed, corpus)


def _drills(
    found: Sequence[Asked], phase: Phase, recipe: Recipe
) -> Callable[[Start, Any], Examples]:
    def make(start: Start, tokenizer: Any) -> Examples:
        assert phase.drills is not None
        return Drills(
            found,
            phase.drills,
            phase.steps * recipe.batch,
            start.prompt,
            tokenizer,
            start.spec.max_input_tokens,
            start.spec.max_new_tokens,
            recipe.seed,
        )

    return make


def deliver(folder: Folder, directory: Path) -> None:
    """Copy the model of a phase that has ended, its weights rounded to bfloat16: half as many bytes.

    Args:
        folder: of the phase's checkpoints.
        directory: made, if it does not exist.
    """
    import torch
    from safetensors.torch import load_file, save_file

    fetch_model(folder, directory)
    weights = {
        name: weight.to(torch.bfloat16)
        for name, weight in load_file(directory / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_bytes())
    (directory / "config.json").write_text(
        json.dumps({**config, "dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8"
    )


@dataclass(frozen=True)
class Ability:
    """Exact match on made-up questions of held-out articles.

    Attributes:
        questions: how many.
        gold: with the passage alone that the question was made of.
        listed: with that passage among ten.
        wrong: with ten passages that lack the answer.
        nothing: without any passage.
    """

    questions: int
    gold: float
    listed: float
    wrong: float
    nothing: float


def ability(model: Path, text: Text, part: Part, count: int, seed: int) -> Ability:
    """What a reader can do on questions that were made of articles that it has never seen.

    Args:
        model: its directory.
        text: the articles; the other passages of lists come from all of them.
        part: whose passages are asked for.
        count: questions at most.
        seed: of the questions.
    """
    queries = made.made_queries(text.corpora[part], count, seed)
    corpus = text.corpus
    others = made.others(queries, corpus, LISTED)
    wrong = pl.DataFrame(
        list(others.items()),
        schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)},
        orient="row",
    )
    alone = made.lists(queries, others, (1,), seed)
    variants = {
        "gold": alone,
        "listed": made.lists(queries, others, (LISTED,), seed),
        "wrong": wrong,
        "nothing": alone.with_columns(pl.lit([], dtype=pl.List(pl.String)).alias(DOC_IDS)),
    }
    start = specify_start(str(model), augmentation="fid")
    reader = load(start.spec)
    found: dict[str, float] = {}
    for name, listed in variants.items():
        wanted = dev.wanted(Readings(queries, listed, corpus), start)
        outputs = reader.read(wanted[INPUTS].to_list())
        found[name] = float(dev.values(wanted, outputs, queries, "em").sum()) / queries.height
    return Ability(questions=queries.height, **found)
