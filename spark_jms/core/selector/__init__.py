"""Message selectors: `Selector.parse(text)`, then `mask` on columns or `matches` on one message.

Features: C7 (docs/FEATURES.md)
"""

from spark_jms.core.selector.selector import HEADER_COLUMNS, PROPERTIES_COLUMN, InvalidSelectorError, Selector

__all__ = ["HEADER_COLUMNS", "PROPERTIES_COLUMN", "InvalidSelectorError", "Selector"]
