"""A real Alertmanager on a loopback port, and the webhook it posts to."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.process import program, started
from tests.vllm.server import free_port


@dataclass
class Inbox:
    """What was posted to the webhook at `url`: every alert, oldest first."""

    url: str
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def firing(self, name: str) -> dict[str, Any] | None:
        """The first alert of this name that came."""
        alerts = (alert for alert in [*self.alerts] if alert["status"] == "firing")
        return next((alert for alert in alerts if alert["labels"]["alertname"] == name), None)


@contextlib.contextmanager
def running_inbox() -> Iterator[Inbox]:
    """A webhook that takes everything."""
    inbox = Inbox("")

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            inbox.alerts += json.loads(body)["alerts"]
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        inbox.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield inbox
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def running_alertmanager(directory: Path, *, webhook: str) -> Iterator[str]:
    """Alertmanager, which hands every alert to `webhook` at once; its `host:port`."""
    address = f"127.0.0.1:{free_port()}"
    route = {"receiver": "webhook", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    receivers = [{"name": "webhook", "webhook_configs": [{"url": webhook}]}]
    path = directory / "alertmanager.yml"
    path.write_text(yaml.safe_dump({"route": route, "receivers": receivers}))
    command = [program("prometheus-alertmanager", "alertmanager"), f"--config.file={path}"]
    command += [f"--storage.path={directory / 'alertmanager'}", f"--web.listen-address={address}"]
    command += ["--cluster.listen-address=", "--log.level=warn"]
    with started(command, ready=f"http://{address}/-/ready", log_path=directory / "alertmanager.log"):
        yield address
