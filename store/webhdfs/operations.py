"""Each operation of the WebHDFS REST document that applies to files and directories, on `Files`.

The tables at the end list them: `SIMPLE` operations answer at once, `STREAMED` ones have a body and belong to the door,
`UNSUPPORTED` ones are refused by name. Permissions are stored and reported, not enforced: a client that may use the door
may do everything.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from spark_jms.store.webhdfs import wire
from spark_jms.store.webhdfs.blocks import DEFAULT_FILE_BLOCK_BYTES
from spark_jms.store.webhdfs.errors import (
    AccessControlError,
    IllegalArgumentError,
    InvalidTokenError,
    RemoteIOError,
    UnsupportedError,
)
from spark_jms.store.webhdfs.files import Files
from spark_jms.store.webhdfs.inode import join, parts_of, shown
from spark_jms.store.webhdfs.wire import DoorRequest

LIST_BATCH = 1000  # dfs.ls.limit
BYTES_PER_CRC = 512
MAX_SHORT = 32767


@dataclass(frozen=True)
class DoorReply:
    body: bytes = b""
    status: int = 200
    location: str = ""


@dataclass(frozen=True)
class Caller:
    """The user who asks, the user who owns the door, the client's address, and the host:port that the client used."""

    user: str
    superuser: str
    client: str
    host: str


Operation = Callable[[Files, DoorRequest, Caller], Awaitable[DoorReply]]


async def get_file_status(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.status(await files.status(request.path)))


