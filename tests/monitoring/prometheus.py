"""A real Prometheus on a loopback port, with intervals of a second, and questions to it."""
# ruff: noqa: TID251 - asks about the time that really is

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.monitoring.process import START_SECONDS, eventually, program, started
from tests.vllm.server import free_port


@dataclass(frozen=True)
class Sample:
    """One series of an answer: its labels and its values, the last one last, by time."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str, *, at: float | None = None) -> list[Sample]:
        """The expression now, or at a time. Raises HTTPStatusError for one that cannot be evaluated."""
        return _samples(self._get("query", query=expression, **({} if at is None else {"time": at})))

    def query_range(
        self, expression: str, *, seconds: float, step: float = 1.0, end: float | None = None
    ) -> list[Sample]:
        """The expression over the last so many seconds, or over those before `end`."""
        end = time.time() if end is None else end
        return _samples(self._get("query_range", query=expression, start=end - seconds, end=end, step=step))

    def exemplars(self, expression: str, *, seconds: float = 300.0) -> list[dict[str, Any]]:
        """The exemplars of the series in the expression, over the last so many seconds."""
        end = time.time()
        return self._get("query_exemplars", query=expression, start=end - seconds, end=end)

    def alerts(self, *, state: str = "firing") -> dict[str, dict[str, Any]]:
        """The alerts in a state, by name; one of each."""
        return {a["labels"]["alertname"]: a for a in self._get("alerts")["alerts"] if a["state"] == state}

    def health(self) -> dict[str, str]:
        """How the last scrape of every target went, by `host:port`: up, down, or unknown before the first."""
        targets = self._get("targets")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] for target in targets}

    def _get(self, what: str, **parameters: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=parameters, timeout=20, trust_env=False)
        if answer.is_client_error:
            raise ValueError(answer.json()["error"])
        return answer.raise_for_status().json()["data"]


def _samples(data: Mapping[str, Any]) -> list[Sample]:
    rows = data["result"]
    if data["resultType"] == "scalar":
        rows = [{"metric": {}, "value": rows}]
    return [
        Sample(row["metric"], tuple((float(at), float(value)) for at, value in row.get("values", [row.get("value")])))
        for row in rows
    ]


@contextlib.contextmanager
def running_prometheus(
    directory: Path,
    *,
    targets: Mapping[str, Sequence[str]],
    rules: Sequence[Path] = (),
    alertmanager: str | None = None,
) -> Iterator[Prometheus]:
    """Prometheus scraping `targets`, by job, each `host:port`, every second; entered once it has scraped each. Rule
    files are taken as they are; `alertmanager` is the `host:port` of one. It keeps everything in `directory`.
    """
    port = free_port()
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()
        ],
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    command = [program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={directory / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    url = f"http://127.0.0.1:{port}"
    with started(command, ready=f"{url}/-/ready", log_path=directory / "prometheus.log"):
        server, wanted = Prometheus(url), {address for addresses in targets.values() for address in addresses}
        eventually(lambda: _scraped(server) >= wanted, seconds=START_SECONDS, what="every target is scraped")
        yield server


def _scraped(server: Prometheus) -> set[str]:
    return {address for address, health in server.health().items() if health != "unknown"}
