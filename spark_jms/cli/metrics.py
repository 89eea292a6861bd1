"""`jmsq metrics`: the domain's figures for Prometheus.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import click

from spark_jms.cli.settings import CommandSettings, command, every_option, served_at


@command("metrics", short_help="Serve the domain's figures to Prometheus.")
@served_at(8851)
@click.option("--once", is_flag=True, help="Print the figures instead, as a scrape has them.")
@every_option("10s", 0.1)
def metrics(
    settings: CommandSettings, host: str, port: int, token_file: Path | None, once: bool, every_s: float
) -> None:
    """Serve what `jmsq stat`, `jmsq claims`, `jmsq quota list`, `jmsq server list`, `jmsq services --status` and `jmsq transactions`
    show as metrics, in the text format of Prometheus, until SIGTERM or Ctrl-C.

    Scrapes read the domain at most once in `--every`. A destination that cannot be read and a server that does not answer are
    metrics of their own, 0 while that lasts; the other figures stay.
    """
    from spark_jms.admin.domain_sample import take
    from spark_jms.admin.servers import LOOK_S
    from spark_jms.settings.extras import needs

    with needs("metrics"):
        from prometheus_client import CollectorRegistry, generate_latest

        from spark_jms.metrics import WAIT_S, DomainCollector, MetricsServer

    from spark_jms.admin.exposure import read_token

    token = read_token(token_file) if token_file else None
    with settings.opened(LOOK_S) as (domain, store):
        registry = CollectorRegistry()
        sampled = partial(take, domain, store)
        registry.register(DomainCollector(sampled, every_s, None if once else WAIT_S))
        if once:
            _print(settings, registry, generate_latest)
            return
        server = MetricsServer(registry, host, port, token)
        before = signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.stop).start())
        try:
            click.echo(f"the metrics are at {server.address}")
            server.serve()
        finally:
            signal.signal(signal.SIGTERM, before)
            server.close()


def _print(settings: CommandSettings, registry: Any, text: Any) -> None:
    if not settings.as_json:
        settings.out.say(text(registry).decode().rstrip("\n"))
        return
    settings.out.document(
        [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in registry.collect()
            for sample in family.samples
        ]
    )
