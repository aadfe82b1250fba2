"""Volumes in a bucket of an S3 server on loopback."""

import logging

import numpy as np
import pytest

from linumpy.brain.slice_folder import find_slices
from linumpy.core.errors import InputError
from linumpy.io.grid import open_grid
from linumpy.io.omezarr import open_image
from linumpy.io.zarr_io import read_zarr
from linumpy.store.remote import as_path, local_file

from .test_remote import write_grid, write_volume

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def server():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """A bucket, and the environment that leads to it."""
    import boto3

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = boto3.resource("s3").Bucket("brains")
    bucket.create()
    yield bucket
    bucket.objects.delete()
    bucket.delete()


def upload(bucket, folder, prefix, **options):
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(folder)}"
            bucket.put_object(Key=key, Body=path.read_bytes(), **options)


def test_a_volume_reads_as_it_does_locally(bucket, tmp_path, rng):
    data = write_volume(tmp_path / "v.ome.zarr", rng)
    upload(bucket, tmp_path / "v.ome.zarr", "sub-01/my brain/v.ome.zarr")
    url = "s3://brains/sub-01/my brain/v.ome.zarr"
    image = open_image(url)
    assert str(image.path) == url
    assert image.voxel_um == (5.0, 4.0, 3.0)
    np.testing.assert_array_equal(image.array[...], data)
    np.testing.assert_array_equal(read_zarr(f"{url}/0", np.s_[5:66, 3, ::2]), data[5:66, 3, ::2])


def test_a_bucket_itself_can_be_a_volume(bucket, tmp_path, rng):
    data = write_volume(tmp_path / "v.ome.zarr", rng, (8, 9, 10), with_valid=False)
    upload(bucket, tmp_path / "v.ome.zarr", "x")
    for item in list(bucket.objects.all()):
        bucket.copy({"Bucket": "brains", "Key": item.key}, item.key.removeprefix("x/"))
    np.testing.assert_array_equal(open_image("s3://brains").array[...], data)


def test_a_lost_shard_of_a_grid_is_named(bucket, tmp_path, rng):
    path = write_grid(tmp_path / "mosaic_grid_3d_z03.ome.zarr", rng)
    upload(bucket, path, f"grids/{path.name}")
    url = f"s3://brains/grids/{path.name}"
    bucket.Object(f"grids/{path.name}/0/c/0/1/1").delete()
    grid = open_grid(url)
    np.testing.assert_array_equal(grid.read_tile(0, 2), open_grid(path).read_tile(0, 2))
    with pytest.raises(InputError, match=f"{url}/0/c/0/1/1: missing, though the manifest"):
        grid.read_tile(1, 1)


def test_folders_are_listed(bucket, tmp_path, rng):
    for number in (3, 4):
        path = tmp_path / f"slice_z{number:02d}.ome.zarr"
        write_volume(path, rng, (8, 9, 10), with_valid=False)
        upload(bucket, path, f"run/slices/{path.name}")
    bucket.put_object(Key="run/notes.txt", Body=b"x")
    folder = as_path("s3://brains/run/slices")
    assert folder.is_dir() and not folder.is_file()
    assert not as_path("s3://brains/run/none").exists()
    assert as_path("s3://brains/run/notes.txt").is_file()
    assert local_file("s3://brains/run/notes.txt").read_bytes() == b"x"
    assert [str(path) for path in find_slices(folder)] == [
        f"s3://brains/run/slices/slice_z{n:02d}.ome.zarr" for n in (3, 4)
    ]


def test_public_volumes_are_read_without_credentials(bucket, tmp_path, rng, monkeypatch):
    data = write_volume(tmp_path / "v.ome.zarr", rng, (8, 9, 10), with_valid=False)
    upload(bucket, tmp_path / "v.ome.zarr", "v.ome.zarr", ACL="public-read")
    upload(bucket, tmp_path / "v.ome.zarr", "private.ome.zarr")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    array = open_image("s3://brains/v.ome.zarr/").array
    np.testing.assert_array_equal(array[...], data)
    with pytest.raises(InputError, match=r"s3://brains/private.ome.zarr/\S+: access denied \(403"):
        open_image("s3://brains/private.ome.zarr")


def test_an_atlas_is_read_from_a_bucket(bucket, tmp_path, rng):
    import nibabel

    from linumpy.io.atlas import read_atlas

    image = nibabel.Nifti1Image(rng.random((4, 5, 6), "f4"), np.diag([0.1, 0.1, 0.1, 1]))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, tmp_path / "atlas.nii.gz")
    bucket.put_object(Key="atlas.nii.gz", Body=(tmp_path / "atlas.nii.gz").read_bytes())
    remote, local = read_atlas("s3://brains/atlas.nii.gz"), read_atlas(tmp_path / "atlas.nii.gz")
    np.testing.assert_array_equal(remote.data, local.data)
    np.testing.assert_array_equal(remote.index_to_um, local.index_to_um)


@pytest.mark.slow
def test_scripts_read_from_a_bucket(bucket, tmp_path, rng, script):
    path = tmp_path / "v.ome.zarr"
    write_volume(path, rng, (20, 30, 40))
    upload(bucket, path, "v.ome.zarr")
    for source, target in ((path, "local"), ("s3://brains/v.ome.zarr", "remote")):
        script("convert_omezarr", source, tmp_path / f"{target}.ome.zarr", "--to", "0.4")
    local, remote = (open_image(tmp_path / f"{n}.ome.zarr") for n in ("local", "remote"))
    np.testing.assert_array_equal(remote.array[...], local.array[...])
    np.testing.assert_array_equal(remote.valid[...], local.valid[...])
