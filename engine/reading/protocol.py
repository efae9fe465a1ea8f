"""The interface of a reader: ``Reader``, ``ReaderSpec`` and ``ReadOutput``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal, Protocol, runtime_checkable

from engine.machine import device
from engine.machine.device import Dtype, weight_bytes
from engine.machine.remote.api_settings import ApiSpec
from engine.messages.wording import as_unicode
from engine.reading.function import FunctionSpec

Augmentation = Literal["in-prompt", "fid"]
# What a user asks for; auto is one of the others, by the machines that read, and by the reads that the store has.
EngineChoice = Literal["auto", "transformers", "vllm"]
Architecture = Literal["causal", "encoder-decoder"]
# Of what a reader gives the log-probability: of a target that it is given, or of the answer that it writes.
Scores = Literal["", "target", "own"]
# What ended an output: an end token, a string that ends answers, or the most tokens that it may have.
Ended = Literal["end", "stop", "length"]
# The model type of checkpoints whose cross-attention has a position bias (``engine.reading.models.t5``).
BIASED = "fid-t5"


# What thoughts begin and end with, unless a prompt says otherwise.
THINK = ("<think>", "</think>")
# Stands for the name of an executor that has none.
UNNAMED = "a function without a name"
# Part of every read's key. Raise it with any change that makes a reader answer differently: how prompts
# are cut, where output ends, how it is cleaned.
READING_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class ReaderEngine:
    """What runs readers: what it can do, and its code, ``module:name`` in ``engine.reading``, imported when it is used.

    Attributes:
        title: its name in messages.
        readers: its classes of ``Reader``, made of a ``ReaderSpec``, by the architectures that it runs.
        help: its part in the help of ``engine``; empty if the name of a reader chooses it.
        modules, install: what must be installed, and the remedy if it is not.
        libraries: packages whose versions its reads depend on.
        choices: the most texts between which it chooses; None for any number.
        scores: the log-probabilities that it gives.
        generation: the settings of ``generation_config.json`` that it applies; None for all that change logits.
        loads_alone: whether it takes memory that others load into meanwhile for its own.
        stored_bytes: of a model (``weights.Weights``), the bytes of weights that it uses as they are stored, 0 for none;
            refuses those that it cannot read. Without it quantised weights are refused.
        refuse_gpus: of a ``ReaderSpec``, refuses its number of GPUs; without it a model is on one.
        refuse_memory: of a ``ReaderSpec``, refuses a budget for a CPU that lacks room beside the weights.
        prepare: sets a process up, before torch is loaded.
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


def call(place: str, *given: object) -> Any:
    """Call a function or class of a ``ReaderEngine``; None if there is none."""
    return resolve_name(f"engine.reading.{place}")(*given) if place else None


# By name; those with a help are in ``EngineChoice``.
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
    """The versions that reads depend on: of the engine, of reading, and of the libraries that hold readers' models."""
    used = {name for spec in specs for name in ENGINES[spec.engine].libraries}
    return device.versions(*sorted(used)) | {"READING_VERSION": str(READING_VERSION)}