async def list_status(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    found, _ = await files.listing(request.path)
    return DoorReply(wire.json(wire.statuses(found)))


async def list_status_batch(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    found, remaining = await files.listing(request.path, request.text("startafter"), LIST_BATCH)
    return DoorReply(wire.directory_listing(found, remaining))


async def get_content_summary(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.content_summary(await files.summary(request.path)))


async def get_quota_usage(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.quota_usage(await files.summary(request.path)))


async def get_home_directory(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.json({"Path": f"/user/{caller.user}"}))


async def get_trash_root(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.json({"Path": f"/user/{caller.user}/.Trash"}))


async def get_server_defaults(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.server_defaults(DEFAULT_FILE_BLOCK_BYTES))


async def get_block_locations(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    offset, length = request.number("offset", 0), request.number("length", wire.MAX_LONG)
    return DoorReply(wire.block_locations(await files.status(request.path), caller.host, offset, length))


async def get_status(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    used = files.statistics().connection.object_bytes
    capacity = max(files.options.capacity_bytes, used) if files.options.capacity_bytes else wire.MAX_LONG
    return DoorReply(wire.json({"FsStatus": {"capacity": capacity, "remaining": capacity - used, "used": used}}))


async def get_acl_status(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.acl_status(await files.status(request.path)))


async def get_link_target(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    await files.status(request.path)
    raise RemoteIOError(f"Path {shown(request.path)} is not a symbolic link")


async def check_access(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    """Checks the bits of owner and others; the door knows no groups. The door's own user may do everything."""
    action = request.text("fsaction")
    if len(action) != 3 or any(have not in (bit, "-") for have, bit in zip(action, "rwx", strict=True)):
        raise IllegalArgumentError(f'Invalid value for webhdfs parameter "fsaction": {shown(action)!a}')
    status = await files.status(request.path)
    bits = (status.permission >> 6 if caller.user == status.owner else status.permission) & 7
    wanted = sum(4 >> position for position, bit in enumerate(action) if bit != "-")
    if wanted & ~bits and caller.user != caller.superuser:
        mode = ("d" if status.is_directory else "-") + format(status.permission, "o")
        raise AccessControlError(
            f"Permission denied: user={caller.user}, access={action}, "
            f'inode="{shown(request.path)}":{status.owner}:{status.group}:{mode}'
        )
    return DoorReply()


async def get_xattrs(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    encoding = request.text("encoding", "text").lower()
    if encoding not in ("text", "hex", "base64"):
        raise IllegalArgumentError(f'Invalid value for webhdfs parameter "encoding": {shown(encoding)!a}')
    found = await files.xattrs(request.path)
    names = [request.xattr_name(name) for name in request.texts("xattr.name") if name]
    if any(name not in found for name in names):
        raise RemoteIOError("At least one of the attributes provided was not found.")
    return DoorReply(wire.xattrs({name: found[name] for name in names or found}, encoding))


async def list_xattrs(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.xattr_names(await files.xattrs(request.path)))


async def set_xattr(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    flags = {flag.strip().upper() for flag in request.text("flag").split(",") if flag.strip()}
    if not flags or flags - {"CREATE", "REPLACE"}:
        raise IllegalArgumentError(f'Invalid value for webhdfs parameter "flag": {shown(request.text("flag"))!a}')
    name, value = request.xattr_name(request.text("xattr.name")), wire.xattr_value(request.text("xattr.value"))
    await files.set_xattr(request.path, name, value, "CREATE" in flags, "REPLACE" in flags)
    return DoorReply()


async def remove_xattr(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    await files.remove_xattr(request.path, request.xattr_name(request.text("xattr.name")))
    return DoorReply()


async def get_delegation_token(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    """Answers null like a NameNode without Kerberos; Hadoop's clients continue without a token."""
    return DoorReply(wire.json({"Token": None}))


async def no_delegation_token(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    raise InvalidTokenError("Delegation tokens are not given here; there is none to renew or cancel")


async def mkdirs(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    await files.mkdirs(request.path, request.permission(0o755), caller.user)
    return DoorReply(wire.boolean(True))


async def rename(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    target = request.absolute("destination")
    given = request.text("renameoptions")
    if not given:
        return DoorReply(wire.boolean(await files.rename(request.path, target)))
    options = {option.strip().upper() for option in given.split(",")}
    if options - {"NONE", "OVERWRITE", "TO_TRASH"}:
        raise IllegalArgumentError(f'Invalid value for webhdfs parameter "renameoptions": {shown(given)!a}')
    await files.rename_strict(request.path, target, "OVERWRITE" in options)
    return DoorReply()


async def set_permission(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    await files.set_attributes(request.path, permission=request.permission(0o755))
    return DoorReply()


async def set_owner(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    owner, group = request.text("owner"), request.text("group")
    if not owner and not group:
        raise IllegalArgumentError("Both owner and group are empty.")
    if max(len(owner), len(group)) > 255 or not (owner + group).isprintable():
        raise IllegalArgumentError(f'Invalid value for webhdfs parameter "owner": {shown(owner)!a}')
    await files.set_attributes(request.path, owner=owner or None, group=group or None)
    return DoorReply()


async def set_times(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    """Times in milliseconds; -1 leaves a time unchanged."""
    most = wire.MAX_LONG // 1000
    modified, accessed = (request.number(name, -1, -1, most) for name in ("modificationtime", "accesstime"))
    await files.set_attributes(
        request.path,
        modified_us=None if modified < 0 else modified * 1000,
        accessed_us=None if accessed < 0 else accessed * 1000,
    )
    return DoorReply()


async def set_replication(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    replication = request.number("replication", 1, 1, MAX_SHORT)
    return DoorReply(wire.boolean(await files.set_replication(request.path, replication)))


async def concat(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    sources = [join(parts_of(source)) for source in request.text("sources").split(",") if source]
    await files.concat(request.path, sources)
    return DoorReply()


async def truncate(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    length = request.optional_number("newlength")
    if length is None:
        raise IllegalArgumentError("newLength parameter is not given")
    await files.truncate(request.path, length)
    return DoorReply(wire.boolean(True))


async def delete(files: Files, request: DoorRequest, caller: Caller) -> DoorReply:
    return DoorReply(wire.boolean(await files.delete(request.path, request.boolean("recursive"))))


async def file_checksum(files: Files, path: str) -> bytes:
    """MD5 of the MD5s of each 128 MiB of CRC32s of each 512 bytes. HDFS computes the same with dfs.checksum.type=CRC32 and
    this block size, so equal files have equal checksums in both."""
    reader = await files.read(path)
    outer, inner, filled = hashlib.md5(usedforsecurity=False), hashlib.md5(usedforsecurity=False), 0
    blocks, rest = 0, b""
    try:
        async for chunk in reader:
            data = rest + chunk
            whole = len(data) - len(data) % BYTES_PER_CRC
            for start in range(0, whole, BYTES_PER_CRC):
                inner.update(zlib.crc32(data[start : start + BYTES_PER_CRC]).to_bytes(4, "big"))
                filled += BYTES_PER_CRC
                if filled == DEFAULT_FILE_BLOCK_BYTES:
                    outer.update(inner.digest())
                    inner, filled, blocks = hashlib.md5(usedforsecurity=False), 0, blocks + 1
            rest = data[whole:]
    finally:
        reader.close()
    if rest:
        inner.update(zlib.crc32(rest).to_bytes(4, "big"))
    if rest or filled:
        outer.update(inner.digest())
        blocks += 1
    per_block = DEFAULT_FILE_BLOCK_BYTES // BYTES_PER_CRC if blocks > 1 else 0
    value = BYTES_PER_CRC.to_bytes(4, "big") + per_block.to_bytes(8, "big") + outer.digest()
    algorithm = f"MD5-of-{per_block}MD5-of-{BYTES_PER_CRC}CRC32"
    return wire.json({"FileChecksum": {"algorithm": algorithm, "bytes": value.hex(), "length": len(value)}})


SIMPLE: dict[tuple[str, str], Operation] = {
    ("GET", "GETFILESTATUS"): get_file_status,
    ("GET", "GETFILELINKSTATUS"): get_file_status,  # there are no links
    ("GET", "LISTSTATUS"): list_status,
    ("GET", "LISTSTATUS_BATCH"): list_status_batch,
    ("GET", "GETCONTENTSUMMARY"): get_content_summary,
    ("GET", "GETQUOTAUSAGE"): get_quota_usage,
    ("GET", "GETHOMEDIRECTORY"): get_home_directory,
    ("GET", "GETTRASHROOT"): get_trash_root,
    ("GET", "GETSERVERDEFAULTS"): get_server_defaults,
    ("GET", "GETFILEBLOCKLOCATIONS"): get_block_locations,
    ("GET", "GETSTATUS"): get_status,
    ("GET", "GETACLSTATUS"): get_acl_status,
    ("GET", "GETLINKTARGET"): get_link_target,
    ("GET", "CHECKACCESS"): check_access,
    ("GET", "GETXATTRS"): get_xattrs,
    ("GET", "LISTXATTRS"): list_xattrs,
    ("GET", "GETDELEGATIONTOKEN"): get_delegation_token,
    ("PUT", "MKDIRS"): mkdirs,
    ("PUT", "RENAME"): rename,
    ("PUT", "SETPERMISSION"): set_permission,
    ("PUT", "SETOWNER"): set_owner,
    ("PUT", "SETTIMES"): set_times,
    ("PUT", "SETREPLICATION"): set_replication,
    ("PUT", "SETXATTR"): set_xattr,
    ("PUT", "REMOVEXATTR"): remove_xattr,
    ("PUT", "RENEWDELEGATIONTOKEN"): no_delegation_token,
    ("PUT", "CANCELDELEGATIONTOKEN"): no_delegation_token,
    ("POST", "CONCAT"): concat,
    ("POST", "TRUNCATE"): truncate,
    ("DELETE", "DELETE"): delete,
}
STREAMED = {("GET", "OPEN"), ("GET", "GETFILECHECKSUM"), ("PUT", "CREATE"), ("POST", "APPEND")}
UNSUPPORTED = {
    "GET": "GETDELEGATIONTOKENS GETALLSTORAGEPOLICY GETSTORAGEPOLICY GETSNAPSHOTDIFF GETSNAPSHOTDIFFLISTING "
    "GETSNAPSHOTTABLEDIRECTORYLIST GETSNAPSHOTLIST GETECPOLICY GETECPOLICIES GETECCODECS INSTRUMENTATION",
    "PUT": "CREATESYMLINK ALLOWSNAPSHOT DISALLOWSNAPSHOT CREATESNAPSHOT RENAMESNAPSHOT SETSTORAGEPOLICY "
    "SATISFYSTORAGEPOLICY ENABLEECPOLICY DISABLEECPOLICY SETECPOLICY SETQUOTA SETQUOTABYSTORAGETYPE MODIFYACLENTRIES "
    "REMOVEACLENTRIES REMOVEDEFAULTACL REMOVEACL SETACL",
    "POST": "UNSETSTORAGEPOLICY UNSETECPOLICY",
    "DELETE": "DELETESNAPSHOT",
}
_UNSUPPORTED = {(method, op) for method, ops in UNSUPPORTED.items() for op in ops.split()}


def check_op(request: DoorRequest) -> None:
    """Refuse an operation that does not exist for this HTTP method, or that this store does not support."""
    key = (request.method, request.op)
    if key in SIMPLE or key in STREAMED:
        return
    if key in _UNSUPPORTED:
        raise UnsupportedError(f"{request.op} is not supported")
    known = request.method if request.method in UNSUPPORTED else "GET"
    enum = f"org.apache.hadoop.hdfs.web.resources.{known.capitalize()}OpParam.Op"
    raise IllegalArgumentError(f'Invalid value for webhdfs parameter "op": No enum constant {enum}.{shown(request.op)}')
