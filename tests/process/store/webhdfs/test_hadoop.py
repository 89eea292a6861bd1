"""`hadoop fs` through the WebHDFS door (R19, R17): Hadoop's own shell and client, from the jars that Spark ships."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.services.certificates import certificate

JARS = Path(importlib.util.find_spec("pyspark").origin or "").parent / "jars"  # type: ignore[union-attr]
SECRET = "0123456789abcdef-secret"
SWITCH = """
import asyncio, sys, time
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.door import Door
from spark_jms.store.webhdfs.files import Files

def clock_us():
    return time.time_ns() // 1000

async def main():
    objects = MemoryObjects()
    serving = {"first": await Files.open(objects, clock_us), "second": None}
    doors = {name: Door(lambda name=name: serving[name]) for name in serving}
    for door in doors.values():
        await door.start()
    print(*(door.port for door in doors.values()), flush=True)
    while (line := await asyncio.to_thread(sys.stdin.readline)).strip():
        await doors["first"].stop()
        objects = MemoryObjects(contents=objects.contents)
        serving["second"] = await Files.open(objects, clock_us)
        print("switched", flush=True)

asyncio.run(main())
"""

LATE = """
import asyncio, sys, time
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.door import Door
from spark_jms.store.webhdfs.files import Files

async def main():
    files = await Files.open(MemoryObjects(), lambda: time.time_ns() // 1000)
    asked = []
    def serving():
        asked.append(1)
        return files if len(asked) % 4 == 0 else None
    door = Door(serving)
    await door.start()
    print(door.port, flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


class Shell:
    """FsShell in one JVM, because starting one takes seconds. The tests check its effects and exit codes, not its output."""

    def __init__(self, gateway: Any, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder  # with the certificate, its key, and the JVM's settings

    def conf(self, **settings: str) -> Any:
        conf = self.gateway.jvm.org.apache.hadoop.conf.Configuration()
        for name, value in settings.items():
            conf.set(name, value)
        return conf

    def run(self, conf: Any, *arguments: object) -> int:
        array = self.gateway.new_array(self.gateway.jvm.String, len(arguments))
        for position, argument in enumerate(arguments):
            array[position] = str(argument)
        code: int = self.gateway.jvm.org.apache.hadoop.fs.FsShell(conf).run(array)
        return code


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    if "JAVA_HOME" not in os.environ:
        pytest.skip("JAVA_HOME is not set")
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    folder = tmp_path_factory.mktemp("hadoop")
    (folder / "core-site.xml").write_text("<configuration/>", encoding="utf-8")
    cert, _ = certificate(folder)
    trust(cert, folder / "trust.p12")
    settings = {"location": folder / "trust.p12", "type": "pkcs12", "password": "changeit"}
    properties = "".join(
        f"<property><name>ssl.client.truststore.{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (folder / "ssl-client.xml").write_text(f"<configuration>{properties}</configuration>", encoding="utf-8")
    options = [f"-Djavax.net.ssl.trustStore={folder / 'trust.p12'}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    with (folder / "out").open("w") as out:
        port, process = launch_gateway(
            classpath=f"{folder}:{JARS}/*",
            jarpath=str(next(JARS.glob("py4j-*.jar"))),
            javaopts=options,
            java_path=f"{os.environ['JAVA_HOME']}/bin/java",
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=out,
            redirect_stderr=out,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        yield Shell(gateway, folder)
        gateway.shutdown()
        process.stdin.close()
        process.wait(20)


def trust(cert: Path, store: Path) -> None:
    """Import the certificate into a new trust store of Java's."""
    subprocess.run(
        [
            f"{os.environ['JAVA_HOME']}/bin/keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "door",
            "-file",
            cert,
            "-keystore",
            store,
            "-storetype",
            "PKCS12",
            "-storepass",
            "changeit",
        ],
        check=True,
        capture_output=True,
    )


def started(*options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spark_jms.store.webhdfs", "--memory", "--port", "0", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_hadoop_fs_commands(shell: Shell, tmp_path: Path) -> None:
    """R19: mkdir, put, ls, get, mv, append, truncate, checksum, concat, rights, attributes and rm behave as in the manual."""
    data = random.Random(5).randbytes(1_500_000).hex().encode()  # text: the gateway decodes what `-tail` prints
    source, more, back = tmp_path / "source", tmp_path / "more", tmp_path / "back"
    source.write_bytes(data)
    more.write_bytes(b"more\n")
    with started() as door:
        assert door.stdout is not None
        conf = shell.conf(**{"fs.defaultFS": door.stdout.readline().strip()})
        for expected, *arguments in [
            (0, "-mkdir", "-p", "/user/me/d"),
            (0, "-put", source, "/user/me/d/big"),
            (1, "-put", source, "/user/me/d/big"),  # it exists already
            (0, "-ls", "-R", "/"),
            (0, "-get", "/user/me/d/big", back),
            (0, "-mv", "/user/me/d/big", "/user/me/d/moved"),
            (1, "-test", "-e", "/user/me/d/big"),
            (0, "-appendToFile", more, "/user/me/d/moved"),
            (0, "-tail", "/user/me/d/moved"),
            (0, "-checksum", "/user/me/d/moved"),
            (0, "-truncate", "-w", 1000, "/user/me/d/moved"),
            (0, "-cp", "/user/me/d/moved", "/user/me/d/copy"),
            (0, "-put", more, "/user/me/d/second"),
            (0, "-concat", "/user/me/d/copy", "/user/me/d/moved", "/user/me/d/second"),
            (0, "-chmod", "600", "/user/me/d/copy"),
            (0, "-chown", "bob:staff", "/user/me/d/copy"),
            (0, "-setrep", "3", "/user/me/d/copy"),
            (0, "-touch", "/user/me/d/t"),
            (0, "-setfattr", "-n", "user.a", "-v", "hello", "/user/me/d/t"),
            (0, "-getfattr", "-d", "/user/me/d/t"),
            (0, "-getfacl", "/user/me/d/t"),
            (0, "-stat", "%n %b %a %u %g %r", "/user/me/d/copy"),
            (0, "-du", "-s", "/user"),
            (0, "-count", "-q", "/user"),
            (0, "-df", "/"),
            (0, "-find", "/", "-name", "c*"),
            (1, "-rmdir", "/user/me/d"),
            (1, "-cat", "/none"),
            (-1, "-createSnapshot", "/user"),
            (0, "-get", "/user/me/d/copy", tmp_path / "copy"),
            (0, "-rm", "-r", "/user"),
            (1, "-ls", "/user"),
        ]:
            assert shell.run(conf, *arguments) == expected, arguments
        door.terminate()
    assert back.read_bytes() == data
    assert (tmp_path / "copy").read_bytes() == data[:1000] * 2 + b"more\n"


@pytest.mark.parametrize(
    "provider", ["ConfCredentialBasedAccessTokenProvider", "ConfRefreshTokenBasedAccessTokenProvider"]
)
def test_hadoop_uses_tls_and_oauth2(shell: Shell, tmp_path: Path, provider: str) -> None:
    """R17: swebhdfs works with Hadoop's own OAuth2 settings, and refuses a wrong credential."""
    folder = shell.folder
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice {SECRET}\n", encoding="utf-8")
    tokens.chmod(0o600)
    source = tmp_path / "source"
    source.write_bytes(b"secret")
    options = ("--host", "localhost", "--certificate", folder / "cert.pem", "--key", folder / "key.pem")
    with started(*options, "--tokens", tokens) as door:
        assert door.stdout is not None
        address = door.stdout.readline().strip()
        for secret, expected in [(SECRET, 0), ("wrong-wrong-wrong-wrong", 1)]:
            conf = shell.conf(
                **{
                    "fs.defaultFS": address,
                    "fs.swebhdfs.impl.disable.cache": "true",
                    "dfs.webhdfs.oauth2.enabled": "true",
                    "dfs.webhdfs.oauth2.access.token.provider": f"org.apache.hadoop.hdfs.web.oauth2.{provider}",
                    "dfs.webhdfs.oauth2.client.id": "alice",
                    "dfs.webhdfs.oauth2.refresh.url": address.replace("swebhdfs", "https") + "oauth2/token",
                    "dfs.webhdfs.oauth2.credential": secret,
                    "dfs.webhdfs.oauth2.refresh.token": secret,
                    "dfs.webhdfs.oauth2.refresh.token.expires.ms.since.epoch": "0",
                }
            )
            assert shell.run(conf, "-put", "-f", source, "/f") == expected
            assert shell.run(conf, "-ls", "/") == expected
        door.terminate()


def test_client_finds_the_serving_door(shell: Shell, tmp_path: Path) -> None:
    """R19: with Hadoop's own fail-over settings the client finds the door that serves, before and after a switch."""
    source = tmp_path / "source"
    source.write_bytes(b"kept")
    command = [sys.executable, "-c", SWITCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doors:
        assert doors.stdin is not None
        assert doors.stdout is not None
        first, second = doors.stdout.readline().split()
        conf = shell.conf(
            **{
                "fs.defaultFS": "webhdfs://doors",
                "dfs.nameservices": "doors",
                "dfs.ha.namenodes.doors": "b,a",
                "dfs.namenode.http-address.doors.a": f"127.0.0.1:{first}",
                "dfs.namenode.http-address.doors.b": f"127.0.0.1:{second}",
                "dfs.client.failover.proxy.provider.doors": "org.apache.hadoop.hdfs.server.namenode.ha."
                "ConfiguredFailoverProxyProvider",
                "dfs.http.client.failover.sleep.base.millis": "20",
                "dfs.http.client.failover.sleep.max.millis": "200",
            }
        )
        assert shell.run(conf, "-put", source, "/before") == 0
        doors.stdin.write("switch\n")
        doors.stdin.flush()
        assert doors.stdout.readline() == "switched\n"
        assert shell.run(conf, "-put", source, "/after") == 0
        assert shell.run(conf, "-get", "/before", tmp_path / "back") == 0
        doors.stdin.close()
    assert (tmp_path / "back").read_bytes() == b"kept"


def test_client_waits_for_the_door(shell: Shell, tmp_path: Path) -> None:
    """R19: with Hadoop's retry policy a client waits for a door that does not serve yet, or has not started yet."""
    source = tmp_path / "source"
    source.write_bytes(b"kept")
    retry = {"dfs.http.client.retry.policy.enabled": "true", "dfs.http.client.retry.policy.spec": "20,500"}
    with subprocess.Popen(
        [sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as door:
        assert door.stdin is not None
        assert door.stdout is not None
        port = door.stdout.readline().strip()
        conf = shell.conf(**{"fs.defaultFS": f"webhdfs://127.0.0.1:{port}", **retry})
        assert shell.run(conf, "-mkdir", "/d") == 0
        door.stdin.close()
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(shell.run, conf, "-mkdir", "/later")  # no process listens on that port now
        with started("--port", port) as late:
            assert made.result(60) == 0
            late.terminate()
