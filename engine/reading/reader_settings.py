"""The settings of reading: a reader's task, and the resources of its work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from engine.machine.device import Dtype
from engine.machine.pool import PoolSettings
from engine.messages.checked import CheckedSettings, Natural, Positive
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.reading.function import ReaderFunction
from engine.reading.prompting.prompts import Purpose, Task, read_template
from engine.reading.protocol import Augmentation, EngineChoice, Scores
from engine.scoring.metrics import Metric, get_metric


@dataclass(frozen=True, kw_only=True)
class ReaderAsk:
    """A model with its task, prompt and scoring.

    ``scores`` is as in ``ReaderSpec``; the targets are the query's reference answers, each in a read of its own, or the
    query itself if the task says so.
    """

    model: str  # its name, as in ``ReaderSettings.reader``
    task: Purpose  # chooses the prompt
    # A template; None for the usual one of the task and the kind of model.
    prompt: str | None = None
    # How it gets its passage; None for the reader's way, in one prompt if the model is decoder-only.
    augmentation: Augmentation | None = None
    scores: Scores = ""


@dataclass(frozen=True, kw_only=True)
class ReaderSettings(CheckedSettings):
    """The RAG system's own LLM: its weights, its task, and the metric of its outputs.

    Attributes:
        reader: The LLM that reads: 'bundled' (SmolLM2-135M), 'bundled-fid' (a small T5 trained for
            Fusion-in-Decoder on the bundled articles), a directory, a .gguf file, a Hugging Face id in the
            local cache, or openai:MODEL, a model behind an OpenAI-compatible API.
        augmentation: How the reader gets its passages. in-prompt: all passages in one prompt; fid:
            Fusion-in-Decoder (T5 readers).
        task: The reader's task; chooses the prompt.
        prompt: Prompt template: 'chat' (instruction-tuned models; the default of a server's chats),
            'completion' (the default of decoder-only models), 't5' (that of T5 readers),
            'chat-ko' or 'completion-ko' in Korean, or a text file with {query} and {passages}.
        metric: Downstream metric, one of ``scoring.metrics.METRICS``; or a user's own
            (``scoring.metrics.metric_from_function``).
        end_to_end: Whether the reader also reads whole lists, whose score is correlated with measures. Recorded outputs
            take the place of these reads.
        end_to_end_k: Passages of a whole list that the reader gets, or a budget of tokens for them, as in
            300tok; by default as many as are labelled.
        engine: Engine that runs the reader. auto: vLLM on GPUs if it is installed, else the engine's own loops; on the CPUs
            of this machine vLLM continues a store that has LLM calls from vLLM.
        dtype: Precision of the reader; by default the fastest of this machine: bfloat16 where the
            hardware supports it, else float16 on a GPU and float32 on a CPU.
        trust_remote_code: Run the Python code that comes with a model, for models that need it. The
            code can do whatever you can: read it first.
        functions: The user's functions that are readers; `reader`, or another model, names one.

    Raises:
        InputError: an unknown metric, two functions with the same name, a value out of range, or an unusable prompt template.
    """

    reader: str = "bundled"
    augmentation: Augmentation = "in-prompt"
    task: Task = "short-answer"
    prompt: str | None = None
    metric: str | Metric = "em"
    end_to_end: bool | Literal["recorded"] = True
    end_to_end_k: Positive | str | None = None
    engine: EngineChoice = "auto"
    dtype: Dtype | None = None
    trust_remote_code: bool = False
    functions: tuple[ReaderFunction, ...] = ()

    @property
    def scored_by(self) -> Metric:
        """The downstream metric."""
        return get_metric(self.metric)

    @property
    def metric_name(self) -> str:
        """The name of the downstream metric."""
        return self.scored_by.name

    @property
    def list_tokens(self) -> int | None:
        """Token budget of whole lists; None if they are cut at a number of passages."""
        most = self.end_to_end_k
        return int(most.removesuffix("tok")) if isinstance(most, str) else None

    def own(self, model: str) -> ReaderFunction | None:
        """The user's function of this name; None if there is none."""
        return next((reader for reader in self.functions if reader.name == model), None)

    def __post_init__(self) -> None:
        super().__post_init__()
        get_metric(self.metric)
        most = self.end_to_end_k
        if isinstance(most, str) and not re.fullmatch(r"[1-9][0-9]{0,17}tok", most):
            remedy = "give a number of passages, or a budget of tokens, as in 300tok"
            raise InputError(f"`end_to_end_k` is {quoted(most)}", remedy, "settings.lengths")
        names = [reader.name for reader in self.functions]
        if twice := [name for name in names if names.count(name) > 1]:
            problem = f"two reader functions are called {twice[0]!r}"
            raise InputError(problem, "rename one of them", "reader.ambiguous")
        if self.prompt is not None:
            read_template(self.prompt, self.task)


@dataclass(frozen=True, kw_only=True)
class RunningSettings(PoolSettings):
    """Resources of LLM calls: memory and processes; and the treatment of failed calls.

    Attributes:
        memory: Memory of an actor, as in 1.5GiB; 0 for as much as the machine has room for.
        shard_pairs: Evaluate in shards of whole queries, with about this many listed passages each, so
            that memory does not grow with the evaluation; 0 for never. By default evaluations of more than
            200,000 listed passages are done in shards of 20,000.
        failed_reads: Effect of a failed LLM call: end the evaluation (error), count as 0 (zero), or remove its query
            (skip) from the scores that need it: an annotator's for a single passage, a run's end-to-end score for a
            whole list. By default skip, and an error at the end if more than 5% of a reader's calls failed.
        reread: Repeat the LLM calls of the evaluation and store them beside the earlier ones, which they
            replace from then on.
        lazy: Lazy labels: read only the passages whose labels can change `measures`, as those up to the first
            useful one for RR and Success. The measures are exact, and other labels are null.

    Raises:
        InputError: a value out of range.
    """

    memory: Natural = 0
    shard_pairs: Natural | None = None
    failed_reads: Literal["error", "zero", "skip"] | None = None
    reread: bool = False
    lazy: bool = False

    @property
    def skips_failed(self) -> bool:
        """Whether the queries of failed reads are left out."""
        return self.failed_reads in (None, "skip")
