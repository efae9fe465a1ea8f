"""``erag evaluate``: label passages, score runs, and compare with the end-to-end score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter

from engine.errors import InputError
from engine.evaluation import evaluate as evaluating
from engine.evaluation.evaluate import Evaluation
from engine.evaluation.inputs import EvaluationInputs, read_inputs
from engine.evaluation.settings import Settings, check
from engine.evaluation.study import Condition, conditions, study
from engine.labels.dual import DualWords
from engine.labels.judge import JudgeLabels
from engine.labels.preference import PreferenceLabels
from engine.labels.utility import Helpful
from engine.machine.device import Dtype
from engine.machine.model_files import cache_directory
from engine.ranking.scores import Missing, Relevant
from engine.reading.prompting.template import Task
from engine.reading.protocol import Augmentation, Engine
from engine.sources.io.files import require_output
from engine.sources.io.locations import locate
from engine.statistics.intervals import IntervalMethod
from jobs._command import ConfigFile, run_command
from jobs._progress import shown_progress
from jobs._results import print_results, write_results
from jobs._sizes import convert_bytes

# Reads that --certify repeats where it is given no number.
_CERTIFIED = 64


def evaluate(
    *,
    queries: Path,
    corpus: Path,
    run: Annotated[list[Path], Parameter(consume_multiple=True, negative=())],
    out: Path,
    reader: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (
        Settings.reader,
    ),
    augmentation: str = Settings.augmentation,
    task: Task = Settings.task,
    prompt: str | None = Settings.prompt,
    metric: str = Settings.metric,
    k: int | None = None,
    k_sweep: str = "",
    end_to_end_k: int | None = Settings.end_to_end_k,
    measures: str = Settings.measures,
    annotators: str = ",".join(Settings.annotators),
    judge: str | None = Settings.judge,
    judge_prompt: str | None = Settings.judge_prompt,
    judge_labels: JudgeLabels = Settings.judge_labels,
    erag_reader: str | None = Settings.erag_reader,
    helpful: Helpful = Settings.helpful,
    abstain_prompt: str | None = Settings.abstain_prompt,
    dual_words: DualWords = Settings.dual_words,
    relevant: Relevant | None = Settings.relevant,
    qrels: Path | None = None,
    preferences: Path | None = None,
    preference_labels: PreferenceLabels = Settings.preference_labels,
    edits: Path | None = None,
    end_to_end: bool = Settings.end_to_end,
    engine: Engine = Settings.engine,
    dtype: Dtype | None = Settings.dtype,
    memory: Annotated[int, Parameter(converter=convert_bytes)] = Settings.memory,
    actors: int | None = Settings.actors,
    failed_reads: Literal["error", "zero", "skip"] = Settings.failed_reads,
    missing: Missing = Settings.missing,
    certify: Annotated[int | bool, Parameter(negative=())] = Settings.certify,
    resamples: int = Settings.resamples,
    interval: IntervalMethod = Settings.interval,
    confidence: float = Settings.confidence,
    seed: int = Settings.seed,
    limit: int | None = None,
    skip_bad: int = 0,
    store: Path | None = None,
    config: ConfigFile = None,
) -> None:
    """Evaluate one or several runs with the LLM that reads them.

    Labels every listed passage, scores the runs with ranking measures, and correlates these, query
    by query, with the score of the same reader given the whole list. Every read is stored: what was
    read once, for whichever run or measure, is not read again.

    Parameters
    ----------
    queries
        Questions with answers (and provenance): KILT JSONL, plain JSONL, CSV, SQuAD or Parquet.
    corpus
        The passages: Parquet (a file or shards), JSONL, BEIR, or DPR's TSV.
    run
        Ranked lists: TREC text, Parquet or JSON. Several may be given.
    out
        Directory for the results.
    reader
        'bundled' (SmolLM2-135M), a directory, a .gguf file, or a Hugging Face id in the local cache.
        Several are compared.
    augmentation
        in-prompt: all passages in one prompt; fid: Fusion-in-Decoder (T5 readers). Both, separated by
        a comma, are compared.
    task
        What the reader is asked to do.
    prompt
        Prompt template: 'chat' (instruction-tuned models), 'completion' (the default of decoder-only
        models), 't5' (that of T5 readers), or a file (docs/formats.md).
    metric
        Downstream metric: em, match, accuracy, f1, rouge-l, rouge-l-kilt.
    k
        Passages per query that are labelled; 10, or the largest of --k-sweep.
    k_sweep
        Several of these, as in 5,10,20,50: correlations against k. Lists of each k are read whole.
    end_to_end_k
        Passages that the end-to-end reader is given; by default as many as are labelled.
    measures
        Ranking measures, named as ir_measures does; by default P, nDCG, AP, RR, R, Success at k
        (P, nDCG, Success where all labels lie between 0 and 1), and UDCG for utility.
    annotators
        Who labels, separated by commas: erag, containment, containment-substring, provenance, dual,
        judge, qrels, preference, utility.
    judge
        The model that judges relevance, named as --reader is; by default the reader itself.
    judge_prompt
        Its prompt template: 'completion', 'chat', 't5', 'monot5', or a file.
    judge_labels
        Relevant or not, or the probability of relevance (graded).
    erag_reader
        A model, named as --reader is, that reads single passages in the reader's stead: can a cheaper
        one stand in for it?
    helpful
        For utility: whose labels say which passages help.
    abstain_prompt
        For utility: the prompt that lets the reader decline: 'completion', 'chat', 't5', or a file.
    dual_words
        How the annotator dual looks for answers in passages: as tokens in a row, or as a substring, as
        Korean needs it, where particles follow words without a space.
    relevant
        What recall and ideal rankings are taken over: the query's own list, the pool of all runs,
        or all judgments of --qrels. By default qrels where these alone label, else pool where
        there are several runs and list where there is one.
    qrels
        Judgments: TREC text, BEIR's, Parquet or JSON; for the annotator qrels.
    preferences
        Which of two or three passages people found best, in JSONL; for the annotator preference.
    preference_labels
        Times chosen over times shown, or Bradley-Terry, for few judgments.
    edits
        Documents to swap, insert or delete in the runs, in JSONL (docs/formats.md): each run that is
        edited is evaluated beside the original, as NAME-edited.
    end_to_end
        Whether to read whole lists too, and correlate.
    engine
        What runs the reader; vllm takes decoder-only readers and is installed by 'make vllm'.
    dtype
        Precision of the reader; by default the fastest of this machine.
    memory
        Memory of one actor, as in 1.5GiB.
    actors
        Processes that host the reader; 0 reads in this one. By default as many as there is room for.
    failed_reads
        Whether a read that cannot be done is an error, counts as 0, or takes its query out (skip).
    missing
        Whether queries that a run lists nothing for score 0, are left out, or are an error.
    certify
        Repeat a sample of the reads (64, or as many as given) in other batches and count what changes.
    resamples
        Bootstrap resamples of each interval; 0 for none.
    interval
        Percentile, or BCa (corrected for bias and acceleration).
    confidence
        Of the intervals.
    seed
        Of the bootstrap, and of the reads that --certify repeats.
    limit
        Only the first so many queries.
    skip_bad
        Leave out up to so many bad records of the corpus, and count them.
    store
        Directory of the read store; by default ~/.cache/erag/reads.
    """
    augmentations, cutoffs = _augmentations(augmentation), _cutoffs(k_sweep)
    settings = Settings(
        reader=reader[0],
        augmentation=augmentations[0],
        task=task,
        prompt=prompt,
        metric=metric,
        k=k if k is not None else max(cutoffs, default=Settings.k),
        end_to_end_k=end_to_end_k,
        measures=measures,
        annotators=tuple(filter(None, (name.strip() for name in annotators.split(",")))),
        judge=judge,
        judge_prompt=judge_prompt,
        judge_labels=judge_labels,
        erag_reader=erag_reader,
        helpful=helpful,
        abstain_prompt=abstain_prompt,
        dual_words=dual_words,
        preference_labels=preference_labels,
        relevant=relevant,
        end_to_end=end_to_end,
        engine=engine,
        dtype=dtype,
        memory=memory,
        actors=actors,
        failed_reads=failed_reads,
        missing=missing,
        certify=_CERTIFIED if certify is True else int(certify),
        resamples=resamples,
        interval=interval,
        confidence=confidence,
        seed=seed,
    )
    check(settings)
    every = conditions(settings, readers=reader, augmentations=augmentations, cutoffs=cutoffs)
    for condition in every.values():
        check(condition)
    for name, given in (("qrels", qrels), ("preference", preferences)):
        option = f"--{'preferences' if name == 'preference' else name}"
        if (given is None) == (name in settings.annotators):
            raise InputError(
                None,
                None,
                f"{option} without the annotator {name}"
                if given
                else f"the annotator {name} without {option}",
                "use both or neither",
            )
    if limit is not None and limit < 1:
        raise InputError(None, None, f"--limit is {limit}", "use 1 or more")
    if skip_bad < 0:
        raise InputError(None, None, f"--skip-bad is {skip_bad}", "use 0 or more")
    store = store or cache_directory() / "reads"
    for directory in (out, store):
        require_output(directory, directory=True)
    inputs = read_inputs(
        queries,
        corpus,
        run,
        k=max(condition.k for condition in every),
        limit=limit,
        qrels=qrels,
        preferences=preferences,
        edits=edits,
        skip_bad=skip_bad,
    )
    files = {
        "queries": str(locate(queries)),
        "corpus": str(locate(corpus)),
        "runs": [str(locate(path)) for path in run],
        "qrels": None if qrels is None else str(locate(qrels)),
        "preferences": None if preferences is None else str(locate(preferences)),
        "edits": None if edits is None else str(locate(edits)),
    }
    evaluate_and_report(
        inputs,
        settings,
        files,
        out=out,
        store=store,
        every=every if len(every) > 1 else None,
    )


def evaluate_and_report(
    inputs: EvaluationInputs,
    settings: Settings,
    files: dict[str, Any],
    *,
    out: Path,
    store: Path,
    every: Mapping[Condition, Settings] | None = None,
) -> Evaluation:
    """Evaluate, write every table and ``summary.json`` under ``out``, and print the summary.

    Args:
        every: the conditions of a study, that of ``settings`` first; None where there is but that one.
    """
    done = None
    with shown_progress() as on_progress:
        if every is None:
            result = evaluating.evaluate(inputs, settings, store=store, on_progress=on_progress)
        else:
            done = study(inputs, every, store=store, on_progress=on_progress)
            result = next(iter(done.evaluations.values()))
    write_results(result, inputs, settings, files, out, done)
    print_results(result, settings, out, done)
    return result


def _augmentations(text: str) -> list[Augmentation]:
    known: dict[str, Augmentation] = {name: name for name in get_args(Augmentation)}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                None, None, f"--augmentation is {text!r}", f"use {', '.join(known)}, or several"
            )
    return [known[name] for name in names]


def _cutoffs(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        values = [0]
    if any(value < 1 for value in values):
        raise InputError(
            None, None, f"--k-sweep is {text!r}", "give whole numbers, as in --k-sweep 5,10,20,50"
        )
    return values


if __name__ == "__main__":
    run_command(evaluate)
