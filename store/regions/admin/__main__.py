"""python -m spark_jms.store.regions.admin"""

import sys

from spark_jms.store.regions.admin.cli import main

sys.exit(main())
