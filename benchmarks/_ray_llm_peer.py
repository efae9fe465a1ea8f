"""Reads by ``ray.data.llm``, timed in an interpreter that has ``ray[llm]``; a peer of ``benchmarks.whole_evaluation``.

    PYTHON_WITH_RAY_LLM -m benchmarks._ray_llm_peer IN.json OUT.json

Written as by an expert: prefix caching, large batches with several in progress, no chat template, and
on a CPU the placement that takes no GPU. Nothing of the engine is imported.

IN: ``model`` (a directory) and ``prompts``; further ``dtype`` (bfloat16), ``threads`` (2), ``max_tokens`` (16), ``stop``
(["\\n"]), ``batch_size`` (64), ``cache_bytes`` (2 GiB, on a CPU), ``scene``: a disturbance (none).

- ``failed row``: the first prompt is made longer than the model's positions; ``kept`` (false) sets
  ``should_continue_on_error``.
- ``killed actor``: once half of the rows are there, the process of the engine's actor is killed; give it rows for minutes, since
  an engine may finish a few before the first row is there.
- ``resume``: a job reads Parquet and writes Parquet; once its engine has read half of the rows its driver is killed, and the same job
  is run again. ``checkpoint`` (false) sets Ray's ``CheckpointConfig``, ``block_rows`` (0) the rows of a block, 0 for Ray's
  default. ``second`` (the same job): ``finished`` lets the first one end;
  ``changed`` too, with ``delete_checkpoint_on_success`` off, and gives the second one other prompts under the same ids.

OUT: ``outputs`` in the order of the prompts, null for a missing row; ``seconds`` from the engine's start of the
first row to the last, and ``processor_seconds`` of all processes in that time, Ray's included; ``rows`` that came; ``written`` if a job writes, with duplicates; ``read`` by the engine and passed on, with repetitions (for
``resume`` read alone), and ``again``, by the second job; ``killed`` processes; ``failures``;
``error`` that ended the job; ``prompt_tokens``; versions.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._vllm_peer import _processor_seconds


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Read every prompt once, with the scene's disturbance."""
    scene, prompts = settings.get("scene", ""), list(settings["prompts"])
    if scene == "failed row":
        prompts[0] = prompts[0] * 2000
    used: list[tuple[float, float]] = []
    threading.Thread(target=_sample, args=(used,), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "read")
        rows: dict[int, dict[str, Any]] = {}
        error, written, before = "", 0, 0
        if scene == "resume":
            before = _run_until_killed(settings, prompts, log)
            if settings.get("second") == "changed":
                prompts = [f"{prompt} " for prompt in prompts]
        try:
            for row in (_written if scene == "resume" else _rows)(settings, prompts, log):
                rows[row["id"]] = row
                written += 1
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"[-600:]
        lines = log.read_text().splitlines() if log.exists() else []
        fate = Path(f"{log}-killed")
        killed = int(fate.read_text()) if fate.exists() else 0
    read = [tuple(map(float, line.split())) for line in lines]
    # All rows may be in the engine before the first row is done: the time begins once the engine has the first.
    begun, ended = (
        (min(at - took for at, took in read), max(at for at, _ in read)) if read else (0, 0)
    )
    within = [seconds for at, seconds in used if begun <= at <= ended]
    import ray
    import vllm

    return {
        "outputs": [rows.get(place, {}).get("output") for place in range(len(prompts))],
        "seconds": ended - begun,
        "processor_seconds": within[-1] - within[0] if within else 0.0,
        "rows": len(rows),
        "written": written,
        "read": len(read),
        "again": len(read) - before,
        "killed": killed,
        "failures": [row["failure"] for row in rows.values() if row.get("failure")],
        "error": error,
        "prompt_tokens": sum(row.get("tokens") or 0 for row in rows.values()),
        "ray": ray.__version__,
        "vllm": vllm.__version__,
    }


def _sample(used: list[tuple[float, float]]) -> None:
    """Record the CPU time of all processes twice a second, as long as this process lives."""
    while True:
        if seconds := _processor_seconds():
            used.append((time.time(), seconds))
        time.sleep(0.5)


def _run_until_killed(settings: dict[str, Any], prompts: list[str], log: Path) -> int:
    """Run the job in a process that is killed half-way, or ends; the number of rows it read. Its Ray ends with it."""

    def job() -> None:
        os.setsid()
        list(_written(settings, prompts, log, ends=not settings.get("second")))

    driver = multiprocessing.get_context("fork").Process(target=job)
    driver.start()
    driver.join()
    time.sleep(5)
    return len(log.read_text().splitlines())


