"""What a job reports, in the format of Prometheus, at a port of its first rank."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from matex_tf.core import ports
from matex_tf.core.world import World
from matex_tf.errors import MatexError, MissingPackage, SettingError
from matex_tf.features.watch.options import WatchOptions
from matex_tf.settings import Settings
from matex_tf.watching.job_state import RUNS, JobState
from matex_tf.watching.meter import Meter

#: Of each rank: the name here and its unit, the name among what ranks report, what it is.
OF_RANKS = (
    ("steps", "step", "Training steps so far"),
    ("steps_per_second", "steps_per_second", "Training steps a second, over the last ten seconds"),
    ("exchange_ratio", "exchange", "Part of the time that exchanges take, waiting for other ranks among it"),
    ("wait_ratio", "wait", "Part of the time in which a rank waits for other ranks"),
    ("input_ratio", "input", "Part of the time in which a rank waits for batches"),
    ("busy_cores", "cpu", "Cores that are at work for a rank"),
    ("memory_bytes", "memory", "Memory that a rank has"),
)
#: Of the job.
OF_JOB = (
    ("ranks", "size", "Ranks that the job began with"),
    ("ranks_alive", "alive", "Ranks that report"),
    ("epoch", "epoch", "The epoch that runs, from 1"),
    ("rows_per_second", "rows_per_second", "Rows a second, of all ranks together"),
    ("events", "events", "Deaths and recoveries so far"),
)


def address(text: str) -> tuple[str, int]:
    """`9400` or `0.0.0.0:9400` as host and port.

    Raises:
        SettingError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise SettingError(f"--metrics is {text!r}; it must be a port from 1 to 65535, or an address and a port.")
    return host or "127.0.0.1", int(port)


def begin(world: World, settings: Settings) -> Callable[[JobState, Meter], None] | None:
    """Serve what ranks report, on the first of them; None where that is not wanted. Collective.

    Args:
        world: the ranks that report.
        settings: of the run.

    Raises:
        SettingError: it cannot be served; on every rank.
    """
    asked = settings.of(WatchOptions).metrics
    if not asked:
        return None
    metrics, failure = None, ""
    try:
        metrics = Metrics(asked)
        if world.rank == 0:
            metrics.listen()
    except MatexError as error:
        failure = str(error)
    failures = [one for one in world.allgather(failure, "serve metrics") if one]
    if failures:
        raise SettingError(failures[0])
    assert metrics is not None
    return metrics.show


class _Handler(WSGIRequestHandler):
    """Says nothing, and does not wait for ever."""

    timeout = ports.GREETING_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, and few of them: Prometheus' own has as many as others open connections."""

    daemon_threads = True

    def __init__(self, host: str, port: int):
        self.address_family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(place[:2], _Handler)  # type: ignore[arg-type]
        self._door = ports.Door(self.socket)

    def get_request(self) -> tuple[Any, Any]:
        connection = self._door.accept()
        if connection is None:
            raise OSError("no descriptor is left")  # which the server takes for somebody who is gone
        return connection, connection.getpeername()

    def close_request(self, request: Any) -> None:
        self._door.known(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # somebody has said nothing, or something else than HTTP


class Metrics:
    """A server for Prometheus, on the rank that the others report to."""

    def __init__(self, text: str):
        """Args: text: see `address`.

        Raises:
            SettingError: see `address`.
            MissingPackage: prometheus_client is not installed.
        """
        self._text = text
        self._address = address(text)
        self._job: JobState | None = None
        self._listens = False
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise MissingPackage("--metrics needs prometheus_client: pip install 'matex_tf[metrics]'.") from None

    def listen(self) -> None:
        """Serve from now on.

        Raises:
            SettingError: the port is taken, or the address is not one of this host.
        """
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self._listens = True
        registry = CollectorRegistry()
        host, port = self._address
        try:
            server = _Server(host, port)
        except OSError as error:
            raise SettingError(f"--metrics {self._text} on {socket.gethostname()}: {error.strerror}.") from None
        server.set_app(make_wsgi_app(registry))
        threading.Thread(target=server.serve_forever, name="matex_tf metrics", daemon=True).start()
        registry.register(self)

    def show(self, job: JobState, meter: Meter) -> None:
        """Serve what is known of a job; where another rank did so before it died, here from now on.

        Raises:
            SettingError: see `listen`.
        """
        self._job = job
        if not self._listens:
            self.listen()

    def collect(self) -> Iterator[Any]:
        """What Prometheus' client asks for."""
        from prometheus_client.core import GaugeMetricFamily

        if self._job is None:
            return
        job = self._job.public()
        labels = [job["script"]]
        for name, key, what in OF_JOB:
            value = len(job[key]) if key == "events" else job[key]
            family = GaugeMetricFamily(f"matex_tf_{name}", what, labels=["script"])
            family.add_metric(labels, value)
            yield family
        for name, key, what in OF_RANKS:
            family = GaugeMetricFamily(f"matex_tf_rank_{name}", what, labels=["script", "rank", "host"])
            for rank in job["ranks"]:
                if rank["status"] == RUNS:
                    family.add_metric([*labels, str(rank["rank"]), rank["host"]], rank[key])
            yield family
