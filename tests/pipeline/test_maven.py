"""Class paths are fetched whole, once, from a repository that this test serves itself."""

from __future__ import annotations

import http.server
import io
import multiprocessing
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jgo.constants
import pytest

from linumpy.core.errors import LinumpyError
from linumpy.launcher.maven import class_path

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>
<artifactId>{name}</artifactId><version>1.0</version><dependencies>{needs}</dependencies></project>"""
NEEDS = """<dependency><groupId>org.test</groupId><artifactId>{name}</artifactId>
<version>1.0</version><scope>{scope}</scope></dependency>"""


def jar(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.txt", text)
    return data.getvalue()


def artifact(name: str, **needs: str) -> dict[str, bytes]:
    listed = "".join(NEEDS.format(name=n, scope=scope) for n, scope in needs.items())
    base = f"/org/test/{name}/1.0/{name}-1.0"
    pom = POM.format(group="org.test", name=name, needs=listed)
    return {f"{base}.pom": pom.encode(), f"{base}.jar": jar(name * 200)}


class Repository:
    """A Maven repository on this machine; `faults` are served first, one by one."""

    def __init__(self) -> None:
        self.files = {
            **artifact("top", left="compile", tested="test"),
            **artifact("left", right="runtime"),
            **artifact("right"),
            **artifact("tested"),
        }
        self.faults: dict[str, list[bytes | int]] = {}
        self.asked: Counter[str] = Counter()

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked[path] += 1
        if self.faults.get(path):
            fault = self.faults[path].pop(0)
            return (fault, b"") if isinstance(fault, int) else (200, fault)
        return (200, self.files[path]) if path in self.files else (404, b"")


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = repository.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(jgo.constants, "MAVEN_CENTRAL_URL", address)
    monkeypatch.setattr("linumpy.launcher.maven.time.sleep", lambda _seconds: None)
    yield repository
    server.shutdown()
    server.server_close()


def names(jars: list[Path]) -> list[str]:
    return [path.name for path in jars]


def test_jars_are_those_needed_to_run(repository: Repository, tmp_path: Path) -> None:
    jars = class_path("org.test:top:1.0", tmp_path)
    assert names(jars) == ["top-1.0.jar", "left-1.0.jar", "right-1.0.jar"]
    for path in jars:
        assert path.read_bytes() == repository.files[f"/org/test/{path.stem[:-4]}/1.0/{path.name}"]
    # The next launch asks nobody.
    repository.asked.clear()
    assert class_path("org.test:top:1.0", tmp_path) == jars
    assert not repository.asked
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"top-1.0", ".top-1.0.lock"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [503, 500, b"", b"PK not a jar", "cut"])
def test_hiccups_and_damaged_jars_are_fetched_again(
    repository: Repository, tmp_path: Path, fault: Any
) -> None:
    path = "/org/test/right/1.0/right-1.0.jar"
    body = repository.files[path][:-30] if fault == "cut" else fault
    repository.faults[path] = [body, body]
    jars = class_path("org.test:top:1.0", tmp_path)
    assert jars[2].read_bytes() == repository.files[path]
    assert repository.asked[path] == 3


def test_failure_leaves_nothing_and_names_the_artifact(
    repository: Repository, tmp_path: Path
) -> None:
    del repository.files["/org/test/right/1.0/right-1.0.jar"]
    with pytest.raises(LinumpyError, match=r"org\.test:top:1\.0 could not be fetched.*right"):
        class_path("org.test:top:1.0", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".top-1.0.lock"}


def test_two_first_launches_fetch_once(repository: Repository, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=class_path, args=("org.test:top:1.0", tmp_path)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert repository.asked["/org/test/top/1.0/top-1.0.jar"] == 1


def test_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("", encoding="utf-8")
    with pytest.raises(LinumpyError, match="XDG_CACHE_HOME"):
        class_path("org.test:top:1.0", tmp_path / "cache")
