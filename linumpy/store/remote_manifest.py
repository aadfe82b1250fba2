"""Manifests of OME-Zarr on object stores and web servers."""

from __future__ import annotations

import logging

from linumpy.store.files import ROOT_DOCUMENTS, parse_json
from linumpy.store.manifest import Manifest
from linumpy.store.manifest_document import parse_manifest
from linumpy.store.remote import RemotePath
from linumpy.store.remote_store import RemoteStore
from linumpy.store.zarr_adapter import sync

logger = logging.getLogger("linumpy")


def take_manifest(store: RemoteStore) -> None:
    """Read a store's manifest, to verify whatever is fetched from then on.

    Sizes of all files, checksums of metadata and of chunk files that are fetched whole; of others
    the inner chunks' own. Other files are not checked, as many servers cannot list.

    Raises
    ------
    InputError
        When the root document was altered.
    """
    root = RemotePath(store.url)
    for name in ROOT_DOCUMENTS:
        found = sync(store.fetch(name))
        if found is not None:
            data = bytes(found[0])
            document = parse_json(data, root / name)
            said = parse_manifest(document, data, root / name)
            if said is None:
                logger.info("%s: has no manifest; checked only as far as its codecs allow", root)
            else:
                store.manifest = Manifest(root, root / name, *said)
            return
