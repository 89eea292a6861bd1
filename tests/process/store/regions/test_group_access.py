"""The group of a Global Directory may use its stores, where the daemons allow it (R17)."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.store import open_store
from tests.harness.processes import forked
from tests.harness.services.daemons import Daemons

OTHER_UID, GROUP, OTHER_GROUP = 45_678, 45_700, 45_701


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter, and in it the Global Directory of the group."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    folder = Path(tempfile.mkdtemp(prefix="jmsq-group-"))
    folder.chmod(0o755)
    directory = folder / "global"
    directory.mkdir()
    os.chown(directory, 0, GROUP)
    directory.chmod(0o2750)
    yield directory
    shutil.rmtree(folder)


def used_by(uid: int, gid: int, uri: str, record: str) -> str:
    words = [sys.executable, "-m", "tests.harness.programs.group_client", str(uid), str(gid), uri, record]
    done = forked.run(words, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def test_members_of_the_group_use_a_store_as_clients(place: Path) -> None:
    """R17: 0640 and 0750 below `daemons`; not another group, and not before the daemons allow it. Taken back, it ends."""
    for number, allowed in enumerate(("false", "true", "false")):
        daemons = Daemons(place, 2, "64M", {"RS_GROUP_ACCESS": allowed})
        try:
            uri = daemons.uri(f"store{number}", region_mb=4)
            with open_store(uri) as store, store.connect("the engine"):
                answer = used_by(OTHER_UID, GROUP, uri, "r")
                assert (answer == "done") == (allowed == "true"), answer
                assert used_by(OTHER_UID, OTHER_GROUP, uri, "r") != "done"
                assert store.peek("r") == ({"k": b"of the group"} if allowed == "true" else {})
            wanted = (0o640, 0o750) if allowed == "true" else (0o600, 0o700)
            for found in [place / "daemons", *(place / "daemons").rglob("*")]:
                assert mode(found) & 0o777 == wanted[found.is_dir()], found
                assert found.stat().st_gid == GROUP
        finally:
            daemons.close()
