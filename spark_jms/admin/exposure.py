"""Who may read a page that a command serves: this machine without a token, any other only with one (M5, M8)."""

from __future__ import annotations

import hmac
import ipaddress

from spark_jms.errors import OptionError


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
