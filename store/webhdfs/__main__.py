"""A door for trials: `python -m spark_jms.store.webhdfs --memory --port N`. Its files are lost when it ends."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spark_jms.store.errors import SecurityConfigError, StoreError
from spark_jms.store.net.sockets import server_context
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs import door as webhdfs_door
from spark_jms.store.webhdfs.blocks import FilesOptions
from spark_jms.store.webhdfs.callers import UserOfProcess
from spark_jms.store.webhdfs.door import OPEN_WARNING, Door, DoorOptions
from spark_jms.store.webhdfs.files import Files


def clock_us() -> int:
    return time.time_ns() // 1000


async def serve(arguments: argparse.Namespace) -> None:
    if (arguments.certificate is None) != (arguments.key is None):
        raise SecurityConfigError("--certificate and --key go together")
    user = UserOfProcess.current().name
    files = await Files.open(MemoryObjects("webhdfs"), clock_us, FilesOptions(owner=user))
    options = DoorOptions(
        tls=server_context(arguments.certificate, arguments.key) if arguments.key else None,
        tokens=webhdfs_door.Tokens.from_file(arguments.tokens) if arguments.tokens else None,
        open=arguments.open,
        superuser=user,
    )
    door = Door(lambda: files, options)
    await door.start(arguments.host, arguments.port)
    if options.open:
        print(f"WARNING: {OPEN_WARNING % f'{arguments.host}:{door.port}'}", file=sys.stderr, flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(f"{'swebhdfs' if options.tls else 'webhdfs'}://{arguments.host}:{door.port}/", flush=True)
    await stopped.wait()
    await door.stop()
    await files.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jms.store.webhdfs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--memory", action="store_true", required=True, help="keep the files in this process (a trial)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9870, help="0 chooses a free one")
    parser.add_argument("--certificate", type=Path, help="PEM; with --key, the door speaks TLS (swebhdfs)")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--tokens", type=Path, help="file of `user token` lines, mode 0600")
    parser.add_argument("--open", action="store_true", help="admit every user of this machine, and believe user.name")
    arguments = parser.parse_args(argv)
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    try:
        run(serve(arguments))
    except (StoreError, OSError) as error:  # a wrong certificate or token file, a port that is taken
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