def _written(
    settings: dict[str, Any], prompts: list[str], log: Path, *, ends: bool = False
) -> Iterator[dict[str, Any]]:
    """All rows in the folder of outputs after the job: Ray's checkpoints are for jobs that write."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    processor = _processor(settings, log, len(prompts) // 2 if ends else 0)
    import ray

    source, target = log.parent / "in.parquet", log.parent / "out"
    pq.write_table(pa.table({"id": range(len(prompts)), "prompt": prompts}), source)
    if settings.get("checkpoint"):
        from ray.data.checkpoint import CheckpointConfig

        ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
            "id",
            str(log.parent / "ids"),
            delete_checkpoint_on_success=settings.get("second") != "changed",
        )
    dataset = ray.data.read_parquet(str(source))
    if block_rows := int(settings.get("block_rows", 0)):
        dataset = dataset.repartition(target_num_rows_per_block=block_rows)
    processor(dataset).write_parquet(str(target))
    yield from pq.read_table(target).to_pylist()


def _rows(settings: dict[str, Any], prompts: list[str], log: Path) -> Iterator[dict[str, Any]]:
    processor = _processor(settings, log)
    import ray

    rows = [{"id": place, "prompt": prompt} for place, prompt in enumerate(prompts)]
    blocks = max(1, len(rows) // int(settings.get("batch_size", 64)))
    dataset = processor(ray.data.from_items(rows, override_num_blocks=blocks))
    for row in dataset.iter_rows():
        failure = row.get("__inference_error__") or ""
        yield {**row, "failure": failure, "output": None if failure else row["output"]}


def _processor(settings: dict[str, Any], log: Path, ends_at: int | None = None) -> Any:
    """The processor of ``ray.data.llm``, on a running Ray; it kills this process once the engine has read ``ends_at`` rows."""
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    threads = int(settings.get("threads", 2))
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
    }
    os.environ |= environment
    gpu = _has_gpu()
    engine: dict[str, Any] = {
        "dtype": settings.get("dtype", "bfloat16"),
        "enable_prefix_caching": True,
    }
    if not gpu:
        engine |= {
            "kv_cache_memory_bytes": int(settings.get("cache_bytes", 2**31)),
            "block_size": 32,
            "enforce_eager": True,
        }
    _start_ray()
    config = vLLMEngineProcessorConfig(
        model_source=settings["model"],
        engine_kwargs=engine,
        batch_size=int(settings.get("batch_size", 64)),
        concurrency=1,
        should_continue_on_error=bool(settings.get("kept", False)),
        chat_template_stage=False,
        log_engine_metrics=False,  # no metrics are needed, and Ray's need packages of their own
        runtime_env={"env_vars": environment},
        placement_group_config=None if gpu else {"bundle_per_worker": {"CPU": 1}},
    )
    sampling = {
        "temperature": 0,
        "max_tokens": int(settings.get("max_tokens", 16)),
        "stop": settings.get("stop", ["\n"]),
    }
    place, driver = str(log), os.getpid()
    kill_at = len(settings["prompts"]) // 2 if settings.get("scene") == "killed actor" else 0

    def note(row: dict[str, Any]) -> None:
        with Path(place).open("a") as stream:
            stream.write(f"{time.time():.6f} {row['time_taken_llm']}\n")
        read = Path(place).read_text().count("\n")
        if kill_at and read == kill_at:
            Path(f"{place}-killed").write_text(str(_kill_engines()))
        if ends_at and read >= ends_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver, signal.SIGKILL)

    def taken(row: dict[str, Any]) -> dict[str, Any]:
        if ends_at is None:
            note(row)
        return {
            "id": row["id"],
            "output": row["generated_text"].strip(),
            "tokens": row["num_input_tokens"],
            "failure": "",
        }

    processor = build_processor(
        config,
        preprocess=lambda row: {
            "prompt": row["prompt"],
            "sampling_params": sampling,
            "id": row["id"],
        },
        postprocess=taken,
    )
    if ends_at is not None:  # rows are passed on a block at a time
        stage = processor.get_stage_by_name("vLLMEngineStage")
        vars(stage)["fn"] = _noting(stage.fn, note)  # set as a field, it would ask for a GPU
    return processor


def _start_ray() -> None:
    import ray

    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )


def _noting(stage: Any, note: Callable[[dict[str, Any]], None]) -> Any:
    """The engine's stage, with a call of ``note`` for each row that is read."""

    class Noting(stage):
        async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            async for row in super().udf(batch):
                note(row)
                yield row

    return Noting


def _kill_engines() -> int:
    """Kill the processes of actors with the engine; called in a worker on the same node of this Ray. Returns
    their number.
    """
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            beside = f"PPid:\t{os.getppid()}\n" in (folder / "status").read_text()
            if beside and b"vLLMEngineStageUDF" in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    settings = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(json.dumps(measure(settings)) + "\n", encoding="utf-8")


if __name__ == "__main__":  # workers import this module again
    main()
