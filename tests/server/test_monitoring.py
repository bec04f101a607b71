"""The board and the rules of deploy/monitoring ask for metrics and labels that /metrics has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from stentor.server.metrics import Metrics
from tests.helpers.server_live import Live

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
BOARD: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
QUERIES += [
    variable["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"
]
QUERIES += [rule["expr"] for rule in RULES]
HISTOGRAM = ("_bucket", "_sum", "_count")
SUFFIXES = {"counter": ("_total",), "histogram": HISTOGRAM, "summary": ("_sum", "_count")}
OF_SCRAPES = {"job", "instance", "le"}  # labels that Prometheus adds, and that of buckets
EVERYWHERE = ("model_name",)


@pytest.fixture(scope="module")
def samples(live: Live) -> set[str]:
    """Names of all series that a server can have, those that it has not had yet among them."""
    assert live.speech(input="Hello.").status_code == 200
    families = text_string_to_metric_families(live.http.get("/metrics").text)
    return {f.name + suffix for f in families for suffix in SUFFIXES.get(f.type, ("",))}


def names(query: str) -> set[str]:
    return set(re.findall(r"stentor:\w+", query))


def labels(query: str) -> set[str]:
    """Labels that a query groups or selects by."""
    grouped = ",".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", query))
    selected = re.findall(r"(\w+)\s*=~?\"", query)
    return {name.strip() for name in grouped.split(",") if name.strip()} | set(selected)


def own_labels(metrics: Metrics) -> dict[str, set[str]]:
    """Labels of the metrics that requests count."""
    counted = [m for m in vars(metrics).values() if isinstance(m, Counter | Histogram)]
    return {
        name: set(m._labelnames)
        for m in counted
        for name in (f"{m._name}_total", *map(m._name.__add__, HISTOGRAM))
    }


def test_every_metric_of_the_board_and_the_rules_is_there(samples: set[str]):
    wanted = set().union(*map(names, QUERIES))
    assert len(wanted) > 25
    assert wanted - samples == set()


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_groups_and_selects_by_labels_that_its_metrics_have(query: str, live_here: Live):
    known = own_labels(live_here.server.metrics)
    for name in names(query):
        has = known.get(name, set(EVERYWHERE)) | OF_SCRAPES
        shared = labels(query) if len(names(query)) == 1 else set()
        assert shared <= has, name
    assert labels(query) <= {"model_name", "reason", "finished_reason", "status", *OF_SCRAPES}


def test_panels_have_places_of_their_own_and_a_legend_for_each_query():
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in BOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(t["legendFormat"] for p in BOARD["panels"] for t in p["targets"])
    assert len({p["title"] for p in BOARD["panels"]}) == len(places)


def test_alerts_say_how_bad_they_are_and_what_is_wrong():
    assert {rule["labels"]["severity"] for rule in RULES} <= {"critical", "warning", "info"}
    assert all(rule["annotations"]["summary"] for rule in RULES)
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


ALERTED = {
    "StentorEngineDown": [("stentor:engine_up{%s}", "0x30")],
    "StentorEngineRestarts": [("stentor:engine_restarts_total{%s}", "0x15 1 2 3 4x12")],
    "StentorFirstAudioSlow": [
        ('stentor:audio_audible_ttfa_s_bucket{%s,le="1.5"}', "0x30"),
        ('stentor:audio_audible_ttfa_s_bucket{%s,le="3"}', "0+9x30"),
        ('stentor:audio_audible_ttfa_s_bucket{%s,le="+Inf"}', "0+9x30"),
    ],
    "StentorStreamsStall": [
        ('stentor:audio_continuity_ok_total{%s,threshold_ms="100"}', "0+8x30"),
        ("stentor:speech_stream_completed_total{%s}", "0+10x30"),
    ],
    "StentorSlotsFull": [
        ("stentor:slot_usage_ratio{%s}", "1x30"),
        ("stentor:num_requests_waiting{%s}", "3x30"),
    ],
    "StentorRefusals": [('stentor:rejected_total{%s,reason="queue_full"}', "0+60x30")],
    "StentorFailures": [
        ("stentor:requests_failed_total{%s}", "0+1x30"),
        ('stentor:requests_success_total{%s,finished_reason="stop"}', "0+10x30"),
    ],
    "StentorCallsWithoutGraphs": [
        ("stentor:engine_eager_calls_total{%s}", "0+5x40"),
        ("stentor:gpu_memory_bytes{%s}", "9x40"),
    ],
}
LABELS = 'job="stentor",instance="a:8000",model_name="toy"'


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="Prometheus's promtool is not installed (apt install prometheus)",
)
def test_each_alert_fires_when_it_should_and_none_on_a_quiet_server(tmp_path: Path):
    """By Prometheus itself."""
    assert {rule["alert"] for rule in RULES} == set(ALERTED)
    tests = []
    for rule in RULES:
        series = [{"series": s % LABELS, "values": v} for s, v in ALERTED[rule["alert"]]]
        fires = {
            "expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})',
            "eval_time": "25m",
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [{**fires, "exp_samples": [{"labels": "{}", "value": 1}]}],
            }
        )
    quiet = [
        {"series": f"stentor:engine_up{{{LABELS}}}", "values": "1x30"},
        {"series": f"stentor:slot_usage_ratio{{{LABELS}}}", "values": "0.5x30"},
        {
            "series": f'stentor:requests_success_total{{{LABELS},finished_reason="stop"}}',
            "values": "0+10x30",
        },
        {"series": f"stentor:gpu_memory_bytes{{{LABELS}}}", "values": "9x30"},
        {"series": f"stentor:engine_eager_calls_total{{{LABELS}}}", "values": "5x30"},
    ]
    none = {"expr": "count(ALERTS)", "eval_time": "25m", "exp_samples": []}
    tests.append({"interval": "1m", "input_series": quiet, "promql_expr_test": [none]})
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(MONITORING / "rules.yaml")],
                "evaluation_interval": "1m",
                "tests": tests,
            }
        )
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
