"""What a reader of the dashboard chooses: where the data is, whose series, and which targets hold."""

from grafana.panel import DATASOURCE, Json

EVERYTHING = ".+"
# The gauges that tell which targets of a Prometheus are engines.
ENGINE_GAUGES = '__name__=~"vllm:num_requests_running|tgi_queue_size"'
# Bounds of the buckets of kvguard_time_to_first_byte_seconds, so that the share within is exact.
FIRST_BYTE_TARGETS = ("0.32", "0.64", "1.28", "2.56", "5.12", "10.24")


def variables() -> list[Json]:
    """In the order in which they are shown; each list offers what fits the choices before it."""
    chosen = 'job=~"$job"'
    return [
        _datasource(),
        _labels("job", "Job", "label_values(kvguard_build_info, job)"),
        _labels("instance", "Instance", f"label_values(kvguard_build_info{{{chosen}}}, instance)"),
        _labels("backend", "Backend", f'label_values(kvguard_tier{{{chosen}, instance=~"$instance"}}, backend)'),
        _labels("engine_job", "Engine job", f"label_values({{{ENGINE_GAUGES}}}, job)"),
        _labels(
            "engine_instance",
            "Engine instance",
            f'label_values({{{ENGINE_GAUGES}, job=~"$engine_job"}}, instance)',
        ),
        _choice("slo_first_byte", "First byte within (s)", FIRST_BYTE_TARGETS, "2.56"),
        _choice("slo_share", "for a share of", ("0.9", "0.95", "0.99", "0.999"), "0.99"),
        {"type": "adhoc", "name": "filters", "label": "Filters", "datasource": DATASOURCE, "filters": []},
    ]


def _datasource() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "regex": "",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
    }


def _labels(name: str, label: str, query: str) -> Json:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": f"{name}-values"},
        "includeAll": True,
        "allValue": EVERYTHING,
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _choice(name: str, label: str, values: tuple[str, ...], default: str) -> Json:
    options = [{"selected": value == default, "text": value, "value": value} for value in values]
    return {
        "type": "custom",
        "name": name,
        "label": label,
        "query": ",".join(values),
        "includeAll": False,
        "multi": False,
        "current": {"selected": True, "text": default, "value": default},
        "hide": 0,
        "options": options,
    }
