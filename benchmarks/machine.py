"""The machine and the versions, described without host names or paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks import jars

PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "confluent-kafka")


def describe() -> dict[str, str]:
    """CPU, cores, memory, system and versions, each one line."""
    found = {
        "CPU": cpu_model(),
        "cores": str(psutil.cpu_count() or os.cpu_count() or 0),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "Python": platform.python_version(),
        "Java": java_version(),
        "Kafka broker": jars.KAFKA,
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def cpu_model() -> str:
    """The first `model name` of /proc/cpuinfo, else the platform's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or "unknown"


def java_version() -> str:
    run = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "([^"]+)"', run.stderr + run.stdout)
    return match.group(1) if match else "unknown"
