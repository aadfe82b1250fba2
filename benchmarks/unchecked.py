"""Run a script with or without checks of its input: ``unchecked.py on|off SCRIPT …``.

Off are the manifest, in reading and in writing, the guard before the host's decoder, and the
comparison of CRC-32C on either device. For `checks.py` alone: files are trusted blindly then.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


def nothing(*_: Any, **__: Any) -> None:
    """Check nothing."""


def no_manifest(*_: Any, **__: Any) -> bool:
    """Say that nothing is listed."""
    return False


def payload_alone(data: Any, layout: Any, where: str) -> memoryview:
    """Return stored bytes without their checksum, which nothing is compared with."""
    return memoryview(data)[: len(data) - 4 * layout.has_crc32c]


def switch_off() -> None:
    """Take the checks out, before their callers are imported."""
    # Zarr's configuration, read when it is imported: the host's decoder compares no CRC-32C.
    os.environ["ZARR_CODEC_PIPELINE__VALIDATE_CHECKSUMS"] = "False"
    from linumpy.store import chunk_guard, host_codec, manifest

    for name in ("check_files", "check_all", "find_manifest", "write_manifest"):
        assert hasattr(manifest, name), name
        setattr(manifest, name, nothing)
    manifest.check_chunk_file = no_manifest
    chunk_guard.check_chunk = nothing
    host_codec.verified_payload = payload_alone
    from linumpy.gpu import decode

    # The frames' headers are still walked: without that a batch is not decoded.
    decode._Batch._start_checksum = nothing  # type: ignore[method-assign]


def main() -> None:
    """Run the script that the arguments name."""
    mode = sys.argv[1]
    if mode == "off":
        switch_off()
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
