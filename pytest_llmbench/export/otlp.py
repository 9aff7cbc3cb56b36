"""OTLP over HTTP: the numbers of a session for a collector of OpenTelemetry."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.export.samples import samples_of
from pytest_llmbench.reporting.base import FinishedSession

TIMEOUT_S = 10.0
_PATH = "/v1/metrics"


class ExportError(LLMBenchError):
    """An endpoint that did not take the numbers."""


def endpoint(url: str) -> str:
    """The address of an endpoint: without a path, that of OTLP for metrics is taken.

    Raises:
        ConfigError: it is not an address of HTTP.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"{url!r} is not an address: {error}") from error
    if not usable:
        raise ConfigError(f"{url!r} is not an address of HTTP; write it as http://collector:4318")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}{_PATH}"


def send(session: FinishedSession, url: str, timeout_s: float = TIMEOUT_S) -> int:
    """Send the numbers of a session, and return how many there are.

    Headers and certificates come from the environment, as OpenTelemetry has it: `OTEL_EXPORTER_OTLP_HEADERS`, say.

    Raises:
        ExportError: it was not taken within `timeout_s` seconds, or was refused.
        ConfigError: the extra `export` is not installed, or the URL is not an address of HTTP.
    """
    target = endpoint(url)
    told: list[str] = []
    samples: list[int] = []

    def work() -> None:
        try:
            samples.append(_send(session, target, timeout_s))
        except Exception as error:  # noqa: BLE001 - of another thread: told below, whatever it is
            told.extend(filter(None, [str(error)]))

    # Names that resolve slowly and answers that trickle are outside of the exporter's own timeout.
    thread = threading.Thread(target=work, daemon=True, name="llmbench-otlp")
    with _words() as words:
        thread.start()
        thread.join(timeout_s + 1.0)
    if samples:
        return samples[0]
    why = told or words or [f"no answer within {timeout_s:g} s"]
    raise ExportError(f"{target} has not taken the numbers: {why[-1]}")


def _send(session: FinishedSession, target: str, timeout_s: float) -> int:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415  # an extra, and slow
            OTLPMetricExporter,
        )
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  # likewise
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult  # noqa: PLC0415  # likewise
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise ConfigError(f"OTLP needs pip install pytest-llmbench[export]: {error}") from error
    reader = InMemoryMetricReader()
    about = {"service.name": "llmbench", "service.version": __version__, "llmbench.session": session.id}
    provider = MeterProvider([reader], Resource.create(about), shutdown_on_exit=False)
    meter = provider.get_meter("pytest_llmbench", __version__)
    gauges, samples = {}, samples_of(session)
    for sample in samples:
        if sample.family not in gauges:
            gauges[sample.family] = meter.create_gauge(sample.family, sample.ucum, sample.help)
        gauges[sample.family].set(sample.value, dict(sample.labels))
    data = reader.get_metrics_data()
    exporter = OTLPMetricExporter(target, timeout=timeout_s)
    try:
        if data is None or exporter.export(data) is not MetricExportResult.SUCCESS:
            raise ExportError("")
    finally:
        provider.shutdown()
        exporter.shutdown()
    return len(samples)


@contextmanager
def _words() -> Iterator[list[str]]:
    """Keep the messages that OpenTelemetry logs meanwhile: it gives the reason for a failure only there."""
    words: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    logger, handler = logging.getLogger("opentelemetry"), Kept(logging.WARNING)
    passed_on = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield words
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on
