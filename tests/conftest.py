"""What tests of several folders need."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on the loopback address, in a folder whose path is short enough for its sockets."""
    import ray

    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=80_000_000,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
