"""A real evaluation on actors of a local Ray: Prometheus finds every metric that Grafana's dashboard shows."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.shards import inputs_in

ROOT = Path(__file__).parent.parent.parent
# Evaluates, and then, as long as Ray runs, looks at the port that Prometheus asks.
DRIVER = """
import re, sys, time, urllib.request
from tests.commands import erag

assert erag("evaluate", *sys.argv[1:]) == 0
import ray

node, shown = ray.nodes()[0], ""
logs = [*map(str, __import__("pathlib").Path(ray._private.worker._global_node.get_logs_dir_path()).glob("worker-*"))]
deadline = time.monotonic() + 60
ended = 0
while ended < 3 and time.monotonic() < deadline:  # a gauge is shown once each time that it was set
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    shown += urllib.request.urlopen(address, timeout=30).read().decode()
    ended += bool(re.search(r"ray_erag_seconds_left{.*} 0\\.0", shown))
    time.sleep(1)
print("METRICS", shown)
for log in logs:
    print("LOG", log, open(log).read())
"""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        importlib.util.find_spec("aiohttp_cors") is None,
        reason="the extra cluster (ray[default]) is not installed; make test-faults installs it",
    ),
]


def test_rays_port_has_every_metric_of_the_dashboard_and_workers_log_events(tmp_path):
    inputs_in(tmp_path, 8, 2)
    options = {
        "queries": tmp_path / "q.jsonl",
        "corpus": tmp_path / "c.jsonl",
        "run": tmp_path / "r.trec",
        "store": tmp_path / "store",
        "out": tmp_path / "out",
        "actors": 1,
        "dtype": "float32",
        "resamples": 0,
        "price-per-hour": 1.0,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    # Workers tell their metrics every ten seconds else.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *words],
        env=environment | {"RAY_metrics_report_interval_ms": "1000"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    printed, _, shown = done.stdout.partition("METRICS")
    dashboard = json.loads((ROOT / "docs" / "cluster" / "grafana.json").read_text())
    names = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"ray_erag_\w+", target["expr"])
    }
    values = {}
    for name, tags, value in re.findall(r"^(ray_erag_\w+)\{(.*)\} (\S+)$", shown, re.MULTILINE):
        values[name] = float(value)
        assert ('role="reader"' in tags) == bool(
            re.search("calls_(re|ca|ne|fa)|tokens_(in|out)", name)
        )
    assert names == values.keys()
    record = json.loads((tmp_path / "out" / "progress.json").read_text())
    assert record["state"] == "done"
    assert values["ray_erag_calls_done"] == record["calls_done"] > 8
    assert values["ray_erag_calls_new_total"] == record["roles"]["reader"]["calls_new"]
    assert values["ray_erag_tokens_in_total"] == record["roles"]["reader"]["tokens_in"]
    # What happened on the worker is in its own log, and not in what the command prints.
    loaded = r"^\S+ \S+ erag event=load_ended reader=\S+ seconds=[\d.]+$"
    assert re.search(loaded, shown, re.MULTILINE)
    assert "event=" not in printed + done.stderr
