"""Message selectors: `Selector.parse(text)`, then `mask` on columns or `matches` on one message.

Features: C7 (docs/FEATURES.md)
"""

from spark_jms.core.messages.properties import HEADER_COLUMNS, PROPERTIES_COLUMN
from spark_jms.core.selector.selector import Selector
from spark_jms.errors import InvalidSelectorError

__all__ = ["HEADER_COLUMNS", "PROPERTIES_COLUMN", "InvalidSelectorError", "Selector"]
