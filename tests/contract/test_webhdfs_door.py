"""The WebHDFS door over HTTP (R19): every operation, every refusal, as Hadoop's clients and fsspec see them."""

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
from tests.contract.webhdfs_house import OPTIONS, House, in_house


def test_every_operation_of_files_and_directories() -> None:
    """R19: one walk through the public REST document."""

    async def walk(house: House) -> None:
        assert await house.ok("PUT", "/a/b", "MKDIRS", permission="750", user_name="alice") == {"boolean": True}
        big = random.Random(1).randbytes(5000)
        await house.put("/a/b/big", big, permission="640", replication=2, blocksize=4096, user_name="bob")
        status = (await house.ok("GET", "/a/b/big", "GETFILESTATUS"))["FileStatus"]
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
        assert (await house.ok("GET", "/a/b/big", "GETFILELINKSTATUS"))["FileStatus"] == status
        assert (await house.ok("GET", "/a", "LISTSTATUS"))["FileStatuses"]["FileStatus"][0]["permission"] == "750"
        assert await house.get("/a/b/big") == big
        assert await house.get("/a/b/big", offset=1000, length=2000) == big[1000:3000]
        assert await house.get("/a/b/big", offset=4999, length=9) == big[4999:]
        assert await house.refused("GET", "/a/b/big", "OPEN", offset=5000) == (403, "IOException")
        assert (await house.ask("POST", "/a/b/big", "APPEND", b"tail"))[0] == 200
        assert await house.get("/a/b/big", offset=4998) == big[4998:] + b"tail"
        assert await house.ok("POST", "/a/b/big", "TRUNCATE", newlength=10) == {"boolean": True}
        assert await house.get("/a/b/big") == big[:10]
        await house.put("/a/b/x", b"xx")
        await house.put("/a/b/y", b"yy")
        await house.ok("POST", "/a/b/big", "CONCAT", sources="/a/b/x,/a/b/y")
        assert await house.get("/a/b/big") == big[:10] + b"xxyy"
        summary = (await house.ok("GET", "/a", "GETCONTENTSUMMARY"))["ContentSummary"]
        assert (summary["directoryCount"], summary["fileCount"], summary["length"]) == (2, 1, 14)
        assert summary["spaceConsumed"] == 28
        usage = (await house.ok("GET", "/a", "GETQUOTAUSAGE"))["QuotaUsage"]
        assert (usage["fileAndDirectoryCount"], usage["quota"]) == (3, -1)
        checksum = (await house.ok("GET", "/a/b/big", "GETFILECHECKSUM"))["FileChecksum"]
        assert checksum["algorithm"] == "MD5-of-0MD5-of-512CRC32"
        assert (checksum["length"], len(checksum["bytes"])) == (28, 56)
        assert await house.ok("GET", "/", "GETHOMEDIRECTORY", user_name="eve") == {"Path": "/user/eve"}
        assert await house.ok("GET", "/", "GETTRASHROOT", user_name="eve") == {"Path": "/user/eve/.Trash"}
        defaults = (await house.ok("GET", "/", "GETSERVERDEFAULTS"))["FsServerDefaults"]
        assert defaults["encryptDataTransfer"] is False
        assert (await house.ok("GET", "/", "GETSTATUS"))["FsStatus"]["used"] > 0
        located = (await house.ok("GET", "/a/b/big", "GETFILEBLOCKLOCATIONS"))["BlockLocations"]["BlockLocation"]
        assert [(block["offset"], block["length"]) for block in located] == [(0, 14)]
        await house.ok("PUT", "/a/b/big", "SETPERMISSION", permission="1700")
        await house.ok("PUT", "/a/b/big", "SETOWNER", owner="carol", group="staff")
        await house.ok("PUT", "/a/b/big", "SETTIMES", modificationtime=5, accesstime=-1)
        assert await house.ok("PUT", "/a/b/big", "SETREPLICATION", replication=3) == {"boolean": True}
        assert await house.ok("PUT", "/a", "SETREPLICATION", replication=3) == {"boolean": False}
        status = (await house.ok("GET", "/a/b/big", "GETFILESTATUS"))["FileStatus"]
        kept = [status[name] for name in ("permission", "owner", "group", "modificationTime", "replication")]
        assert kept == ["1700", "carol", "staff", 5, 3]
        assert status["accessTime"] == 1_700_000_000_000
        assert (await house.ok("GET", "/a/b/big", "GETACLSTATUS"))["AclStatus"]["stickyBit"] is True
        await house.ok("GET", "/a/b/big", "CHECKACCESS", fsaction="rw-", user_name="carol")
        await house.ok("GET", "/a/b/big", "CHECKACCESS", fsaction="rwx", user_name="owner")
        assert await house.refused("GET", "/a/b/big", "CHECKACCESS", fsaction="r--", user_name="eve") == (
            403,
            "AccessControlException",
        )
        xattr = {"xattr_name": "user.k"}
        await house.ok("PUT", "/a", "SETXATTR", xattr_value="0x6869", flag="CREATE", **xattr)
        assert await house.refused("PUT", "/a", "SETXATTR", xattr_value="1", flag="CREATE", **xattr) == (
            403,
            "IOException",
        )
        assert (await house.ok("GET", "/a", "GETXATTRS", encoding="text"))["XAttrs"] == [
            {"name": "user.k", "value": '"hi"'}
        ]
        assert await house.ok("GET", "/a", "LISTXATTRS") == {"XAttrNames": '["user.k"]'}
        await house.ok("PUT", "/a", "REMOVEXATTR", **xattr)
        assert await house.refused("GET", "/a", "GETXATTRS", **xattr) == (403, "IOException")
        assert await house.ok("GET", "/", "GETDELEGATIONTOKEN", renewer="x") == {"Token": None}
        assert await house.refused("PUT", "/", "RENEWDELEGATIONTOKEN", token="x") == (403, "InvalidToken")
        assert await house.refused("DELETE", "/a", "DELETE") == (403, "PathIsNotEmptyDirectoryException")
        assert await house.ok("DELETE", "/a", "DELETE", recursive="true") == {"boolean": True}
        assert await house.ok("DELETE", "/a", "DELETE") == {"boolean": False}

    in_house(walk)


