"""Plants a bug: when Python imports the bug's file, it compiles the text with the bug instead of the text on disk.

No file changes, so any number of processes can have bugs of their own. The text that a bug replaces must occur exactly
once in its file; after a change of that line the bug is an error, and is planted again by hand.

python -m tests.models.planted.planting            plants every bug, one after the other, and prints what caught it
python -m tests.models.planted.planting NAME...    only these
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import CodeType, ModuleType

from tests.harness.project import PROJECT
from tests.models.planted.bug import Planted
from tests.models.planted.in_regions import PLANTED, SEEDS

NAME = "JMSQ_PLANTED"
MOST_SEEDS = 2_000
PROCESSES = 2


class PlantingError(ValueError):
    """The text that a planted bug replaces is not there, or more than once."""


def planted_files(planted: Planted) -> dict[str, str]:
    """The text of each file that has a part of the bug."""
    texts: dict[str, str] = {}
    for edit in planted.edits:
        text = texts.get(edit.file) or (PROJECT / edit.file).read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise PlantingError(f"{planted.name}: {edit.file} has {text.count(edit.old)} times, not once:\n{edit.old}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


class PlantedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, path: str, text: str) -> None:
        super().__init__(module, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class PlantedFinder(importlib.abc.MetaPathFinder):
    def __init__(self, planted: Planted) -> None:
        self._loaders: dict[str, PlantedLoader] = {}
        for file, text in planted_files(planted).items():
            module = f"spark_jms.{file.removesuffix('.py').replace('/', '.')}"
            if module in sys.modules:
                raise PlantingError(f"{planted.name}: {module} was imported before the bug was planted")
            self._loaders[module] = PlantedLoader(module, str(PROJECT / file), text)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        loader = self._loaders.get(fullname)
        return loader and importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


def plant(name: str) -> Planted:
    planted = next(planted for planted in PLANTED if planted.name == name)
    sys.meta_path.insert(0, PlantedFinder(planted))
    return planted


if NAME in os.environ:  # as a plugin of pytest, before it imports anything else
    plant(os.environ[NAME])


# ---- what catches it


@dataclass(frozen=True)
class Catch:
    """`seeds`: how many the simulator ran. `text`: the violation, or the last line of the tests."""

    planted: Planted
    seeds: int
    text: str
    seed: int | None = None

    @property
    def failure(self) -> str:
        """Why this is not what was expected; "" if it is."""
        if not self.text:
            return f"{self.planted.name}: not found in {self.seeds} seeds"
        if not self.planted.test and not re.search(self.planted.by, self.text):
            return f"{self.planted.name}: seed {self.seed} found something else: {self.text}"
        return ""


def catch(planted: Planted, seeds: int = MOST_SEEDS) -> Catch:
    """Runs seeds, or the test of a bug that no seed can show, in a process with the bug."""
    if planted.test:
        return _catch_by_test(planted)
    words = [sys.executable, "-m", "tests.models.planted.planting", "--find", planted.name, "--seeds", str(seeds)]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlantingError(f"{planted.name}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Catch(planted, found["seeds"], found["text"], found["seed"])


def _catch_by_test(planted: Planted) -> Catch:
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.models.planted.planting",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, NAME: planted.name}
    done = subprocess.run(
        [*words, planted.test], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise PlantingError(f"{planted.name}: {(done.stdout + done.stderr)[-2000:]}")
    return Catch(planted, 0, done.stdout.strip().splitlines()[-1] if done.returncode else "")


def _find(name: str, seeds: int) -> None:
    """In a process of its own. First the seed that found the bug last time."""
    planted = plant(name)
    from tests.models.regions import Violation, run

    tried = 0
    for seed in dict.fromkeys((*SEEDS.get(planted.name, ()), *range(1, seeds + 1))):
        tried += 1
        try:
            run(seed)
        except Violation as violation:
            print(json.dumps({"seeds": tried, "seed": seed, "text": str(violation)}))
            return
        except Exception as error:  # noqa: BLE001 - an internal error of the product is found as well
            print(json.dumps({"seeds": tried, "seed": seed, "text": f"{type(error).__name__}: {error}"}))
            return
    print(json.dumps({"seeds": tried, "seed": None, "text": ""}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.planted.planting", description=__doc__)
    parser.add_argument("names", nargs="*", help="which bugs; by default all")
    parser.add_argument("--find", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="how many seeds to run, at most")
    options = parser.parse_args()
    if options.find:
        _find(options.find, options.seeds)
        return 0
    began_s, failures = time.perf_counter(), []
    chosen = [planted for planted in PLANTED if not options.names or planted.name in options.names]
    print(f"{'planted bug':46} {'seeds':>6}  caught by")
    with ThreadPoolExecutor(PROCESSES) as pool:
        for caught in pool.map(partial(catch, seeds=options.seeds), chosen):
            by = f"{caught.planted.test or f'seed {caught.seed}'}: {caught.text}"
            print(
                f"{caught.planted.name:46} {caught.seeds or '-':>6}  {by if caught.text else 'NOT FOUND'}", flush=True
            )
            if caught.failure:
                failures.append(caught.failure)
    print(f"{len(chosen) - len(failures)} of {len(chosen)} found, {time.perf_counter() - began_s:.0f} s")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
