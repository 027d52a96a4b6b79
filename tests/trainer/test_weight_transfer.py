"""The two ends of a weight transfer: what is staged where, what the engines' side refuses, who gathers.

On real engines: tests/engine/test_weights.py.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openrlhf.trainer.ray import weight_sender
from openrlhf.trainer.ray.weight_sender import PREFIX, NcclSender, ShmSender
from openrlhf.trainer.ray.weight_source import WeightSource
from openrlhf.trainer.ray.weight_transfer import (
    SHARED_MEMORY,
    ShmWeightTransferEngine,
    WeightTransferEngineFactory,
)

PROGRAMS = Path(__file__).with_name("programs.py")


class Model(torch.nn.Module):
    """Weights of several types, one of an odd size; loads what vLLM's models load, and says what."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.odd = torch.nn.Parameter(torch.randn(3))
        self.short = torch.nn.Parameter(torch.randn(5, 3).bfloat16())
        self.large = torch.nn.Parameter(torch.randn(40, 4))

    def load_weights(self, weights: Any) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)
            loaded.add(name)
        return loaded


def source_of(model: torch.nn.Module, **options: Any) -> WeightSource:
    return WeightSource(model, zero_stage=0, bucket_bytes=64, **options)


@pytest.fixture
def sender(tmp_path: Path) -> ShmSender:
    return ShmSender(source_of(Model()), folder=tmp_path)


@pytest.fixture
def receiver() -> ShmWeightTransferEngine:
    """vLLM's side of the backend, without vLLM around it, on a model of zeros."""
    model = Model()
    for parameter in model.parameters():
        parameter.data.zero_()
    config = SimpleNamespace(parallel_config=None, model_config=None)
    return ShmWeightTransferEngine(SimpleNamespace(), config, torch.device("cpu"), model)


def update(receiver: ShmWeightTransferEngine, infos: list[dict[str, Any]]) -> None:
    receiver.start_weight_update()
    for info in infos:
        receiver.receive_weights(receiver.parse_update_info(json.loads(json.dumps(info))))
    receiver.finish_weight_update()


def holds(receiver: ShmWeightTransferEngine, model: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(receiver.model.parameters(), model.parameters(), strict=True))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_backend_is_known_to_vllm() -> None:
    assert WeightTransferEngineFactory._registry[SHARED_MEMORY]() is ShmWeightTransferEngine


def test_each_stage_brings_the_weights_of_its_moment(tmp_path: Path, receiver: ShmWeightTransferEngine) -> None:
    model = Model()
    sender = ShmSender(source_of(model), folder=tmp_path)
    sender.stage()
    update(receiver, sender.update_infos())
    assert holds(receiver, model)
    with torch.no_grad():
        model.large += 1
    update(receiver, sender.update_infos())  # a restarted engine: nothing was staged since
    assert not holds(receiver, model)
    sender.stage()
    update(receiver, sender.update_infos())
    assert holds(receiver, model)
    assert len(files(tmp_path)) == len(sender.update_infos()) == 2


def test_a_cut_file_and_a_missing_weight_are_told_and_a_repeat_repairs(
    sender: ShmSender, receiver: ShmWeightTransferEngine, tmp_path: Path
) -> None:
    sender.stage()
    infos = sender.update_infos()
    content = files(tmp_path)[-1].read_bytes()
    files(tmp_path)[-1].write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{len(content) - 1} bytes instead of {len(content)}"):
        update(receiver, infos)
    files(tmp_path)[-1].write_bytes(content)
    with pytest.raises(ValueError, match="left out 2 parameters: odd, short"):
        update(receiver, infos[1:])
    update(receiver, infos)
    assert holds(receiver, Model())


def test_a_part_of_the_weights_is_taken_where_it_was_announced(
    tmp_path: Path, receiver: ShmWeightTransferEngine
) -> None:
    model = Model()
    model.odd.requires_grad_(False)
    sender = ShmSender(source_of(model, only_trainable=True), folder=tmp_path)
    (init_info,) = sender.connect(n_engines=1, engine_size=1)
    receiver.init_transfer_engine(receiver.parse_init_info(init_info))
    sender.stage()
    update(receiver, sender.update_infos())
    assert torch.equal(receiver.model.large, model.large) and not receiver.model.odd.any()


def test_closing_leaves_nothing(sender: ShmSender, tmp_path: Path) -> None:
    sender.stage()
    assert files(tmp_path)
    sender.close()
    sender.close()
    assert not list(tmp_path.iterdir())


def test_what_killed_runs_left_is_removed_and_nothing_else(sender: ShmSender, tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = {f"{PREFIX}{os.getpid()}-other", f"{PREFIX}notes", "somebody-elses"}
    for name in {f"{PREFIX}{ended.pid}-abc", *kept}:
        (tmp_path / name).mkdir()
    sender.stage()
    own = {Path(info["path"]).parent.name for info in sender.update_infos()}
    assert {folder.name for folder in tmp_path.iterdir()} == kept | own


def test_too_little_room_is_said_before_anything_is_written(
    sender: ShmSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sender.shutil, "disk_usage", lambda _: SimpleNamespace(free=700))
    with pytest.raises(OSError, match=rf"weights of \d+ bytes don't fit into {tmp_path}, which has 700 free"):
        sender.stage()
    assert not list(tmp_path.iterdir())


def test_nccl_engines_get_their_place_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines of four workers; the group itself is NCCL's and not tried here."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo

    joined = []
    monkeypatch.setattr("vllm.distributed.weight_transfer.nccl_common.trainer_init", joined.append)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    monkeypatch.setattr(weight_sender.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    sender = NcclSender(source_of(Model()))
    infos = [NCCLWeightTransferInitInfo(**info) for info in sender.connect(n_engines=2, engine_size=4)]
    sender._joining.join()
    assert [(info.rank_offset, info.world_size) for info in infos] == [(1, 9), (5, 9)]
    (own,) = joined
    wire = ("master_address", "master_port", "world_size", "packed", "packed_buffer_size_bytes", "packed_num_buffers")
    assert all(getattr(info, name) == getattr(own, name) for info in infos for name in wire) and own.packed


def test_nccl_announces_what_it_broadcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

    sender, sent = NcclSender(source_of(Model())), []
    monkeypatch.setattr(sender, "_broadcast", lambda bucket: sent.append([(n, t.dtype, t.shape) for n, t in bucket]))
    sender.stage()
    sender.send()
    infos = [NCCLWeightTransferUpdateInfo(**info) for info in sender.update_infos()]
    announced = [
        [(n, getattr(torch, d), torch.Size(s)) for n, d, s in zip(i.names, i.dtype_names, i.shapes, strict=True)]
        for i in infos
    ]
    assert sent == announced and len(sent) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind"), [("zero3", "tied"), ("zero3", "lora"), ("zero3", "moe"), ("tensor", "untied")]
)
def test_two_ranks_gather_the_whole_weights(way: str, kind: str) -> None:
    """Real DeepSpeed, two processes; only the first rank gets anything, and both hold their parts afterwards."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if name not in ("OPENRLHF_PLATFORM", "RANK")}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(PROGRAMS), "gathered_weights", rank, port, way, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",
        )
        for rank in "01"
    ]
    try:
        said = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said[0][1][-4000:] + said[1][1][-4000:]
    first, second = (json.loads(out.strip().splitlines()[-1]) for out, _ in said)
    assert first["split"] and first["split_again"] and second["split_again"], "nothing was shared between the ranks"
    assert first["announced"] and first["wrong"] == [] and first["sent"] == first["wanted"] > 0
    assert second["sent"] == 0
