"""Call nvCOMP's batched compression without a Python object for each chunk.

The functions of NVIDIA's C library take arrays of pointers and sizes that live on the device, work
on a stream and say for each chunk how it went. Bytes are those of the plain formats (RFC 8878 for
zstd, LZ4 blocks, RFC 1952 for gzip, RFC 1951 for deflate), so that any other reader takes them.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from linumpy.core.device import gpu_failure, missing_library
from linumpy.core.errors import DeviceError

LIBRARY_VERSION = 6
"""Major version of the library whose structures are used here."""

SUCCESS = 0

# Statuses that the library documents, for messages.
STATUS_NAMES = {
    10: "invalid value",
    11: "not supported",
    12: "cannot decompress",
    13: "bad checksum",
    15: "output buffer too small",
    16: "wrong header length",
    17: "misaligned",
    18: "chunk too large",
    19: "cannot compress",
    20: "wrong input length",
    1000: "CUDA error",
}


class _Options(ctypes.Structure):
    """Options of a codec; all are 64 bytes, zero meaning the default."""

    _fields_ = [("words", ctypes.c_int32 * 16)]


class _Properties(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32)]


class _CrcSpec(ctypes.Structure):
    _fields_ = [
        ("poly", ctypes.c_uint32),
        ("init", ctypes.c_uint32),
        ("ref_in", ctypes.c_bool),
        ("ref_out", ctypes.c_bool),
        ("xorout", ctypes.c_uint32),
        ("reserved", ctypes.c_char * 16),
    ]


class _CrcKernel(ctypes.Structure):
    _fields_ = [
        ("kernel_kind", ctypes.c_int32),
        ("bytes_per_read", ctypes.c_int32),
        ("blocks_per_msg", ctypes.c_int32),
        ("reserved", ctypes.c_char * 20),
    ]


class _CrcOptions(ctypes.Structure):
    _fields_ = [("spec", _CrcSpec), ("kernel", _CrcKernel), ("reserved", ctypes.c_char * 64)]


@dataclass(frozen=True)
class Algorithm:
    """A compression format of nvCOMP.

    Attributes
    ----------
    name
        As spelled in the library's function names.
    max_compress_nbytes
        Largest chunk that the library compresses, in bytes.
    compress_word
        First word of the compression options: the effort of gzip and deflate.
    """

    name: str
    max_compress_nbytes: int
    compress_word: int = 0


# nvCOMP documents no limit for gzip that a chunk could reach; deflate's is stated as 2 GiB.
ALGORITHMS = {
    "zstd": Algorithm("Zstd", 1 << 24),
    "lz4": Algorithm("LZ4", 1 << 24),
    "gzip": Algorithm("Gzip", (1 << 31) - 1, compress_word=1),
    "deflate": Algorithm("Deflate", (1 << 31) - 1, compress_word=1),
}

MAX_CHUNK_NBYTES = (1 << 31) - 1
"""Largest chunk that is decompressed on the device."""


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, once.

    Raises
    ------
    DeviceError
        When it is not installed or of another major version; says what to install.
    """
    try:
        from nvidia import libnvcomp

        handle = libnvcomp.load_library()
    except ImportError:
        handle = None
    if handle is None:
        try:
            handle = ctypes.CDLL(f"libnvcomp.so.{LIBRARY_VERSION}")
        except OSError as error:
            raise missing_library(
                "decoding on a GPU", f"nvCOMP {LIBRARY_VERSION}", error
            ) from error
    properties = _Properties()
    handle.nvcompGetProperties(ctypes.byref(properties))
    # The version is major·1000 + minor·100 + patch.
    major = properties.version // 1000
    if major != LIBRARY_VERSION:
        raise DeviceError(f"nvCOMP {major} is installed, expected version {LIBRARY_VERSION}")
    return handle


def _function(name: str) -> Any:
    function = getattr(library(), name)
    function.restype = ctypes.c_int32
    return function


def _check(status: int, what: str) -> None:
    if status != SUCCESS:
        raise DeviceError(
            f"nvCOMP: {what} failed ({STATUS_NAMES.get(status, status)})"
        ) from gpu_failure()


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr if array is not None else None)


def decompress_temp_nbytes(
    algorithm: Algorithm, n_chunks: int, max_nbytes: int, total_nbytes: int
) -> int:
    """Return the bytes of device memory that decompressing a batch needs besides its data."""
    result = ctypes.c_size_t()
    _check(
        _function(f"nvcompBatched{algorithm.name}DecompressGetTempSize")(
            ctypes.c_size_t(n_chunks),
            ctypes.c_size_t(max_nbytes),
            _Options(),
            ctypes.byref(result),
            ctypes.c_size_t(total_nbytes),
            ctypes.c_void_p(None),
        ),
        f"{algorithm.name} decompression of {n_chunks} chunks of {max_nbytes} bytes",
    )
    return result.value


