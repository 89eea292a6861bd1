"""The entry point of `storeadmin`: it names the extra when the packages of the replicated store are not installed.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import sys

from spark_jms.settings.extras import MissingExtraError, needs


def main() -> int:
    """Returns the exit code."""
    try:
        with needs("replicated"):
            from spark_jms.store.regions.admin.cli import main as storeadmin

            return storeadmin()
    except MissingExtraError as error:
        print(f"storeadmin: {error}", file=sys.stderr)
        return 1
