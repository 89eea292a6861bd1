"""python -m store.replicated.admin"""

import sys

from store.replicated.admin.cli import main

sys.exit(main())