def test_renames() -> None:
    """R19: the old rename answers false, the one with options refuses by name."""

    async def walk(house: House) -> None:
        await house.put("/f", b"f")
        await house.put("/g", b"g")
        await house.ok("PUT", "/d", "MKDIRS")

        async def old(source: str, target: str) -> bool:
            found: bool = (await house.ok("PUT", source, "RENAME", destination=target))["boolean"]
            return found

        assert not await old("/none", "/x")
        assert not await old("/f", "/g")
        assert not await old("/d", "/d/e")
        assert not await old("/f", "/no/parent")
        assert await old("/f", "/f")
        assert await old("/f", "/d")
        assert await house.get("/d/f") == b"f"
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
            assert await house.refused("PUT", source, "RENAME", destination=target, **strict) == error
        assert await house.refused("PUT", "/g", "RENAME", destination="/d", renameoptions="OVERWRITE") == (
            403,
            "IOException",
        )
        assert await house.ask("PUT", "/g", "RENAME", destination="/d/f", renameoptions="OVERWRITE") == (200, b"")
        assert await house.get("/d/f") == b"g"
        assert await house.refused("PUT", "/d", "RENAME", destination="/e", renameoptions="LATER") == (
            400,
            "IllegalArgumentException",
        )

    in_house(walk)


def test_create_and_append_go_in_two_steps() -> None:
    """R19: the first step answers 307, or 200 with the address, and writes nothing."""

    async def walk(house: House) -> None:
        async with house.session.put(house.url("/f", "CREATE"), allow_redirects=False) as first:
            assert (first.status, await first.read()) == (307, b"")
            assert "Content-Type" not in first.headers
            location = first.headers["Location"]
        assert await house.refused("GET", "/f", "GETFILESTATUS") == (404, "FileNotFoundException")
        async with house.session.put(location, data=b"data") as second:
            assert second.status == 201
            assert second.headers["Location"] == f"webhdfs://127.0.0.1:{house.door.port}/f"
        for method, op in [("PUT", "CREATE"), ("POST", "APPEND"), ("GET", "OPEN"), ("GET", "GETFILECHECKSUM")]:
            answer = await house.ok(method, "/f", op, noredirect="true")
            assert answer["Location"].startswith(f"http://127.0.0.1:{house.door.port}/webhdfs/v1/f?op={op}")
        assert await house.get("/f") == b"data"
        assert await house.refused("POST", "/none", "APPEND") == (404, "FileNotFoundException")
        assert await house.refused("PUT", "/f", "CREATE") == (403, "FileAlreadyExistsException")
        await house.put("/f", b"new", overwrite="true")
        await house.put("/f", b"newer", createflag="CREATE,OVERWRITE", createparent="false")
        assert await house.get("/f") == b"newer"
        assert await house.refused("PUT", "/no/f", "CREATE", createparent="false") == (404, "FileNotFoundException")
        assert await house.refused("PUT", "/f/x", "CREATE") == (403, "ParentNotDirectoryException")
        assert await house.refused("PUT", "/f", "CREATE", createflag="MAYBE") == (400, "IllegalArgumentException")
        assert await house.refused("PUT", "/f/x", "MKDIRS") == (403, "ParentNotDirectoryException")
        assert await house.refused("PUT", "/f", "MKDIRS") == (403, "FileAlreadyExistsException")

    in_house(walk)