@dataclass(frozen=True, kw_only=True)
class ReaderSpec:
    """Everything that a process needs to load a reader; sent to every actor.

    The first group decides what the outputs are and is part of every read's key; the second only
    decides how fast they come and in how much memory.

    Attributes:
        weights: SHA-256 over the model's files, see ``engine.reading.models.weights.resolve``.
        max_new_tokens: the most tokens that are generated, 1 or more.
        stop: generation ends before the first of these strings.
        max_input_tokens: longest input in tokens, without those generated; longer ones are cut
            and counted as truncated. 0 for as many as the model's positions allow.
        tail_marker: what the part of a prompt that must not be cut begins with (the question).
        special_tokens: whether the tokenizer adds its own (a begin-of-text token); False where the
            prompt has them in its text, as chat templates do.
        choices: empty for a reader that writes; else the texts from which it chooses its answer, by the
            probabilities of their first tokens, in one forward pass without decoding. The probability
            of a single choice is taken among all tokens.
        scores: empty for a reader that writes or chooses; ``target`` where the last of a read's inputs is no
            part of the prompt, but the text whose log-probability is asked for; ``own`` where it writes, and
            gives the log-probability of what it wrote.
        thought: what a thought before an answer begins and ends with.
        room: tokens that are generated beside those of the answer, for the thought that the prompt begins; 0 where
            it begins none.
        generation: settings of the model's ``generation_config.json`` that are applied to what it writes, as JSON;
            empty for none.
        executor: the name of the program that reads in the model's place (``engine.reading.backends``);
            empty where the model reads.
        code: SHA-256 of the Python files of the model, which may run (``engine.machine.model_files``);
            empty where none may.
        parameters: how many the model has; of quantised weights, the numbers that they are packed in.
        quantised_bytes: what quantised weights take as they are stored; 0 for weights in ``dtype``.
        name: what the user called it, for messages and reports.
        not_applied: names of settings of ``generation_config.json`` that would change what it writes, and do not.
        source: where the same weights are found on a machine without ``path``; the name if empty.
        shared_prefix: text that many inputs begin with; its keys and values are computed once, and
            it is never cut. (In the first group.)
        begun: whether nothing but the tokenizer's begin token stands before the passages. (In the first
            group.)
        fused_attention: whether prompts of a decoder-only model go through the flash kernel in the engine's own loops on a CPU.
            (In the first group.)
        memory: bytes that one actor may use for weights, activations and cache; 0 means the default.
        threads: CPU threads of one actor; 0 means all that torch sees.
        gpus: how many GPUs of a node hold the model together (tensor parallelism, with vLLM only).
        batch_tokens: the most padded tokens of a batch; 0 for the device's default.
        api: of a model behind an API, which has neither weights nor precision; None for all others. (In the
            first group, but for the bounds on what is asked.)
        function: of a reader that is a function, which has neither weights nor precision; None for all others.
            (Its name and version are in the first group.)
        renewals: how often its reads were made anew. (In the first group.)
        about: who makes them, as it is kept beside them (``engine.reading.identity``); empty where ``weights`` says it.
        earlier: fingerprints under which the store may have reads of it from before.
        doubts: about stored reads, what they were made by.
    """

    # By default those of a reader without weights, of which nobody knows the precision.
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
        """Whether its reads go to the store: a user's executor must have a name, and a user's function a version,
        since nothing else says whether its reads are those that it would do again.
        """
        if self.executor:
            return self.executor != UNNAMED
        return self.function is None or self.function.reader.is_kept

    @property
    def is_reproducible(self) -> bool:
        """Whether all that decides the outputs is known here."""
        return self.api is None and self.function is None

    @property
    def writes(self) -> bool:
        """Whether the model writes a text token by token: it neither chooses nor scores one, and nobody else reads."""
        return not self.choices and self.scores != "target" and not self.executor

    @property
    def most_new_tokens(self) -> int:
        """Tokens that are generated at most, those of a thought included; 1 where it chooses."""
        return 1 if self.choices else self.max_new_tokens + self.room

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take where the model is loaded."""
        return self.quantised_bytes or weight_bytes(self.parameters, self.dtype)

    @property
    def model(self) -> tuple[object, ...]:
        """Readers with equal ones can run on weights that a process holds once, on vLLM in one engine.

        Readers behind an API are asked together: they share the bounds on what is asked.
        """
        if self.api:
            return self.engine, self.api.settings
        if self.function:
            return self.engine, self.function.reader
        where = (self.path, self.source, self.memory, self.threads, self.gpus)
        return self.weights, self.architecture, self.dtype, self.engine, self.code, *where

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the outputs: equal fingerprints give equal outputs for equal inputs."""
        decisive = [
            READING_VERSION,
            self.weights,
            self.architecture,
            self.dtype,
            "greedy",
            self.max_new_tokens,
            self.stop,
            self.max_input_tokens,
            self.tail_marker,
            self.shared_prefix,
            self.engine,
            self.special_tokens,
            self.choices,
        ]
        if self.begun:  # earlier reads lost the token where a prompt was cut
            decisive.append({"begun": True})
        if self.fused_attention and self.engine == "transformers" and not self.executor:
            decisive.append({"fused_attention": True})
        if self.thought != THINK or self.room:
            decisive.append({"thought": [*self.thought, self.room]})
        if self.generation and self.writes:  # earlier reads were done without
            decisive.append({"generation": self.generation})
        if self.scores:
            decisive.append({"scores": self.scores})
        if self.executor:  # without one, reads are found under the hash that they always had
            decisive.append({"executor": self.executor})
        if self.code:
            decisive.append({"code": self.code})
        if self.api:
            decisive.append({"api": self.api.decisive})
        if self.function:
            decisive.append({"function": self.function.decisive})
        if self.renewals:
            decisive.append({"renewals": self.renewals})
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ReadOutput:
    """What one read gave.

    The one definition of these fields: the columns of reads (``plan.OUTPUT_COLUMNS``) are derived from it.

    Attributes:
        output: the text; empty for a failed read. Where the reader chooses between given answers
            (``ReaderSpec.choices``), the one that it chose; where it scores a target, that.
        prompt_tokens: tokens of the prompt, after any cut.
        output_tokens: tokens generated; 0 where the reader chooses; of a target, its tokens.
        failure: why the read could not be done; None for a read that succeeded.
        confidence: where the reader chooses, the probability of the first choice, over those of all
            choices (of a single one, over those of all tokens). Where it scores, the probability by token of
            the target, or of what it wrote: exp of the mean log-probability. Else None.
        thought: what the reader wrote before its answer, where it thinks; else None.
        seconds: what this call took, where it was a request of its own; None where calls were read together.
        ended: what ended the output (``Ended``; a server does not tell the first two apart, and says stop); None where
            nobody says, or where it chooses or scores.
        mass: where the reader chooses between several, the probability of all of them together, among all tokens;
            else None.
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
        # Here every text of a reader enters, whoever wrote it.
        for name in ("output", "failure", "thought"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                object.__setattr__(self, name, as_unicode(text))

    @classmethod
    def failed(cls, reason: str, *, prompt_tokens: int = 0, truncated: bool = False) -> ReadOutput:
        """The output of a read that could not be done."""
        return cls("", prompt_tokens, 0, truncated, failure=reason)


@dataclass
class ReaderStats:
    """Counters of one reader since it was loaded.

    Attributes:
        padded_tokens: tokens computed for the prompts, padding included.
        prompt_tokens: those without padding; what several prompts share counts once.
        peak_memory: in bytes, on the device that the reader runs on.
        token_bytes: measured bytes per prompt token; 0 where they were not measured.
        nanoseconds_ahead: spent on reads of calls that had not come to their turn, less those of calls that have: their
            tokens count in their turn, too.
        alone: 1 where texts are read one at a time, since the model reads the padding of others.
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

    A read's input is a list of strings. For in-prompt augmentation they are the pieces of one prompt,
    in order: the last is the read's own, those before it are what other reads begin with too (the
    query, where it precedes the passages). For Fusion-in-Decoder there is one per passage. Where a target is
    scored (``ReaderSpec.scores``), it is the last, behind these. Outputs come in the order of the inputs and do
    not depend on what else is in the same call, up to the rounding of batched arithmetic.
    """

    stats: ReaderStats

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]: ...


@runtime_checkable
class LoopReader(Reader, Protocol):
    """A reader whose model is run by a loop of the engine's own, which is checked before its first read."""

    def prepare(self) -> None:
        """Check that the loop continues the model, and measure what tokens take; once, or with the first read.

        Raises:
            InputError: it does not, or the model cannot be run.
        """


# Does reads that were prepared, and perhaps begun; called once, in the thread that reads.
Finish = Callable[[], list[ReadOutput]]


@runtime_checkable
class StartingReader(Reader, Protocol):
    """A reader that prepares reads, in any thread, while it does others: ``read(inputs)`` is ``start(inputs)()``.

    Attributes:
        reads_ahead: whether reads may begin before the call in which they are finished: on vLLM beside those before
            them, and on our own loops on a CPU while the last answers of those before them are written.
    """

    @property
    def reads_ahead(self) -> bool: ...

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish: ...
