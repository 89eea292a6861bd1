"""Who may read a page that a command serves: this machine without a token, any other only with one.

Features: M5, M8 (docs/FEATURES.md)
"""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path

from spark_jms.errors import OptionError


def read_token(file: Path) -> str:
    """What the file has, without the blanks around it. Raises OptionError for what no header of a request can carry."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"the token in {file} has byte 0x{error.object[error.start]:02x} at {error.start}: write letters and digits of ASCII, "
            "which every browser and scraper sends as they are"
        ) from None
    if not token.isprintable() or " " in token:
        raise OptionError(f"the token in {file} has blanks, lines or control characters: write one word")
    if not token:
        raise OptionError(f"{file} is empty: write a token into it")
    return token


def check_exposure(host: str, token: str | None) -> None:
    """Raises OptionError for an address off loopback without a token."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not token:
        raise OptionError(f"{host} can be reached from other machines: give --token-file, or serve 127.0.0.1")


def is_allowed(token: str | None, authorization: str, parameter: str = "") -> bool:
    """Whether a request with this Authorization header, or this token as a parameter of its address, may read the page."""
    given = parameter or authorization.removeprefix("Bearer ")
    return token is None or hmac.compare_digest(given.encode(), token.encode())
