"""``Result.metrics`` in a run of MLflow, and a picture and the page among its artifacts."""

import mlflow
import own_llm

run = {key: [own_llm.TEXTS[place], own_llm.TEXTS[3]] for place, key in enumerate(own_llm.QUESTIONS)}
result = own_llm.evaluate({"good": run, "a+b": {key: texts[::-1] for key, texts in run.items()}})
mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run() as active:
    mlflow.log_metrics(result.metrics())
    mlflow.log_figure(result.figure("scores"), "scores.png")
    mlflow.log_artifact(str(result.report("report.html")))
kept = mlflow.get_run(active.info.run_id).data.metrics
assert kept == result.metrics(), kept
assert kept["good/erag/P_1"] == 1.0
