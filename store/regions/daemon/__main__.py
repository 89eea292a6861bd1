"""python -m spark_jms.store.regions.daemon -dir /path/to/global/directory [-localindex 0] ..."""

import sys

from spark_jms.store.regions.daemon.daemon import main

if __name__ == "__main__":
    sys.exit(main())
