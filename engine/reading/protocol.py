"""The interface of a reader: ``Reader``, ``ReaderSpec`` and ``ReadOutput``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, Literal, Protocol, runtime_checkable

from engine.machine import device
from engine.machine.device import Dtype, weight_bytes
from engine.machine.remote.api_settings import ApiSpec
from engine.messages.wording import as_unicode
from engine.reading.function import FunctionSpec

Augmentation = Literal["in-prompt", "fid"]
# The option of users; auto picks another value by the machines that read and the reads in the store.
EngineChoice = Literal["auto", "transformers", "vllm"]
Architecture = Literal["causal", "encoder-decoder"]
# The text whose log-probability a reader returns: a target from the inputs, or its own answer.
Scores = Literal["", "target", "own"]
# The end of an output: an end token, a stop string, or the token limit.
Ended = Literal["end", "stop", "length"]
# The model type of checkpoints whose cross-attention has a position bias (``engine.reading.models.t5``).
BIASED = "fid-t5"


THINK = ("<think>", "</think>")  # default tags around thoughts; a prompt may set others
UNNAMED = "a function without a name"  # placeholder name of an executor without a name
# Part of every read's key. Raise it with any change of answers: in cutting prompts, ending or cleaning outputs.
READING_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class ReaderEngine:
    """An engine that runs readers: its abilities, and its code as ``module:name`` in ``engine.reading``, imported on use.

    If it has no ``stored_bytes``, it refuses quantised weights; without ``refuse_gpus``, a model is on one GPU.
    """

    title: str  # its name in messages
    readers: Mapping[Architecture, str]  # classes that take a ``ReaderSpec``
    help: str = ""  # its part in the help of ``engine``; empty if the name of a reader chooses it
    modules: tuple[str, ...] = ()  # required ones
    install: str = ""  # the remedy if a module is missing
    libraries: tuple[str, ...] = ()  # packages whose versions its reads depend on
    choices: int | None = None  # the most between which it chooses; None for any number
    scores: tuple[Scores, ...] = ("target", "own")  # the log-probabilities that it gives
    # The settings of ``generation_config.json`` that it applies; None for all that change logits.
    generation: Collection[str] | None = None
    loads_alone: bool = False  # it takes memory that others allocate during its load for its own
    # Takes ``weights.Weights``; returns the bytes of weights used in stored form, or refuses unreadable weights.
    stored_bytes: str = ""
    refuse_gpus: str = ""  # takes a ``ReaderSpec``, and refuses its number of GPUs
    refuse_memory: str = ""  # takes a ``ReaderSpec``, and refuses too small a budget for a CPU
    prepare: str = ""  # sets up a process before torch is loaded


def call(place: str, *arguments: object) -> Any:
    """Call a function or class of a ``ReaderEngine``; None if ``place`` is empty."""
    return resolve_name(f"engine.reading.{place}")(*arguments) if place else None


# By name; engines with a help text are in ``EngineChoice``.
ENGINES: dict[str, ReaderEngine] = {
    "transformers": ReaderEngine(
        title="transformers",
        readers={
            "causal": "models.causal:CausalReader",
            "encoder-decoder": "models.encoder_decoder:EncoderDecoderReader",
        },
        help="the engine's own loops around transformers' models",
        libraries=("torch", "transformers"),
    ),
    "vllm": ReaderEngine(
        title="vLLM",
        readers={"causal": "models.vllm_reader:VllmReader"},
        help="vLLM, for decoder-only readers (installed by 'make gpu', without a GPU by 'make vllm')",
        modules=("vllm",),
        install="run 'make gpu' (without a GPU: 'make vllm')",
        libraries=("torch", "transformers", "vllm"),
        choices=128,  # of so many tokens it gives log-probabilities at most (``logprob_token_ids``)
        generation=("repetition_penalty", "min_new_tokens"),
        loads_alone=True,
        stored_bytes="models.vllm_support:stored_bytes",
        refuse_gpus="models.vllm_support:refuse_uneven",
        refuse_memory="models.vllm_support:cache_memory",
        prepare="models.vllm_support:set_environment",
    ),
    "openai": ReaderEngine(title="a server", readers={"causal": "remote.reader:ApiReader"}),
    "function": ReaderEngine(
        title="a function", readers={"causal": "function_reader:FunctionReader"}, scores=()
    ),
}


def versions(specs: Sequence[ReaderSpec] = ()) -> dict[str, str]:
    """Versions that reads depend on: the engine, ``READING_VERSION``, and the libraries that hold readers' models."""
    used = {name for spec in specs for name in ENGINES[spec.engine].libraries}
    return device.versions(*sorted(used)) | {"READING_VERSION": str(READING_VERSION)}


