"""Draws the pictures of the README from real runs: `make recording`.

first-messages.svg   the commands of FIRST_MESSAGES, run in a new directory, with what they printed
tour.png             a picture of notebooks/01_tour.ipynb as it was last executed
"""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
COLUMNS = 116
FIRST_MESSAGES = (
    "jmsq apply conf/jms-module.yaml",
    "jmsq send orders --text hello -p color=red -p amount:double=12.5 --group customer-7",
    "seq 1000 | jmsq send orders --stdin",
    "jmsq stat orders",
    "jmsq receive orders --selector \"color = 'red' AND amount > 10\"",
)
TOUR = "lag over time"  # in the source of the cell


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="jmsq-recording-") as directory:
        shutil.copytree(PROJECT / "conf", Path(directory) / "conf")
        for command in FIRST_MESSAGES:
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text.from_ansi(run(command, directory).rstrip()))
            console.print()
    drawn = console.export_svg(title="spark-jms", unique_id="first-messages")
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # a README may not load any
    (HERE / "first-messages.svg").write_text(without_fonts, encoding="utf-8")
    notebook = json.loads((PROJECT / "notebooks" / "01_tour.ipynb").read_text(encoding="utf-8"))
    (cell,) = (cell for cell in notebook["cells"] if cell["cell_type"] == "code" and TOUR in "".join(cell["source"]))
    (picture,) = (output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {}))
    (HERE / "tour.png").write_bytes(base64.b64decode(picture))


def run(command: str, directory: str) -> str:
    """What the command prints on a terminal of COLUMNS columns."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "JMSQ_ROOT": str(Path(directory) / "messages"),
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    process = subprocess.Popen(["bash", "-c", command], cwd=directory, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = bytearray()
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        printed += data
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n{printed.decode()}")
    return without_erased(printed.decode().replace("\r\n", "\n")).replace(directory, ".")


def without_erased(printed: str) -> str:
    """What a terminal shows at the end: without the lines that were erased, as those of a progress bar."""
    line_above = r"[^\n]*\n(?:\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K"
    return re.sub(r"[^\n]*\r\x1b\[2K", "", re.sub(line_above, "", printed))


if __name__ == "__main__":
    main()