def test_list_in_batches() -> None:
    """R19: LISTSTATUS_BATCH goes through a large directory."""

    async def walk(house: House) -> None:
        assert house.files is not None
        await asyncio.gather(*(house.files.mkdirs(f"/d/{n:05d}") for n in range(2500)))
        seen: list[str] = []
        remaining = [1]
        while remaining[-1]:
            listing = await house.ok("GET", "/d", "LISTSTATUS_BATCH", startAfter=seen[-1] if seen else "")
            found = listing["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
            seen += [status["pathSuffix"] for status in found]
            remaining.append(listing["DirectoryListing"]["remainingEntries"])
        assert seen == [f"{n:05d}" for n in range(2500)]
        assert remaining[1:] == [1500, 500, 0]

    in_house(walk)


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
def test_refusals_are_hadoops(method: str, path: str, query: str, status: int, name: str) -> None:
    """R19: bad escapes, numbers, paths and operations end in the named error with its HTTP status."""

    async def knock(house: House) -> None:
        found = await raw(house, f"{method} /webhdfs/v1{path}?{query} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert found[0] == status
        assert json.loads(found[1])["RemoteException"]["exception"] == name

    in_house(knock)


async def raw(house: House, request: bytes, end: bool = False) -> tuple[int, bytes]:
    """What the door answers to these bytes; (0, b"") when it just hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.door.port)
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
def test_a_body_that_breaks_off_leaves_nothing(body: bytes) -> None:
    """R19: half a file is no file: the old content stays, and the lease goes."""

    async def cut(house: House) -> None:
        await house.put("/old", b"old")
        for path in ("/new", "/old"):
            target = f"PUT /webhdfs/v1{path}?op=CREATE&overwrite=true&data=true HTTP/1.1\r\nHost: h\r\n"
            _, writer = await asyncio.open_connection("127.0.0.1", house.door.port)
            writer.write(target.encode() + body)
            await writer.drain()
            if b"zz" not in body:
                await until(lambda: house.door.statistics().open_streams > 0)
            writer.transport.abort()
            await until(lambda: house.door.statistics().open_streams == 0)
        assert await house.refused("GET", "/new", "GETFILESTATUS") == (404, "FileNotFoundException")
        assert await house.get("/old") == b"old"

    in_house(cut)


async def until(true: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 10)


def test_a_body_that_stands_still_is_given_up() -> None:
    """R19: a writer that sends nothing loses its lease after the idle timeout."""

    async def stall(house: House) -> None:
        head = b"PUT /webhdfs/v1/f?op=CREATE&data=true HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123"
        status, body = await raw(house, head)
        assert status == 403
        assert json.loads(body)["RemoteException"]["exception"] == "IOException"
        assert await house.refused("GET", "/f", "GETFILESTATUS") == (404, "FileNotFoundException")

    in_house(stall, DoorOptions(superuser="owner", idle_timeout_ms=50))


def test_large_files_are_streamed() -> None:
    """R19: a file larger than what is answered at once comes block by block, ranges too."""

    async def walk(house: House) -> None:
        data = random.Random(2).randbytes(3_000_000)
        await house.put("/large", data)
        assert await house.get("/large") == data
        assert await house.get("/large", offset=100_001, length=2_000_000) == data[100_001:2_100_001]
        assert house.door.statistics().received_bytes == len(data)

    in_house(walk, DoorOptions(superuser="owner", answer_at_once_bytes=4096))


def test_a_lost_store_is_told_so_that_clients_try_again() -> None:
    """R19: 503 with RetriableException while the namespace is lost, StandbyException while nobody serves it."""

    async def walk(house: House) -> None:
        await house.put("/f", b"1")
        house.objects.failure = FencedError("planned")
        assert await house.refused("PUT", "/d", "MKDIRS") == (503, "RetriableException")
        assert await house.refused("GET", "/f", "OPEN") == (503, "RetriableException")
        house.files = None
        assert await house.refused("GET", "/f", "OPEN") == (503, "StandbyException")
        house.objects = MemoryObjects(max_object_bytes=64 * 1024, contents=house.objects.contents)
        house.files = await Files.open(house.objects, lambda: 1, OPTIONS)
        assert await house.get("/f") == b"1"

    in_house(walk)


def test_a_block_that_fails_in_mid_stream_cuts_the_connection() -> None:
    """R19: a body that cannot be finished is short, never wrong."""

    async def walk(house: House) -> None:
        await house.put("/large", bytes(500_000))
        async with house.session.get(house.url("/large", "OPEN")) as answer:
            await answer.content.readexactly(1000)
            house.objects.failure = DaemonUnavailableError("planned")
            with pytest.raises(aiohttp.ClientError):
                await answer.read()

    in_house(walk, DoorOptions(superuser="owner", answer_at_once_bytes=1024))


def test_another_daemon_serves() -> None:
    """R19: a door that does not serve the namespace passes requests on, both steps, large bodies too; and never on and on."""

    async def walk(house: House) -> None:
        target: list[str] = [f"127.0.0.1:{house.door.port}"]
        front = House()
        front.door = Door(lambda: None, forward_to=lambda: target[0])
        await front.door.start()
        front.session = house.session
        try:
            data = random.Random(3).randbytes(2_500_000)
            async with house.session.put(front.url("/f", "CREATE"), allow_redirects=False) as first:
                assert first.headers["Location"].startswith(f"http://127.0.0.1:{front.door.port}/"), (
                    "back through this door"
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

    in_house(walk)


# ---- clients of others


def test_fsspec() -> None:
    """R19: fsspec's webhdfs filesystem, unchanged."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("requests")

    def use(port: int) -> None:
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

    async def walk(house: House) -> None:
        await asyncio.to_thread(use, house.door.port)

    in_house(walk)
