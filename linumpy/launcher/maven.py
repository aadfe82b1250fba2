"""Fetch class paths from Maven Central once, into a folder that is complete or absent."""

from __future__ import annotations

import fcntl
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from linumpy.core.errors import LinumpyError
from linumpy.core.extras import extra_advice
from linumpy.store.atomic import atomic_path

_LISTING = "class_path.txt"
_DOWNLOAD_TRIES = 4


def class_path(coordinates: str, cache: Path) -> list[Path]:
    """Return the jars of an artifact and of all that it needs, fetching them once.

    Parameters
    ----------
    coordinates
        ``group:artifact:version``.
    cache
        Folder that keeps the jars of all artifacts.

    Raises
    ------
    LinumpyError
        When jgo is not installed, or the jars cannot be fetched or stored.
    """
    _, artifact, version = coordinates.split(":")
    folder = cache / f"{artifact}-{version}"
    try:
        if not (folder / _LISTING).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(cache / f".{folder.name}.lock"):
                if not (folder / _LISTING).exists():
                    _fetch(coordinates, folder)
        names = (folder / _LISTING).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LinumpyError(
            f"{folder}: cannot hold {artifact} {version} ({error}); "
            "name a writable folder in XDG_CACHE_HOME"
        ) from error
    return [folder / name for name in names]


def _fetch(coordinates: str, folder: Path) -> None:
    """Make `folder` of the jars and the list of their names; it appears whole."""
    print(f"fetching {coordinates} from Maven Central; this happens once", file=sys.stderr)
    with atomic_path(folder, overwrite=True, directory=True) as partial:
        repository = partial / ".repository"
        jars = _download(coordinates, repository)
        for jar in jars:
            jar.replace(partial / jar.name)
        shutil.rmtree(repository)
        (partial / _LISTING).write_text("".join(f"{jar.name}\n" for jar in jars), encoding="utf-8")


def _download(coordinates: str, repository: Path) -> list[Path]:
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import Artifact, MavenContext, PythonResolver
        from jgo.parse import Coordinate
    except ImportError:
        raise LinumpyError(
            f"{coordinates} cannot be fetched without jgo; {extra_advice('nextflow')}"
        ) from None

    class PatientResolver(PythonResolver):
        """Tries again after a hiccup of the network, and takes no damaged jar."""

        def download(self, artifact: Artifact) -> Path | None:
            for attempt in range(1, _DOWNLOAD_TRIES):
                try:
                    return self._download_checked(artifact)
                # Whatever requests, the operating system or zipfile raise: none of it is final.
                except Exception:
                    time.sleep(attempt)
            return self._download_checked(artifact)

        def _download_checked(self, artifact: Artifact) -> Path | None:
            path = None
            try:
                path = super().download(artifact)
                if path is not None and path.suffix == ".jar":
                    _check_jar(path)
            except BaseException:
                if artifact.cached_path is not None:
                    artifact.cached_path.unlink(missing_ok=True)
                raise
            return path

    context = MavenContext(
        resolver=PatientResolver(),
        repo_cache=repository,
        remote_repos={"central": MAVEN_CENTRAL_URL},
    )
    group, artifact, version = coordinates.split(":")
    try:
        wanted = context.create_dependency(Coordinate(group, artifact, version, scope="compile"))
        itself, others = context.resolver.resolve([wanted])
        needed = [*itself, *(d for d in others if d.scope in ("compile", "runtime"))]
        return list(dict.fromkeys(dependency.artifact.resolve() for dependency in needed))
    except Exception as error:
        raise LinumpyError(
            f"{coordinates} could not be fetched from Maven Central; this needs the network once "
            f"({type(error).__name__}: {error})"
        ) from error


def _check_jar(path: Path) -> None:
    with zipfile.ZipFile(path) as jar:
        damaged = jar.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{path.name}: {damaged} is damaged")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock of the operating system, so that two first launches fetch once."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
