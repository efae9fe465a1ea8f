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

    Attributes:
        title: its name in messages.
        readers: its ``Reader`` classes by architecture; each takes a ``ReaderSpec``.
        help: its part in the help of ``engine``; empty if the name of a reader chooses it.
        modules, install: required modules, and the remedy if one is missing.
        libraries: packages whose versions its reads depend on.
        choices: the most texts between which it chooses; None for any number.
        scores: the log-probabilities that it gives.
        generation: the settings of ``generation_config.json`` that it applies; None for all that change logits.
        loads_alone: whether it mistakes memory that other processes allocate during its load for its own.
        stored_bytes: takes a model (``weights.Weights``) and returns the bytes of weights used in stored form, 0 for none;
            refuses unreadable weights. If empty, the engine refuses quantised weights.
        refuse_gpus: takes a ``ReaderSpec`` and refuses its number of GPUs; if empty, a model is on one GPU.
        refuse_memory: takes a ``ReaderSpec`` and refuses a budget for a CPU that lacks room beside the weights.
        prepare: sets up a process before torch is loaded.
    """

    title: str
    readers: Mapping[Architecture, str]
    help: str = ""
    modules: tuple[str, ...] = ()
    install: str = ""
    libraries: tuple[str, ...] = ()
    choices: int | None = None
    scores: tuple[Scores, ...] = ("target", "own")
    generation: Collection[str] | None = None
    loads_alone: bool = False
    stored_bytes: str = ""
    refuse_gpus: str = ""
    refuse_memory: str = ""
    prepare: str = ""


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

    The first group of fields decides the outputs and is part of every read's key; the second only decides speed, memory
    and messages.

    Attributes:
        weights: SHA-256 over the model's files, see ``engine.reading.models.weights.resolve``.
        max_new_tokens: the most tokens that are generated, 1 or more.
        stop: generation ends before the earliest occurrence of a stop string.
        max_input_tokens: longest input in tokens, without generated ones; longer inputs are cut, and counted as
            truncated. 0 for as many as the model's positions allow.
        tail_marker: the beginning of the part of a prompt that must not be cut (the question).
        special_tokens: whether the tokenizer adds special tokens; False if they are in a prompt's text, as in a chat's.
        choices: empty for a reader that writes; else the texts from which it chooses its answer, by the probabilities
            of their first tokens, in one forward pass. A single choice has its probability among all tokens.
        scores: empty for a reader that writes or chooses; ``target`` if the last input of a read is the text to score
            by its log-probability, after the prompt; ``own`` if the reader writes and returns that of its own text.
        thought: the opening and closing tags of a thought before an answer.
        room: tokens for a thought that the prompt begins, generated in addition to the answer's; 0 if it begins none.
        generation: settings of the model's ``generation_config.json`` that apply, as JSON; empty for none.
        executor: the name of the program that reads in the model's place; empty if the model reads.
        code: SHA-256 of the model's Python files, which may run; empty if none may.
        shared_prefix: text that many inputs begin with; its keys and values are computed once, and it is never cut.
        begun: whether nothing but the tokenizer's begin token stands before the passages.
        fused_attention: whether prompts of a decoder-only model go through the flash kernel in our own loops on a CPU.
        api: for a model behind an API, without weights and precision; else None. Bounds on requests decide nothing.
        function: for a reader that is a function, without weights and precision; else None.
        renewals: how often its reads were repeated to replace stored ones.

        parameters: number of the model's parameters; for quantised weights, of the numbers that they are packed in.
        quantised_bytes: bytes of quantised weights in stored form; 0 for weights in ``dtype``.
        name: the user's name for it, in messages and reports.
        not_applied: names of settings of ``generation_config.json`` that would change its outputs but are not applied.
        source: the location of the same weights on a machine without ``path``; the name if empty.
        memory: bytes that an actor may use for weights, activations and cache; 0 means the default.
        threads: CPU threads of an actor; 0 means all that torch sees.
        gpus: how many GPUs of a node hold the model together (tensor parallelism, with vLLM only).
        batch_tokens: the most padded tokens of a batch; 0 for the device's default.
        about: the maker of the reads, as recorded beside them (``engine.reading.identity``); empty if ``weights`` says it.
        earlier: older fingerprints under which the store may have its reads.
        doubts: phrases about other possible makers of stored reads, for messages.
    """

    # Defaults suit a reader without weights, whose precision is unknown.
    weights: str = ""
    architecture: Architecture = "causal"
    dtype: Dtype = "float32"
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    max_input_tokens: int = 0
    path: str = ""
    parameters: int = 0
    name: str
    tail_marker: str = ""
    engine: str = "transformers"  # a name of ``ENGINES``
    special_tokens: bool = True
    choices: tuple[str, ...] = ()
    scores: Scores = ""
    thought: tuple[str, str] = THINK
    room: int = 0
    generation: str = ""
    executor: str = ""
    code: str = ""
    shared_prefix: str = ""
    begun: bool = False
    fused_attention: bool = False
    memory: int = 0
    threads: int = 0
    gpus: int = 1
    batch_tokens: int = 0
    quantised_bytes: int = 0
    not_applied: tuple[str, ...] = ()
    source: str = ""
    api: ApiSpec | None = None
    function: FunctionSpec | None = None
    renewals: int = 0
    about: str = ""
    earlier: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

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

    Attributes:
        output: the text, the choice (``ReaderSpec.choices``) or the scored target; empty for a failed read.
        prompt_tokens: tokens of the prompt, after any cut.
        output_tokens: generated tokens; 0 if the reader chooses; the target's tokens if it scores a target.
        failure: the reason of a failed read; None if it succeeded.
        confidence: for a reader that chooses, the probability of the first choice relative to all
            choices (a single choice: relative to all tokens). For a reader that scores, the probability per token of
            the target or of its own text: exp of the mean log-probability. Else None.
        thought: text before the answer, if the reader thinks; else None.
        seconds: duration of the call if it was a request of its own; None if calls were read together.
        ended: the reason for the end of the output (``Ended``; servers report stop for the first two alike); None if
            unknown, or if the reader chooses or scores.
        mass: total probability of all choices among all tokens, if the reader chooses between several; else None.
    """

    output: str
    prompt_tokens: int
    output_tokens: int
    truncated: bool
    failure: str | None = None
    confidence: float | None = None
    thought: str | None = None
    seconds: float | None = None
    ended: str | None = None
    mass: float | None = None

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
    """Counters of a reader since it was loaded.

    Attributes:
        padded_tokens: tokens computed for the prompts, padding included.
        prompt_tokens: tokens computed without padding; a beginning that several prompts share counts once.
        peak_memory: in bytes, on the device that the reader runs on.
        token_bytes: measured bytes per prompt token; 0 if not measured.
        nanoseconds_ahead: time spent ahead on later calls; a call's part and tokens count when its turn comes.
        alone: 1 if texts are read one at a time, since the model reads the padding of others.
    """

    padded_tokens: int = 0
    prompt_tokens: int = 0
    memory_halvings: int = 0
    peak_memory: int = 0
    token_bytes: int = 0
    retried: int = 0
    changed_servers: int = 0
    unreported: int = 0
    nanoseconds_ahead: int = 0
    alone: int = 0


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