@dataclass(frozen=True, kw_only=True)
class ReaderSpec:
    """Everything that a process needs to load a reader; sent to every actor.

    Fields that decide the outputs are part of every read's key (``fingerprint``); the others only decide speed, memory
    and messages. Defaults suit a reader without weights, whose precision is unknown.
    """

    weights: str = ""  # SHA-256 over the model's files (``engine.reading.models.weights.resolve``)
    architecture: Architecture = "causal"
    dtype: Dtype = "float32"
    max_new_tokens: int  # the most that are generated, 1 or more
    stop: tuple[str, ...] = ()  # generation ends before the earliest stop string
    # Longest input in tokens; longer inputs are cut, and counted as truncated. 0 for as many as there are positions.
    max_input_tokens: int = 0
    path: str = ""
    parameters: int = 0  # for quantised weights, of the numbers that they are packed in
    name: str  # the user's, in messages and reports
    tail_marker: str = ""  # begins the part of a prompt that must not be cut (the question)
    engine: str = "transformers"  # a name of ``ENGINES``
    special_tokens: bool = True  # the tokenizer's; False if a prompt's text has them, as a chat's
    # Empty for a reader that writes; else the texts from which it chooses its answer, by the probabilities of their
    # first tokens, in one forward pass. A single choice has its probability among all tokens.
    choices: tuple[str, ...] = ()
    # Empty for a reader that writes or chooses; ``target`` if the last input of a read is the text to score by its
    # log-probability, after the prompt; ``own`` if the reader writes and returns that of its own text.
    scores: Scores = ""
    thought: tuple[str, str] = THINK  # the opening and closing tags of a thought before an answer
    room: int = 0  # tokens for a thought that the prompt begins, in addition to the answer's
    generation: str = ""  # settings of ``generation_config.json`` that apply, as JSON
    executor: str = ""  # the program that reads in the model's place; empty if the model reads
    code: str = ""  # SHA-256 of the model's Python files, which may run; empty if none may
    shared_prefix: str = ""  # many inputs begin with it: it is computed once, and never cut
    begun: bool = False  # nothing but the tokenizer's begin token stands before the passages
    fused_attention: bool = False  # prompts go through the flash kernel in our own loops on a CPU
    memory: int = 0  # bytes of an actor for weights, activations and cache; 0 means the default
    threads: int = 0  # CPU threads of an actor; 0 means all that torch sees
    gpus: int = 1  # how many of a node hold the model together (tensor parallelism, vLLM only)
    batch_tokens: int = 0  # the most padded tokens of a batch; 0 for the device's default
    quantised_bytes: int = 0  # of weights in stored form; 0 for weights in ``dtype``
    not_applied: tuple[str, ...] = ()  # names of settings that change outputs, and do not apply
    source: str = ""  # of the same weights on a machine without ``path``; the name if empty
    # For a model behind an API, or a function, without weights and precision.
    api: ApiSpec | None = None
    function: FunctionSpec | None = None
    renewals: int = 0  # how often its reads were repeated to replace stored ones
    about: str = ""  # the maker of the reads (``reading.identity``); empty if ``weights`` says it
    earlier: tuple[str, ...] = ()  # older fingerprints under which the store may have its reads
    doubts: tuple[str, ...] = ()  # phrases about other possible makers of stored reads

    @property
    def is_kept(self) -> bool:
        """Whether its reads go to the store: an executor's name, and a function's version, promise the same answers."""
        if self.executor:
            return self.executor != UNNAMED
        return self.function is None or self.function.reader.is_kept

    @property
    def is_reproducible(self) -> bool:
        """Whether this specification determines the outputs."""
        return self.api is None and self.function is None

    @property
    def writes(self) -> bool:
        """Whether the model writes a text token by token: it neither chooses nor scores a text, and no executor reads."""
        return not self.choices and self.scores != "target" and not self.executor

    @property
    def most_new_tokens(self) -> int:
        """The most tokens that are generated, including a thought; 1 if it chooses."""
        return 1 if self.choices else self.max_new_tokens + self.room

    @property
    def weight_bytes(self) -> int:
        """Bytes of the loaded weights."""
        return self.quantised_bytes or weight_bytes(self.parameters, self.dtype)

    @property
    def model(self) -> tuple[object, ...]:
        """Identity of the loaded model: readers with equal values share weights in a process, or an engine of vLLM.

        Readers behind an API run together: they share the bounds on requests.
        """
        if self.api:
            return self.engine, self.api.settings
        if self.function:
            return self.engine, self.function.reader
        where = (self.path, self.source, self.memory, self.threads, self.gpus)
        return self.weights, self.architecture, self.dtype, self.engine, self.code, *where

    @property
    def fingerprint(self) -> str:
        """Hash of all settings that decide outputs: equal fingerprints give equal outputs for equal inputs."""
        model = [READING_VERSION, self.weights, self.architecture, self.dtype, "greedy"]
        limits = [self.max_new_tokens, self.stop, self.max_input_tokens, self.tail_marker]
        prompt = [self.shared_prefix, self.engine, self.special_tokens, self.choices]
        in_own_loops = self.engine == "transformers" and not self.executor
        # Each counts only where it is set: the hashes of earlier reads stay.
        later = {
            "begun": self.begun,  # earlier reads lost the token if a prompt was cut
            "fused_attention": self.fused_attention and in_own_loops,
            "thought": (self.thought != THINK or self.room) and [*self.thought, self.room],
            "generation": self.writes and self.generation,  # earlier reads ran without it
            "scores": self.scores,
            "executor": self.executor,
            "code": self.code,
            "api": self.api and self.api.decisive,
            "function": self.function and self.function.decisive,
            "renewals": self.renewals,
        }
        decisive = [*model, *limits, *prompt]
        decisive += ({name: value} for name, value in later.items() if value)
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ReadOutput:
    """The result of a read; columns of reads (``plan.OUTPUT_COLUMNS``) are derived from its fields.

    ``confidence`` is a probability. A reader that chooses gives that of the first choice relative to all choices (a
    single choice: relative to all tokens); a reader that scores gives that per token of the target or of its own text:
    exp of the mean log-probability.
    """

    output: str  # the text, the choice or the scored target; empty for a failed read
    prompt_tokens: int  # after any cut
    output_tokens: (
        int  # generated ones; 0 if the reader chooses; the target's if it scores a target
    )
    truncated: bool
    failure: str | None = None  # the reason of a failed read
    confidence: float | None = None
    thought: str | None = None  # text before the answer, if the reader thinks
    seconds: float | None = None  # of a request of its own; None if calls were read together
    # ``Ended``, where servers report stop for the first two alike; None if unknown, or if the reader chooses or scores.
    ended: str | None = None
    mass: float | None = None  # of all choices among all tokens, if it chooses between several

    def __post_init__(self) -> None:
        # Every text enters here, from models, servers and users' code.
        for name in ("output", "failure", "thought"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                object.__setattr__(self, name, as_unicode(text))

    @classmethod
    def failed(cls, reason: str, *, prompt_tokens: int = 0, truncated: bool = False) -> ReadOutput:
        """The output of a failed read."""
        return cls("", prompt_tokens, 0, truncated, failure=reason)


@dataclass
class ReaderStats:
    """Counters of a reader since it was loaded."""

    padded_tokens: int = 0  # computed for the prompts, padding included
    prompt_tokens: int = 0  # without padding; a beginning that several prompts share counts once
    memory_halvings: int = 0
    peak_memory: int = 0  # in bytes, on the device that the reader runs on
    token_bytes: int = 0  # measured per prompt token; 0 if not measured
    retried: int = 0
    changed_servers: int = 0
    unreported: int = 0
    # Time spent ahead on later calls: a call's part and tokens count when its turn comes.
    nanoseconds_ahead: int = 0
    alone: int = 0  # 1 if texts are read one at a time, since the model reads the padding of others


class Reader(Protocol):
    """A language model that turns inputs into short texts.

    A read's input is a list of strings. For in-prompt augmentation they are the pieces of a prompt, in order: the last
    is the read's own, earlier pieces are beginnings shared with other reads (the query, if it precedes the passages).
    For Fusion-in-Decoder there is one string per passage. A target to score (``ReaderSpec.scores``) comes last. Outputs
    come in the order of the inputs; other reads in the same call change only the rounding of batched arithmetic.
    """

    stats: ReaderStats

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]: ...


@runtime_checkable
class LoopReader(Reader, Protocol):
    """A reader whose model runs in a loop of this engine, which is checked before its first read."""

    def prepare(self) -> None:
        """Check once that the loop continues the model (an InputError if not), and measure memory per token."""


# Finishes prepared reads, which may have begun; called once, in the thread that reads.
Finish = Callable[[], list[ReadOutput]]


@runtime_checkable
class StartingReader(Reader, Protocol):
    """A reader that prepares reads, in any thread, while it does others: ``read(inputs)`` is ``start(inputs)()``.

    Attributes:
        reads_ahead: whether reads may begin before the call that finishes them: on vLLM beside earlier reads,
            and on our own loops on a CPU while the last answers of earlier reads are written.
    """

    @property
    def reads_ahead(self) -> bool: ...

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish: ...


def start(reader: Reader, inputs: Sequence[Sequence[str]]) -> Finish:
    """Prepare reads if the reader supports it; errors of the preparation surface when the reads are done."""
    if isinstance(reader, StartingReader):
        with suppress(Exception):
            return reader.start(inputs)
    return partial(reader.read, inputs)
