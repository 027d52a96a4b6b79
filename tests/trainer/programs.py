"""What a test runs in processes of its own: `python programs.py NAME [ARGUMENT ...]` prints a JSON object."""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "engine")]

import openrlhf  # noqa: E402, F401  (the CPU platform comes before DeepSpeed)

RANKS = 2
GATHERINGS = 20  # a race does not show every time


def gathered_weights(rank: str, port: str, way: str, kind: str) -> dict[str, Any]:
    """Which weights of a model that two real DeepSpeed ranks share (`way`: zero3 or tensor) are sent wrongly."""
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import deepspeed
    import models
    import torch

    from openrlhf.trainer.ray.weight_source import WeightSource

    # Enough heads to split.
    models.SIZES.update(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    deepspeed.init_distributed("gloo")
    model = models.trained(kind, seed=3)
    n_whole = sum(parameter.numel() for parameter in model.parameters())
    whole = WeightSource(
        copy.deepcopy(model), zero_stage=0, bucket_bytes=1 << 40
    )  # compared with checkpoints elsewhere
    wanted = {name: tensor for bucket in whole.buckets() for name, tensor in bucket}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3 if way == "zero3" else 0, "stage3_param_persistence_threshold": 0},
        "tensor_parallel": {"autotp_size": 1 if way == "zero3" else RANKS},
    }
    if way == "tensor":
        model = deepspeed.tp_model_init(model=model, tp_size=RANKS, dtype=torch.float32)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    local = {name: parameter.numel() for name, parameter in engine.module.named_parameters()}
    source = WeightSource(
        engine.module,
        zero_stage=3 if way == "zero3" else 0,
        bucket_bytes=1 << 15,
        tensor_parallel_size=1 if way == "zero3" else RANKS,
    )
    announced = [(name, t.shape) for bucket in source.metadata() for name, t in bucket]
    rounds = [
        [(name, t.clone()) for bucket in source.buckets(wanted=rank == "0") for name, t in bucket]
        for _ in range(GATHERINGS)
    ]
    sent = rounds[0]
    after = {name: parameter.numel() for name, parameter in engine.module.named_parameters()}
    torch.distributed.barrier()
    return {
        "split": sum(local.values()) < n_whole,
        "split_again": local == after,
        "sent": len(sent),
        "wanted": len(wanted),
        "announced": announced == [(name, t.shape) for name, t in sent],
        "wrong": [n for sent in rounds for n, t in sent if not torch.allclose(t, wanted[n], rtol=0, atol=1e-6)],
    }


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
    sys.stdout.flush()
    os._exit(0)
