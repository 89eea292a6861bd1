"""WebHDFS requests as values and answers as bytes, after the public REST document. Pure.

All parameters are checked here: any request becomes a value or a named error.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from spark_jms.store.webhdfs.errors import IllegalArgumentError, NoSuchFileError, RemoteError
from spark_jms.store.webhdfs.inode import ContentSummary, FileStatus, join, parts_of, shown

PREFIX = "/webhdfs/v1"
MAX_TARGET_BYTES = 64 * 1024
MAX_PARAMETERS = 256
MAX_LONG = 2**63 - 1
FLAGS = {
    "CREATE",
    "OVERWRITE",
    "APPEND",
    "SYNC_BLOCK",
    "LAZY_PERSIST",
    "NEW_BLOCK",
    "NO_LOCAL_WRITE",
    "SHOULD_REPLICATE",
    "IGNORE_CLIENT_LOCALITY",
    "NO_LOCAL_RACK",
}
_HEX = {f"{n:02x}": n for n in range(256)}
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._\-@]{0,254}[$]?")
_XATTR = re.compile(r"^(user|trusted|system|security|raw)\.[^\x00-\x1f]{1,200}$", re.IGNORECASE)


@dataclass(frozen=True)
class DoorRequest:
    """`op` is in upper case. Parameter names are in lower case, because HDFS ignores their case."""

    method: str
    path: str
    op: str
    parameters: tuple[tuple[str, str], ...]

    def texts(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]

    def text(self, name: str, default: str = "") -> str:
        values = self.texts(name)
        return values[0] if values else default

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.text(name).lower()
        if value in ("", "null"):
            return default
        if value not in ("true", "false"):
            raise _invalid(name, value, "it is neither true nor false")
        return value == "true"

    def number(self, name: str, default: int, least: int = 0, most: int = MAX_LONG) -> int:
        value = self.optional_number(name, least, most)
        return default if value is None else value

    def optional_number(self, name: str, least: int = 0, most: int = MAX_LONG) -> int | None:
        value = self.text(name)
        if value in ("", "null"):
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value) or not least <= int(value) <= most:
            raise _invalid(name, value, f"it is not a number from {least} to {most}")
        return int(value)

    def permission(self, default: int) -> int:
        value = self.text("permission")
        if value in ("", "null"):
            return default
        if not re.fullmatch(r"[01]?[0-7]{1,3}", value):
            raise _invalid("permission", value, "it is not an octal number from 0 to 1777")
        return int(value, 8)

    def flags(self) -> set[str]:
        flags = {flag.strip().upper() for flag in self.text("createflag").split(",") if flag.strip()}
        if flags - FLAGS:
            raise _invalid("createflag", self.text("createflag"), "it has an unknown flag")
        return flags

    def user(self, default: str) -> str:
        name = self.text("doas") or self.text("user.name") or default
        if not _USER.fullmatch(name):
            raise _invalid("user.name", name, "it is not a user name")
        return name

    def absolute(self, name: str) -> str:
        """A parameter that is a path."""
        value = self.text(name)
        if not value.startswith("/"):
            raise _invalid(name, value, "it is not an absolute path")
        return join(parts_of(value))

    def xattr_name(self, name: str) -> str:
        if not _XATTR.fullmatch(name):
            raise _invalid("xattr.name", name, "it has no namespace (user.NAME)")
        return name


def parse(method: str, target: str) -> DoorRequest:
    """Parse the target of a request line. Raises nothing but RemoteErrors."""
    if len(target) > MAX_TARGET_BYTES:
        raise IllegalArgumentError(f"The request line has {len(target)} characters, at most {MAX_TARGET_BYTES}")
    raw, _, query = target.partition("?")
    if raw != PREFIX and not raw.startswith(PREFIX + "/"):
        raise NoSuchFileError(f"The only path here is {PREFIX}: {shown(raw)!a}")
    path = join(parts_of(_decoded(raw[len(PREFIX) :]) or "/"))
    pairs = query.partition("#")[0].split("&") if query else []
    if len(pairs) > MAX_PARAMETERS:
        raise IllegalArgumentError(f"{len(pairs)} parameters, at most {MAX_PARAMETERS}")
    parameters = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name:
            parameters.append((_decoded(name.replace("+", " ")).lower(), _decoded(value.replace("+", " "))))
    request = DoorRequest(method, path, "", tuple(parameters))
    return DoorRequest(method, path, request.text("op").upper(), request.parameters)


def xattr_value(text: str) -> bytes:
    """Decodes like XAttrCodec: 0x hexadecimal, 0s base64, else text, quoted or not."""
    try:
        if text[:2].lower() == "0x":
            return bytes.fromhex(text[2:])
        if text[:2].lower() == "0s":
            return base64.b64decode(text[2:], validate=True)
    except (ValueError, binascii.Error):
        raise _invalid("xattr.value", text, "it does not match its encoding") from None
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return text.encode("utf-8", "surrogatepass")


# ---- answers


def json(value: object) -> bytes:
    return msgspec.json.encode(value)


def boolean(value: bool) -> bytes:
    return b'{"boolean":true}' if value else b'{"boolean":false}'


def error(refusal: RemoteError) -> bytes:
    return json(
        {
            "RemoteException": {
                "exception": refusal.exception,
                "javaClassName": refusal.java_class,
                "message": _plain(refusal.message),
            }
        }
    )


def status_map(status: FileStatus) -> dict[str, object]:
    return {
        "accessTime": status.accessed_us // 1000,
        "blockSize": status.block_bytes,
        "childrenNum": status.children,
        "fileId": status.inode,
        "group": status.group,
        "length": status.length,
        "modificationTime": status.modified_us // 1000,
        "owner": status.owner,
        "pathSuffix": status.path_suffix,
        "permission": format(status.permission, "o"),
        "replication": status.replication,
        "storagePolicy": 0,
        "type": "DIRECTORY" if status.is_directory else "FILE",
    }


def status(value: FileStatus) -> bytes:
    return json({"FileStatus": status_map(value)})


def statuses(values: list[FileStatus]) -> dict[str, object]:
    return {"FileStatuses": {"FileStatus": [status_map(value) for value in values]}}


def directory_listing(values: list[FileStatus], remaining: int) -> bytes:
    return json({"DirectoryListing": {"partialListing": statuses(values), "remainingEntries": remaining}})


def content_summary(value: ContentSummary) -> bytes:
    return json(
        {
            "ContentSummary": {
                "directoryCount": value.directories,
                "ecPolicy": "",
                "erasureCodingPolicy": "",
                "fileCount": value.files,
                "length": value.length,
                "quota": -1,
                "snapshotDirectoryCount": 0,
                "snapshotFileCount": 0,
                "snapshotLength": 0,
                "snapshotSpaceConsumed": 0,
                "spaceConsumed": value.space_consumed,
                "spaceQuota": -1,
                "typeQuota": {},
            }
        }
    )


def quota_usage(value: ContentSummary) -> bytes:
    usage = {
        "fileAndDirectoryCount": value.files + value.directories,
        "quota": -1,
        "spaceConsumed": value.space_consumed,
        "spaceQuota": -1,
        "typeQuota": {},
    }
    return json({"QuotaUsage": usage})


def acl_status(value: FileStatus) -> bytes:
    return json(
        {
            "AclStatus": {
                "entries": [],
                "group": value.group,
                "owner": value.owner,
                "permission": format(value.permission, "o"),
                "stickyBit": bool(value.permission & 0o1000),
            }
        }
    )


def server_defaults(block_bytes: int) -> bytes:
    defaults = {
        "blockSize": block_bytes,
        "bytesPerChecksum": 512,
        "checksumType": 1,  # CRC32
        "defaultStoragePolicyId": 7,
        "encryptDataTransfer": False,  # a boolean: the Java client casts
        "fileBufferSize": 65536,
        "keyProviderUri": "",
        "replication": 1,
        "snapshotTrashRootEnabled": False,
        "trashInterval": 0,
        "writePacketSize": 65536,
    }
    return json({"FsServerDefaults": defaults})


def block_locations(value: FileStatus, host: str, offset: int, length: int) -> bytes:
    end = min(value.length, offset + length)
    size = max(value.block_bytes, value.length // 1000 + 1)  # bounds the answer for a tiny block size
    found = [
        {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": [host.rpartition(":")[0] or host],
            "length": min(size, value.length - start),
            "names": [host],
            "offset": start,
            "storageTypes": ["RAM_DISK"],
            "topologyPaths": ["/default-rack/" + host],
        }
        for start in range(offset // size * size, end, size)
    ]
    return json({"BlockLocations": {"BlockLocation": found}})


def xattrs(values: dict[str, bytes], encoding: str) -> bytes:
    def encoded(value: bytes) -> str:
        if encoding == "text":
            return '"' + value.decode("utf-8", "replace") + '"'
        return "0s" + base64.b64encode(value).decode() if encoding == "base64" else "0x" + value.hex()

    return json({"XAttrs": [{"name": name, "value": encoded(value)} for name, value in sorted(values.items())]})


def xattr_names(names: Iterable[str]) -> bytes:
    return json({"XAttrNames": json(sorted(names)).decode()})


def _decoded(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    head, *rest = text.split("%")
    parts = [head.encode("utf-8", "surrogateescape")]
    for each in rest:
        number = _HEX.get(each[:2].lower())
        if number is None:
            raise IllegalArgumentError(f"URLDecoder: Illegal hex characters in escape (%) pattern: {shown(text)!a}")
        parts.append(bytes((number,)))
        parts.append(each[2:].encode("utf-8", "surrogateescape"))
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        raise IllegalArgumentError(f"URLDecoder: not UTF-8: {shown(text)!a}") from None


def _plain(message: str) -> str:
    return message.encode("utf-8", "replace").decode()


def _invalid(name: str, value: str, reason: str) -> IllegalArgumentError:
    return IllegalArgumentError(f'Invalid value for webhdfs parameter "{name}": {shown(value)!a}: {reason}')


def form(data: bytes) -> dict[str, str]:
    """Decodes an application/x-www-form-urlencoded body; the last value of a repeated name wins."""
    pairs = (pair.partition("=") for pair in data.decode("ascii", "replace").split("&"))
    return {_decoded(name.replace("+", " ")): _decoded(value.replace("+", " ")) for name, _, value in pairs}
