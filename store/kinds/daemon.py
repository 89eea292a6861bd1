"""python -m spark_jms.store.kinds.daemon -dir /path/to/global/directory [-localindex 0] ...

The composition root: the only module of the region cluster that knows which services a daemon may host.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_jms.store.errors import UnsupportedPlatformError
from spark_jms.store.kinds.opening import check_platform

if TYPE_CHECKING:
    from spark_jms.store.regions.daemon.daemon import ServiceFactory


def hosted_service(environment: Mapping[str, str]) -> ServiceFactory | None:
    """The WebHDFS door, if the environment asks for one. SettingInvalidError names the variable."""
    if not any(name.startswith("RS_DOOR") for name in environment):
        return None
    # 15 MB that a daemon without a door does not need.
    from spark_jms.store.webhdfs.hosting import door_from_environment

    return door_from_environment(environment)


def main(words: Sequence[str] | None = None) -> int:
    try:
        check_platform()
    except UnsupportedPlatformError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    from spark_jms.store.regions.daemon import daemon  # its modules need the platform

    return daemon.main(words, hosted_service)


if __name__ == "__main__":
    sys.exit(main())