def decompress(
    algorithm: Algorithm,
    source_pointers: Any,
    source_nbytes: Any,
    target_pointers: Any,
    target_nbytes: Any,
    actual_nbytes: Any,
    statuses: Any,
    temp: Any,
    stream: Any,
) -> None:
    """Start decompressing a batch; all arguments but the last are CuPy arrays.

    Parameters
    ----------
    algorithm
        The format.
    source_pointers, source_nbytes, target_pointers, target_nbytes
        Addresses (multiples of 8) and sizes, uint64, of each chunk's bytes and of the room for
        what they decode to.
    actual_nbytes, statuses
        Filled with each chunk's decoded size (uint64) and status (int32; 0 is success).
    temp
        Scratch memory (uint8) of at least `decompress_temp_nbytes`.
    stream
        The CuPy stream on which the work is queued.
    """
    _check(
        _function(f"nvcompBatched{algorithm.name}DecompressAsync")(
            _pointer(source_pointers),
            _pointer(source_nbytes),
            _pointer(target_nbytes),
            _pointer(actual_nbytes),
            ctypes.c_size_t(len(source_pointers)),
            _pointer(temp),
            ctypes.c_size_t(temp.nbytes),
            _pointer(target_pointers),
            _Options(),
            _pointer(statuses),
            ctypes.c_void_p(stream.ptr),
        ),
        f"{algorithm.name} decompression",
    )


def _compress_options(algorithm: Algorithm) -> _Options:
    options = _Options()
    options.words[0] = algorithm.compress_word
    return options


def compress_temp_nbytes(
    algorithm: Algorithm, n_chunks: int, max_nbytes: int, total_nbytes: int
) -> int:
    """Return the bytes of device memory that compressing a batch needs besides its data."""
    result = ctypes.c_size_t()
    _check(
        _function(f"nvcompBatched{algorithm.name}CompressGetTempSize")(
            ctypes.c_size_t(n_chunks),
            ctypes.c_size_t(max_nbytes),
            _compress_options(algorithm),
            ctypes.byref(result),
            ctypes.c_size_t(total_nbytes),
            ctypes.c_void_p(None),
        ),
        f"{algorithm.name} compression of {n_chunks} chunks of {max_nbytes} bytes",
    )
    return result.value


def compress_bound(algorithm: Algorithm, nbytes: int) -> int:
    """Return the most bytes that a chunk of `nbytes` can compress to."""
    result = ctypes.c_size_t()
    _check(
        _function(f"nvcompBatched{algorithm.name}CompressGetMaxOutputChunkSize")(
            ctypes.c_size_t(nbytes), _compress_options(algorithm), ctypes.byref(result)
        ),
        f"{algorithm.name} compression of chunks of {nbytes} bytes",
    )
    return result.value


def compress(
    algorithm: Algorithm,
    source_pointers: Any,
    source_nbytes: Any,
    max_nbytes: int,
    target_pointers: Any,
    target_nbytes: Any,
    statuses: Any,
    temp: Any,
    stream: Any,
) -> None:
    """Start compressing a batch; `target_nbytes` (uint64) is filled with the compressed sizes.

    Every target has room for `compress_bound` bytes; addresses are multiples of 8. The other
    arguments are as in `decompress`.
    """
    _check(
        _function(f"nvcompBatched{algorithm.name}CompressAsync")(
            _pointer(source_pointers),
            _pointer(source_nbytes),
            ctypes.c_size_t(max_nbytes),
            ctypes.c_size_t(len(source_pointers)),
            _pointer(temp),
            ctypes.c_size_t(temp.nbytes),
            _pointer(target_pointers),
            _pointer(target_nbytes),
            _compress_options(algorithm),
            _pointer(statuses),
            ctypes.c_void_p(stream.ptr),
        ),
        f"{algorithm.name} compression",
    )


CRC32C, CRC32 = 0x1EDC6F41, 0x04C11DB7
"""Polynomials of RFC 3720 (as in the crc32c codec) and of RFC 1952 (gzip)."""


def crc(
    polynomial: int, pointers: Any, nbytes: Any, max_nbytes: int, result: Any, stream: Any
) -> None:
    """Start computing a reflected 32-bit CRC of each chunk of a batch into `result` (uint32).

    Addresses need no alignment; `pointers` and `nbytes` are uint64 arrays on the device.
    """
    options = _CrcOptions()
    options.spec = _CrcSpec(polynomial, 0xFFFFFFFF, True, True, 0xFFFFFFFF)
    count = ctypes.c_size_t(len(pointers))
    _check(
        _function("nvcompBatchedCRC32GetHeuristicConf")(
            ctypes.c_void_p(None),
            count,
            ctypes.byref(options.kernel),
            ctypes.c_size_t(max_nbytes),
            ctypes.c_void_p(stream.ptr),
        ),
        "choice of a CRC kernel",
    )
    _check(
        _function("nvcompBatchedCRC32Async")(
            _pointer(pointers),
            _pointer(nbytes),
            count,
            _pointer(result),
            options,
            ctypes.c_int32(0),
            ctypes.c_void_p(None),
            ctypes.c_void_p(stream.ptr),
        ),
        "CRC",
    )
