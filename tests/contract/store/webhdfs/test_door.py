"""The WebHDFS door over HTTP (R19): every operation and every refusal, as Hadoop's clients and fsspec see them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

import aiohttp
import pytest

from spark_jms.store.errors import DaemonUnavailableError, FencedError
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.door import Door, DoorOptions
from spark_jms.store.webhdfs.files import Files
from spark_jms.store.webhdfs.operations import SIMPLE, STREAMED
from tests.harness.stores.webhdfs_door import OPTIONS, DoorHarness, run_with_door

OPEN = DoorOptions(open=True, superuser="owner")  # believes user.name, which these requests carry


def test_every_operation_of_files_and_directories() -> None:
    """R19: every operation of the public REST document answers as described there."""

    async def use(harness: DoorHarness) -> None:
        await check_contents(harness)
        await check_counts(harness)
        await check_attributes(harness)
        await check_extended_attributes(harness)
        assert await harness.ok("GET", "/", "GETDELEGATIONTOKEN", renewer="x") == {"Token": None}
        assert await harness.refused("PUT", "/", "RENEWDELEGATIONTOKEN", token="x") == (403, "InvalidToken")
        assert await harness.refused("DELETE", "/a", "DELETE") == (403, "PathIsNotEmptyDirectoryException")
        assert await harness.ok("DELETE", "/a", "DELETE", recursive="true") == {"boolean": True}
        assert await harness.ok("DELETE", "/a", "DELETE") == {"boolean": False}

    run_with_door(use, OPEN)


async def check_contents(harness: DoorHarness) -> None:
    """Leaves /a/b/big with 14 bytes."""
    assert await harness.ok("PUT", "/a/b", "MKDIRS", permission="750", user_name="alice") == {"boolean": True}
    big = random.Random(1).randbytes(5000)
    await harness.put("/a/b/big", big, permission="640", replication=2, blocksize=4096, user_name="bob")
    status = (await harness.ok("GET", "/a/b/big", "GETFILESTATUS"))["FileStatus"]
    assert status == {
        "accessTime": 1_700_000_000_000,
        "blockSize": 4096,
        "childrenNum": 0,
        "fileId": status["fileId"],
        "group": "supergroup",
        "length": 5000,
        "modificationTime": 1_700_000_000_000,
        "owner": "bob",
        "pathSuffix": "",
        "permission": "640",
        "replication": 2,
        "storagePolicy": 0,
        "type": "FILE",
    }
    assert (await harness.ok("GET", "/a/b/big", "GETFILELINKSTATUS"))["FileStatus"] == status
    assert (await harness.ok("GET", "/a", "LISTSTATUS"))["FileStatuses"]["FileStatus"][0]["permission"] == "750"
    assert await harness.get("/a/b/big") == big
    assert await harness.get("/a/b/big", offset=1000, length=2000) == big[1000:3000]
    assert await harness.get("/a/b/big", offset=4999, length=9) == big[4999:]
    assert await harness.refused("GET", "/a/b/big", "OPEN", offset=5000) == (403, "IOException")
    assert (await harness.ask("POST", "/a/b/big", "APPEND", b"tail"))[0] == 200
    assert await harness.get("/a/b/big", offset=4998) == big[4998:] + b"tail"
    assert await harness.ok("POST", "/a/b/big", "TRUNCATE", newlength=10) == {"boolean": True}
    assert await harness.get("/a/b/big") == big[:10]
    await harness.put("/a/b/x", b"xx")
    await harness.put("/a/b/y", b"yy")
    await harness.ok("POST", "/a/b/big", "CONCAT", sources="/a/b/x,/a/b/y")
    assert await harness.get("/a/b/big") == big[:10] + b"xxyy"


async def check_counts(harness: DoorHarness) -> None:
    summary = (await harness.ok("GET", "/a", "GETCONTENTSUMMARY"))["ContentSummary"]
    assert (summary["directoryCount"], summary["fileCount"], summary["length"]) == (2, 1, 14)
    assert summary["spaceConsumed"] == 28
    usage = (await harness.ok("GET", "/a", "GETQUOTAUSAGE"))["QuotaUsage"]
    assert (usage["fileAndDirectoryCount"], usage["quota"]) == (3, -1)
    checksum = (await harness.ok("GET", "/a/b/big", "GETFILECHECKSUM"))["FileChecksum"]
    assert checksum["algorithm"] == "MD5-of-0MD5-of-512CRC32"
    assert (checksum["length"], len(checksum["bytes"])) == (28, 56)
    assert await harness.ok("GET", "/", "GETHOMEDIRECTORY", user_name="eve") == {"Path": "/user/eve"}
    assert await harness.ok("GET", "/", "GETTRASHROOT", user_name="eve") == {"Path": "/user/eve/.Trash"}
    defaults = (await harness.ok("GET", "/", "GETSERVERDEFAULTS"))["FsServerDefaults"]
    assert defaults["encryptDataTransfer"] is False
    assert (await harness.ok("GET", "/", "GETSTATUS"))["FsStatus"]["used"] > 0
    located = (await harness.ok("GET", "/a/b/big", "GETFILEBLOCKLOCATIONS"))["BlockLocations"]["BlockLocation"]
    assert [(block["offset"], block["length"]) for block in located] == [(0, 14)]


async def check_attributes(harness: DoorHarness) -> None:
    await harness.ok("PUT", "/a/b/big", "SETPERMISSION", permission="1700")
    await harness.ok("PUT", "/a/b/big", "SETOWNER", owner="carol", group="staff")
    await harness.ok("PUT", "/a/b/big", "SETTIMES", modificationtime=5, accesstime=-1)
    assert await harness.ok("PUT", "/a/b/big", "SETREPLICATION", replication=3) == {"boolean": True}
    assert await harness.ok("PUT", "/a", "SETREPLICATION", replication=3) == {"boolean": False}
    status = (await harness.ok("GET", "/a/b/big", "GETFILESTATUS"))["FileStatus"]
    kept = [status[name] for name in ("permission", "owner", "group", "modificationTime", "replication")]
    assert kept == ["1700", "carol", "staff", 5, 3]
    assert status["accessTime"] == 1_700_000_000_000
    assert (await harness.ok("GET", "/a/b/big", "GETACLSTATUS"))["AclStatus"]["stickyBit"] is True
    await harness.ok("GET", "/a/b/big", "CHECKACCESS", fsaction="rw-", user_name="carol")
    await harness.ok("GET", "/a/b/big", "CHECKACCESS", fsaction="rwx", user_name="owner")
    assert await harness.refused("GET", "/a/b/big", "CHECKACCESS", fsaction="r--", user_name="eve") == (
        403,
        "AccessControlException",
    )


async def check_extended_attributes(harness: DoorHarness) -> None:
    xattr = {"xattr_name": "user.k"}
    await harness.ok("PUT", "/a", "SETXATTR", xattr_value="0x6869", flag="CREATE", **xattr)
    assert await harness.refused("PUT", "/a", "SETXATTR", xattr_value="1", flag="CREATE", **xattr) == (
        403,
        "IOException",
    )
    assert (await harness.ok("GET", "/a", "GETXATTRS", encoding="text"))["XAttrs"] == [
        {"name": "user.k", "value": '"hi"'}
    ]
    assert await harness.ok("GET", "/a", "LISTXATTRS") == {"XAttrNames": '["user.k"]'}
    await harness.ok("PUT", "/a", "REMOVEXATTR", **xattr)
    assert await harness.refused("GET", "/a", "GETXATTRS", **xattr) == (403, "IOException")


def test_old_and_strict_rename() -> None:
    """R19: the old rename answers false where the one with options refuses by name."""

    async def use(harness: DoorHarness) -> None:
        await harness.put("/f", b"f")
        await harness.put("/g", b"g")
        await harness.ok("PUT", "/d", "MKDIRS")

        async def old(source: str, target: str) -> bool:
            found: bool = (await harness.ok("PUT", source, "RENAME", destination=target))["boolean"]
            return found

        assert not await old("/none", "/x")
        assert not await old("/f", "/g")
        assert not await old("/d", "/d/e")
        assert not await old("/f", "/no/parent")
        assert await old("/f", "/f")
        assert await old("/f", "/d")
        assert await harness.get("/d/f") == b"f"
        strict = {"renameoptions": "NONE"}
        for source, target, error in [
            ("/none", "/x", (404, "FileNotFoundException")),
            ("/g", "/d/f", (403, "FileAlreadyExistsException")),
            ("/g", "/g", (403, "FileAlreadyExistsException")),
            ("/g", "/d/f/x", (403, "ParentNotDirectoryException")),
            ("/g", "/no/x", (404, "FileNotFoundException")),
            ("/d", "/d/e", (403, "IOException")),
            ("/", "/e", (403, "IOException")),
        ]:
            assert await harness.refused("PUT", source, "RENAME", destination=target, **strict) == error
        assert await harness.refused("PUT", "/g", "RENAME", destination="/d", renameoptions="OVERWRITE") == (
            403,
            "IOException",
        )
        assert await harness.ask("PUT", "/g", "RENAME", destination="/d/f", renameoptions="OVERWRITE") == (200, b"")
        assert await harness.get("/d/f") == b"g"
        assert await harness.refused("PUT", "/d", "RENAME", destination="/e", renameoptions="LATER") == (
            400,
            "IllegalArgumentException",
        )

    run_with_door(use)


def test_create_and_append_take_two_steps() -> None:
    """R19: the first step answers 307, or 200 with the address, and writes nothing."""

    async def use(harness: DoorHarness) -> None:
        async with harness.session.put(harness.url("/f", "CREATE"), allow_redirects=False) as first:
            assert (first.status, await first.read()) == (307, b"")
            assert "Content-Type" not in first.headers
            location = first.headers["Location"]
        assert await harness.refused("GET", "/f", "GETFILESTATUS") == (404, "FileNotFoundException")
        async with harness.session.put(location, data=b"data") as second:
            assert second.status == 201
            assert second.headers["Location"] == f"webhdfs://127.0.0.1:{harness.door.port}/f"
        for method, op in [("PUT", "CREATE"), ("POST", "APPEND"), ("GET", "OPEN"), ("GET", "GETFILECHECKSUM")]:
            answer = await harness.ok(method, "/f", op, noredirect="true")
            assert answer["Location"].startswith(f"http://127.0.0.1:{harness.door.port}/webhdfs/v1/f?op={op}")
        assert await harness.get("/f") == b"data"
        assert await harness.refused("POST", "/none", "APPEND") == (404, "FileNotFoundException")
        assert await harness.refused("PUT", "/f", "CREATE") == (403, "FileAlreadyExistsException")
        await harness.put("/f", b"new", overwrite="true")
        await harness.put("/f", b"newer", createflag="CREATE,OVERWRITE", createparent="false")
        assert await harness.get("/f") == b"newer"
        assert await harness.refused("PUT", "/no/f", "CREATE", createparent="false") == (404, "FileNotFoundException")
        assert await harness.refused("PUT", "/f/x", "CREATE") == (403, "ParentNotDirectoryException")
        assert await harness.refused("PUT", "/f", "CREATE", createflag="MAYBE") == (400, "IllegalArgumentException")
        assert await harness.refused("PUT", "/f/x", "MKDIRS") == (403, "ParentNotDirectoryException")
        assert await harness.refused("PUT", "/f", "MKDIRS") == (403, "FileAlreadyExistsException")

    run_with_door(use)


def test_listing_in_batches_is_complete() -> None:
    """R19: LISTSTATUS_BATCH lists a large directory without a gap."""

    async def use(harness: DoorHarness) -> None:
        assert harness.files is not None
        await asyncio.gather(*(harness.files.mkdirs(f"/d/{n:05d}") for n in range(2500)))
        seen: list[str] = []
        remaining = [1]
        while remaining[-1]:
            listing = await harness.ok("GET", "/d", "LISTSTATUS_BATCH", startAfter=seen[-1] if seen else "")
            found = listing["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
            seen += [status["pathSuffix"] for status in found]
            remaining.append(listing["DirectoryListing"]["remainingEntries"])
        assert seen == [f"{n:05d}" for n in range(2500)]
        assert remaining[1:] == [1500, 500, 0]

    run_with_door(use)


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "name"),
    [
        ("GET", "/%zz", "op=OPEN", 400, "IllegalArgumentException"),
        ("GET", "/%ff", "op=OPEN", 400, "IllegalArgumentException"),
        ("GET", "/", "op=NOSUCH", 400, "IllegalArgumentException"),
        ("GET", "/", "", 400, "IllegalArgumentException"),
        ("PUT", "/", "op=LISTSTATUS", 400, "IllegalArgumentException"),
        ("PATCH", "/", "op=LISTSTATUS", 400, "IllegalArgumentException"),
        ("PUT", "/", "op=CREATESNAPSHOT", 400, "UnsupportedOperationException"),
        ("GET", "/", "op=GETECPOLICY", 400, "UnsupportedOperationException"),
        ("PUT", "/x", "op=CREATESYMLINK&destination=/y", 400, "UnsupportedOperationException"),
        ("GET", "/x", "op=OPEN", 404, "FileNotFoundException"),
        ("GET", "/", "op=OPEN", 404, "FileNotFoundException"),
        ("GET", "/x", "op=OPEN&offset=-1", 400, "IllegalArgumentException"),
        ("GET", "/x", "op=OPEN&offset=99999999999999999999", 400, "IllegalArgumentException"),
        ("GET", "/x", "op=OPEN&length=1e3", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=CREATE&permission=888&data=true", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=CREATE&overwrite=maybe&data=true", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=CREATE&data=true&user.name=a%20b", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=RENAME", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=RENAME&destination=y", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=SETOWNER", 400, "IllegalArgumentException"),
        ("PUT", "/x", "op=SETREPLICATION&replication=0", 400, "IllegalArgumentException"),
        ("POST", "/x", "op=TRUNCATE", 400, "IllegalArgumentException"),
        ("GET", "/" + "a" * 256, "op=OPEN", 403, "PathComponentTooLongException"),
        ("GET", "/a" * 4000, "op=OPEN", 403, "IOException"),
        ("GET", "/" + "aaa/" * 15000, "op=OPEN", 403, "IOException"),
        ("GET", "/../../etc/passwd", "op=OPEN", 400, "IllegalArgumentException"),
        ("GET", "/%2e%2e/x", "op=OPEN", 400, "IllegalArgumentException"),
        ("GET", "/", "&".join(["op=OPEN"] + ["a=b"] * 300), 400, "IllegalArgumentException"),
        ("GET", "/x", "op=GETLINKTARGET", 404, "FileNotFoundException"),
    ],
)
def test_refusals_have_hadoop_names(method: str, path: str, query: str, status: int, name: str) -> None:
    """R19: bad escapes, numbers, paths and operations are refused with HDFS's exception and HTTP status."""

    async def use(harness: DoorHarness) -> None:
        found = await raw(harness, f"{method} /webhdfs/v1{path}?{query} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert found[0] == status
        assert json.loads(found[1])["RemoteException"]["exception"] == name

    run_with_door(use, OPEN)


async def raw(harness: DoorHarness, request: bytes, end: bool = False) -> tuple[int, bytes]:
    """The door's answer to these bytes; (0, b"") when it closes the connection without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.door.port)
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await asyncio.wait_for(reader.readexactly(int(lengths[0].split(b":")[1])), 10) if lengths else b""
        return int(head.split(b" ")[1]), body
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\n0123",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["length", "chunked", "nonsense"],
)
def test_interrupted_body_leaves_nothing(body: bytes) -> None:
    """R19: after half a body the old content stays and the lease ends."""

    async def cut(harness: DoorHarness) -> None:
        await harness.put("/old", b"old")
        for path in ("/new", "/old"):
            target = f"PUT /webhdfs/v1{path}?op=CREATE&overwrite=true&data=true HTTP/1.1\r\nHost: h\r\n"
            _, writer = await asyncio.open_connection("127.0.0.1", harness.door.port)
            writer.write(target.encode() + body)
            await writer.drain()
            if b"zz" not in body:
                await until(lambda: harness.door.statistics().open_streams > 0)
            writer.transport.abort()
            await until(lambda: harness.door.statistics().open_streams == 0)
        assert await harness.refused("GET", "/new", "GETFILESTATUS") == (404, "FileNotFoundException")
        assert await harness.get("/old") == b"old"

    run_with_door(cut)


async def until(true: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 10)


def test_stalled_body_ends_the_lease() -> None:
    """R19: a writer that sends nothing loses its lease after the idle timeout."""

    async def stall(harness: DoorHarness) -> None:
        head = b"PUT /webhdfs/v1/f?op=CREATE&data=true HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123"
        status, body = await raw(harness, head)
        assert status == 403
        assert json.loads(body)["RemoteException"]["exception"] == "IOException"
        assert await harness.refused("GET", "/f", "GETFILESTATUS") == (404, "FileNotFoundException")

    run_with_door(stall, DoorOptions(superuser="owner", idle_timeout_ms=50))


def test_large_files_are_streamed() -> None:
    """R19: a file above `answer_at_once_bytes` is sent block by block, and so are ranges of it."""

    async def use(harness: DoorHarness) -> None:
        data = random.Random(2).randbytes(3_000_000)
        await harness.put("/large", data)
        assert await harness.get("/large") == data
        assert await harness.get("/large", offset=100_001, length=2_000_000) == data[100_001:2_100_001]
        assert harness.door.statistics().received_bytes == len(data)

    run_with_door(use, DoorOptions(superuser="owner", answer_at_once_bytes=4096))


def test_lost_store_answers_retriable_or_standby() -> None:
    """R19: 503 with RetriableException while the namespace is lost, with StandbyException while no daemon serves it."""

    async def use(harness: DoorHarness) -> None:
        await harness.put("/f", b"1")
        harness.objects.failure = FencedError("planned")
        assert await harness.refused("PUT", "/d", "MKDIRS") == (503, "RetriableException")
        assert await harness.refused("GET", "/f", "OPEN") == (503, "RetriableException")
        harness.files = None
        assert await harness.refused("GET", "/f", "OPEN") == (503, "StandbyException")
        harness.objects = MemoryObjects(max_object_bytes=64 * 1024, contents=harness.objects.contents)
        harness.files = await Files.open(harness.objects, lambda: 1, OPTIONS)
        assert await harness.get("/f") == b"1"

    run_with_door(use)


def test_unreadable_block_cuts_the_connection() -> None:
    """R19: a body that cannot be completed is short, never wrong."""

    async def use(harness: DoorHarness) -> None:
        await harness.put("/large", bytes(500_000))
        reads, read = 0, harness.objects.read

        async def third_fails(handle: int) -> bytes:
            nonlocal reads
            reads += 1
            if reads == 3:
                raise DaemonUnavailableError("planned")
            return await read(handle)

        harness.objects.read = third_fails  # type: ignore[method-assign]
        async with harness.session.get(harness.url("/large", "OPEN")) as answer:
            await answer.content.readexactly(1000)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()

    run_with_door(use, DoorOptions(superuser="owner", answer_at_once_bytes=1024))


def test_door_forwards_requests() -> None:
    """R19: a door that does not serve the namespace forwards both steps and large bodies, but never a forwarded request."""

    async def use(harness: DoorHarness) -> None:
        target: list[str] = [f"127.0.0.1:{harness.door.port}"]
        front = DoorHarness()
        front.door = Door(lambda: None, forward_to=lambda: target[0])
        await front.door.start()
        front.session = harness.session
        try:
            data = random.Random(3).randbytes(2_500_000)
            async with harness.session.put(front.url("/f", "CREATE"), allow_redirects=False) as first:
                assert first.headers["Location"].startswith(f"http://127.0.0.1:{front.door.port}/"), (
                    "the second step comes back through this door"
                )
            await front.put("/f", data)
            assert await front.get("/f") == data
            assert await front.get("/f", offset=5, length=5) == data[5:10]
            assert await front.refused("GET", "/none", "OPEN") == (404, "FileNotFoundException")
            target[0] = f"127.0.0.1:{front.door.port}"
            assert await front.refused("GET", "/f", "OPEN") == (503, "StandbyException")
            with_nobody = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
            target[0] = f"127.0.0.1:{with_nobody.sockets[0].getsockname()[1]}"
            assert await front.refused("GET", "/f", "OPEN") == (503, "RetriableException")
            with_nobody.close()
        finally:
            await front.door.stop()

    run_with_door(use)


CONTROLS = ["%0D%0A", "%0a", "%00", "%09", "%0b", "%1f", "%7f"]
OPERATIONS = [*SIMPLE, *STREAMED]


def test_control_characters_are_refused_by_name() -> None:
    """R19: in a path, in each operation, by a door that serves the namespace, one that forwards and one that does neither; in a
    second path, a user and the name of an attribute; and where there is no WebHDFS at all."""

    async def use(harness: DoorHarness) -> None:
        fronts = [DoorHarness(), DoorHarness()]
        fronts[0].door = Door(lambda: None, OPEN, lambda: f"127.0.0.1:{harness.door.port}")
        fronts[1].door = Door(lambda: None)
        for front in fronts:
            await front.door.start()
        try:
            await harness.put("/f", b"content")
            bad = (400, "IllegalArgumentException")
            asked = [(method, op, "%0D%0A") for method, op in OPERATIONS]
            asked += [("GET", "OPEN", control) for control in CONTROLS]
            for door in (harness, *fronts):
                for method, op, control in asked:
                    query = f"op={op}&destination=/new&data=true"
                    for path in (f"/f{control}", f"/{control}/f"):
                        assert await named(door, method, f"/webhdfs/v1{path}?{query}") == bad
                    for path in (f"/else{control}", f"/webhdfs/v1{control}"):
                        assert (await named(door, method, f"{path}?{query}"))[1] == "FileNotFoundException"
            for control in CONTROLS[:-1]:
                for method, query in (
                    ("PUT", f"op=RENAME&destination=/g{control}"),
                    ("POST", f"op=CONCAT&sources=/g{control}"),
                    ("PUT", f"op=SETXATTR&xattr.name=user.a{control}&xattr.value=1&flag=CREATE"),
                    ("PUT", f"op=MKDIRS&user.name=root{control}"),
                ):
                    for door in (harness, fronts[0]):
                        assert await named(door, method, f"/webhdfs/v1/f?{query}") == bad, query
            assert (await harness.ok("GET", "/", "LISTSTATUS"))["FileStatuses"]["FileStatus"][0]["pathSuffix"] == "f"
        finally:
            for front in fronts:
                await front.door.stop()

    run_with_door(use, OPEN)


@pytest.mark.parametrize("target", ["/", "http://h/x", "//h/webhdfs/v1/f"])
def test_target_of_no_file_is_refused_by_name(target: str) -> None:
    """R19: a path outside WebHDFS, or the whole URL."""

    async def use(harness: DoorHarness) -> None:
        for method in ("GET", "PUT", "OPTIONS"):
            assert (await named(harness, method, target))[1] in ("FileNotFoundException", "IllegalArgumentException")

    run_with_door(use)


async def named(harness: DoorHarness, method: str, target: str) -> tuple[int, str]:
    """The status and the exception of the answer to a request without a body."""
    status, body = await raw(harness, f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return status, json.loads(body)["RemoteException"]["exception"]


# ---- other clients


def test_fsspec_works() -> None:
    """R19: fsspec's webhdfs filesystem works unchanged."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("requests")

    def use_fsspec(port: int) -> None:
        fs = fsspec.filesystem("webhdfs", host="127.0.0.1", port=port, user="owner", skip_instance_cache=True)
        fs.mkdir("/data")
        data = random.Random(4).randbytes(300_000)
        with fs.open("/data/f", "wb") as out:
            out.write(data)
        assert fs.cat("/data/f") == data
        with fs.open("/data/f", "rb") as source:
            source.seek(250_000)
            assert source.read(10) == data[250_000:250_010]
        assert fs.info("/data/f")["size"] == 300_000
        assert fs.ls("/data", detail=False) == ["/data/f"]
        assert fs.du("/data") == 300_000
        fs.mv("/data/f", "/data/g")
        assert fs.find("/") == ["/data/g"]
        with pytest.raises(FileNotFoundError):
            fs.cat("/data/f")
        fs.rm("/data", recursive=True)
        assert fs.ls("/") == []
        fs.session.close()

    async def use(harness: DoorHarness) -> None:
        await asyncio.to_thread(use_fsspec, harness.door.port)

    run_with_door(use)
