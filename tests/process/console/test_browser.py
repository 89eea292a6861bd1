"""The console in a real browser, headless Chromium (M8). JMSQ_SCREENSHOT=FILE keeps the picture that the docs show."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spark_jms
from spark_jms.admin.domain_sample import take
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.client import Context
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked
from tests.harness.services.daemons import Daemons

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MODULE = {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}, "prices": {"kind": "topic"}}}
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


@contextmanager
def console(root: str, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "spark_jms.cli", "console", "--root", root, "--port", "0", *options]
    process = forked.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().removeprefix("the console is at ")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, "Ctrl-C ends it"
    finally:
        process.kill()
        process.communicate()


def got(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return str(answer.read().decode())


def browse(address: str, profile: Path, *arguments: str) -> str:
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        *arguments,
        address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.fixture
def domain(tmp_path: Path) -> Iterator[tuple[str, Context]]:
    root = str(tmp_path / "domain")
    spark_jms.apply(root, MODULE)
    with spark_jms.connect(root) as context:
        yield root, context


def numbers_of_samples(address: str) -> int:
    """Points of the first chart."""
    found = re.search(r'<polyline points="([^"]*)"', got(address))
    return len(found[1].split()) if found else 0


@needs_chromium
def test_console_in_a_browser(domain: tuple[str, Context], tmp_path: Path) -> None:
    """M8: destinations, charts that move, subscriptions, claims and servers, as Chromium renders them; nothing is loaded from
    anywhere else."""
    root, context = domain
    billing = context.consumer("prices", subscription="billing", prefetch=5)
    with console(root) as address:
        for n in range(1, 6):
            context.producer("orders").send_many({"text": str(i)} for i in range(40 * n))
            context.producer("prices").send_many({"text": str(i)} for i in range(30))
            consumer = context.consumer("orders", prefetch=10, acknowledge="auto")
            for _ in range(10 * n):
                consumer.receive(timeout=5)
            consumer.close()
            wait_until(lambda n=n: numbers_of_samples(address) > n, 60)
        assert billing.receive(timeout=5)
        wait_until(lambda: "live" in got(address), 60)
        shown = browse(address, tmp_path / "profile", "--dump-dom")
        picture = Path(os.environ.get("JMSQ_SCREENSHOT") or tmp_path / "console.png")
        browse(address, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1000,1150", "--hide-scrollbars")
    for word in ("orders", "distributed-queue", "prices", "billing", "live", "backlog", "sent/s"):
        assert word in shown
    assert "600" in shown, "sent to orders"
    assert len(re.findall(r"<polyline", shown)) == 6
    assert picture.stat().st_size > 20_000
    assert not re.findall(r'(?:src|href)="', shown)


def test_sample_has_daemons_and_regions(replicated: Daemons) -> None:
    """M8, R6: of a replicated store."""
    with memory_domain(replicated.uri(), orders="queue") as root, spark_jms.connect(root) as context:
        context.consumer("orders").receive(timeout=0)
        domain = Domain(root)
        with opened_store(domain) as store:
            cluster = take(domain, store).cluster
    assert cluster is not None
    assert [daemon.up for daemon in cluster.daemons] == [True, True], cluster.error
    assert cluster.regions


def test_console_asks_for_its_token(domain: tuple[str, Context], tmp_path: Path) -> None:
    """M8: by header or in the address; without it 401 and nothing of the domain."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    with console(domain[0], "--token-file", str(token)) as address:
        for url in (address, f"{address}?token=wrong"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                got(url)
            assert refused.value.code == 401
            assert "orders" not in refused.value.read().decode()
        wait_until(lambda: "orders" in got(f"{address}?token=secret"), 60)
        assert "orders" in got(address, Authorization="Bearer secret")


def test_console_off_loopback_needs_a_token(domain: tuple[str, Context]) -> None:
    """M8: refused in one line."""
    command = [sys.executable, "-m", "spark_jms.cli", "console", "--root", domain[0], "--host", "0.0.0.0"]
    done = forked.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "give --token-file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
