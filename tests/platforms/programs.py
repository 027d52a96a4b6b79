"""What the platform tests run in fresh processes: `python programs.py NAME [ARGUMENT ...]` prints a JSON object.

A process of its own per program, because the platform must be applied before torch-dependent modules are imported, and
because it changes torch, argparse and the environment for good. Each function is one program.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def several(*names: str) -> dict[str, Any]:
    """Several programs in one process, in this order: most of a program's time goes into imports."""
    return {name: globals()[name]() for name in names}


def apply_platform() -> None:
    """Must come before the imports that it is for, whatever order an import sorter would like."""
    import openrlhf

    assert openrlhf.UPSTREAM.is_dir()


def applied() -> dict[str, Any]:
    """What importing the fork alone brings in."""
    import argparse

    before = argparse.ArgumentParser.parse_known_args
    environment = dict(os.environ)
    import openrlhf

    return {
        "version": openrlhf.__version__,
        "cpu_module": "openrlhf.platforms.cpu" in sys.modules,
        "torch": "torch" in sys.modules,
        "finders": [
            type(finder).__name__ for finder in sys.meta_path if type(finder).__module__.startswith("openrlhf")
        ],
        "argparse_changed": argparse.ArgumentParser.parse_known_args is not before,
        "environment": {key: value for key, value in os.environ.items() if environment.get(key) != value},
    }


def flash_attn() -> dict[str, Any]:
    """Item 1."""
    apply_platform()
    import importlib.util

    from transformers.utils import is_flash_attn_2_available

    import openrlhf.models.ring_attn_utils as ring

    try:
        ring.unpad_input(None, None)
        error = None
    except RuntimeError as raised:
        error = str(raised)
    return {
        "error": error,
        "left_behind": sorted(name for name in sys.modules if name.split(".")[0] == "flash_attn"),
        "findable": importlib.util.find_spec("flash_attn") is not None,
        "transformers_would_use_it": is_flash_attn_2_available(),
        "file": getattr(ring.unpad_input, "__module__", ""),
    }


def torch_cuda() -> dict[str, Any]:
    """Item 2. Also run on the CUDA platform, to show that each call fails without the patch."""
    apply_platform()
    import torch

    calls = {
        "current_device": lambda: torch.zeros(1, device=torch.cuda.current_device()).device.type,
        "set_device": lambda: torch.cuda.set_device(0),
        "synchronize": lambda: torch.cuda.synchronize(),
        "current_stream": lambda: torch.cuda.current_stream(),
        "empty_cache": lambda: torch.cuda.empty_cache(),
    }
    result: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            result[name] = call()
        except Exception as error:
            result[name] = f"failed: {type(error).__name__}"
    result["is_available"] = torch.cuda.is_available()
    return result


def replay_buffer() -> dict[str, Any]:
    """Item 3: a real buffer takes real experience and gives it back."""
    import torch

    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    def rows(*values: Any) -> torch.Tensor:
        return torch.tensor(values)

    experience = Experience(
        sequences=rows([5, 6, 7, 8], [5, 6, 7, 0]),
        attention_mask=rows([1, 1, 1, 1], [1, 1, 1, 0]),
        action_mask=rows([True, True, True], [True, True, False]),
        action_log_probs=rows([-0.1, -0.2, -0.3], [-0.4, -0.5, 0.0]),
        rewards=rows(1.0, 0.0),
        total_length=rows(4, 3),
        index=[0, 1],
        prompts=["a", "b"],
        labels=["1", "2"],
        info={"reward": rows(1.0, 0.0)},
    )
    buffer = NaiveReplayBuffer(sample_batch_size=2)
    buffer.append(experience)
    sample = buffer.sample()
    return {
        "target": str(buffer.target_device),
        "sampled": str(sample.sequences.device),
        "rows": sorted(sample.sequences.tolist()),
    }


def _strategy() -> Any:
    """Upstream's strategy on one rank, ZeRO-3 in float32."""
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    ds = SimpleNamespace(param_dtype="fp32", adam_offload=True)
    args = SimpleNamespace(ds=ds, train=SimpleNamespace(), local_rank=-1)
    one = DeepspeedStrategy(micro_train_batch_size=1, train_batch_size=1, zero_stage=3, max_norm=1.0, args=args)
    one.setup_distributed()
    return one


def strategy() -> dict[str, Any]:
    """Item 4: the real strategy on one gloo rank, and its moving average with upstream's argument "cuda"."""
    import torch

    one = _strategy()
    model, ema = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    one.stage = 2
    expected = [0.25 * a + 0.75 * b for a, b in zip(model.parameters(), ema.parameters(), strict=True)]
    one.moving_average(model, ema, 0.75, "cuda")
    return {
        "backend": torch.distributed.get_backend(),
        "mesh": one.ds_device_mesh.device_type,
        "average": all(torch.allclose(a, b) for a, b in zip(expected, ema.parameters(), strict=True)),
    }


def optimizer() -> dict[str, Any]:
    """Item 6: real ZeRO-3 steps, prepared by upstream with its flag for offloading Adam to the CPU."""
    one = _strategy()
    import torch

    torch.manual_seed(0)
    adam = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    settings = {"optim": "adam", "adam": adam, "scheduler_steps": 20, "lr_scheduler": "constant", "max_norm": 1.0}
    engine, _, _ = one.prepare((torch.nn.Linear(4, 1), settings))
    data, losses = torch.randn(16, 4), []
    for _ in range(20):
        loss = ((engine(data).squeeze(-1) - data.sum(-1)) ** 2).mean()
        one.backward(loss, engine, None)
        one.optimizer_step(None, engine, None)
        losses.append(loss.item())
    optimizer = engine.optimizer.optimizer
    return {
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__name__}",
        "device": str(next(engine.parameters()).device),
        "dtype": str(next(engine.parameters()).dtype),
        "losses": [losses[0], losses[-1]],
        "compiled": sorted(path.name for path in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("**/*.so")),
    }


def sync_group(rank: str, port: str) -> dict[str, Any]:
    """Item 5: rank 0 sends as upstream's trainer does, rank 1 receives through upstream's WorkerWrap."""
    import torch

    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
    from openrlhf.utils.distributed_util import stateless_init_process_group

    group = stateless_init_process_group("127.0.0.1", int(port), int(rank), 2, torch.cuda.current_device())
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    if rank == "0":
        group.broadcast(weight, src=0, stream=torch.cuda.current_stream())
        return {"sent": weight.tolist()}
    loaded: list[Any] = []
    model = SimpleNamespace(load_weights=lambda weights: loaded.extend(weights))
    worker = WorkerWrap()
    worker._model_update_group = group
    worker.model_config = SimpleNamespace(dtype=torch.float32)
    worker.model_runner = SimpleNamespace(model=model)
    try:
        worker.update_weight("layer.weight", torch.bfloat16, (2, 3))
        refused = None
    except ValueError as error:
        refused = str(error)
    worker.update_weight("layer.weight", torch.float32, (2, 3))
    ((name, received),) = loaded
    return {"name": name, "received": received.tolist(), "refused": refused}


def flags() -> dict[str, Any]:
    """Items 6 and 7: what upstream's own command line makes of no flags, and of a user's."""
    from openrlhf.launch.flags import parse

    def shown(*arguments: str) -> dict[str, Any]:
        args = parse(arguments)
        return {
            "param_dtype": args.ds.param_dtype,
            "attn_implementation": args.ds.attn_implementation,
            "enforce_eager": args.vllm.enforce_eager,
            "sync_backend": args.vllm.sync_backend,
        }

    return {"none": shown(), "given": shown("--ds.attn_implementation", "eager", "--ds.param_dtype", "bf16")}


def dtypes() -> dict[str, Any]:
    """Item 7, training side."""
    import torch

    from openrlhf.utils import utils

    assert utils.convert_to_torch_dtype("fp32") is torch.float32
    return {name: str(utils.convert_to_torch_dtype(name)) for name in ("fp32", "bf16", "fp16")}


def engine_config(model: str, given: str) -> dict[str, Any]:
    """Items 7 and 9: what vLLM makes of the engine arguments that upstream passes, and of those in `given`."""
    apply_platform()
    import vllm
    from vllm.v1.engine import utils as engine_utils

    def shown(**options: Any) -> dict[str, Any]:
        upstreams = {"enforce_eager": False, "dtype": "bfloat16", "distributed_executor_backend": "uni"}
        arguments = vllm.AsyncEngineArgs(
            model=model, skip_tokenizer_init=True, max_model_len=128, **upstreams | options
        )
        config = arguments.create_engine_config()
        return {
            "dtype": str(config.model_config.dtype),
            "eager": config.model_config.enforce_eager,
            "block_size": config.cache_config.block_size,
            "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
            "executor": config.parallel_config.distributed_executor_backend,
            "start_method": engine_utils.get_mp_context().get_start_method(),
            "whole_gib_variable": os.environ.get("VLLM_CPU_KVCACHE_SPACE"),
        }

    result = {"plain": shown()}
    os.environ["OPENRLHF_CPU_KV_CACHE_MIB"] = "64"
    return result | {"variable": shown(), "given": shown(**json.loads(given))}


def engine_weights(first: str, second: str, port: str) -> dict[str, Any]:
    """Item 8: a real engine started with the weights of `first` gets those of `second` through upstream's WorkerWrap.

    Returns the largest difference between the engine's log-probs and those of transformers, before and after.
    """
    apply_platform()
    import asyncio

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # as upstream sets it: dtypes travel as objects
    import vllm

    from openrlhf.utils.distributed_util import stateless_init_process_group

    engine = vllm.AsyncLLMEngine.from_engine_args(
        vllm.AsyncEngineArgs(
            model=first,
            skip_tokenizer_init=True,
            max_model_len=128,
            dtype="bfloat16",
            distributed_executor_backend="uni",
            worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        )
    )

    async def update() -> int:
        joined = engine.collective_rpc(
            "init_process_group", args=("127.0.0.1", int(port), 1, 2, "sync", "gloo", False)
        )
        group = asyncio.to_thread(stateless_init_process_group, "127.0.0.1", int(port), 0, 2, None)
        group, _ = await asyncio.gather(group, joined)
        parameters = dict(_model(second).named_parameters())
        for name, value in parameters.items():
            received = engine.collective_rpc("update_weight", args=(name, value.dtype, value.shape, False))
            await asyncio.gather(asyncio.to_thread(group.broadcast, value.data, 0), received)
        await engine.reset_prefix_cache()
        return len(parameters)

    async def run() -> dict[str, Any]:
        before = await _largest_difference(engine, first)
        tensors = await update()
        return {"before": before, "tensors": tensors, "after": await _largest_difference(engine, second)}

    try:
        return asyncio.run(run())
    finally:
        engine.shutdown()


def _model(folder: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


async def _largest_difference(engine: Any, folder: str) -> float:
    """Over generated tokens and prompt tokens of a few prompts, in nats."""
    import torch
    from vllm import SamplingParams

    model, worst = _model(folder), 0.0
    for number, prompt in enumerate(([5, 6, 7], [9] * 40, [*range(3, 60)])):
        sampling = SamplingParams(
            max_tokens=12,
            temperature=1.0,
            logprobs=0,
            prompt_logprobs=0,
            detokenize=False,
            ignore_eos=True,
            seed=number,
        )
        request = engine.generate({"prompt_token_ids": prompt}, sampling, request_id=f"{folder}-{number}")
        output = [part async for part in request][-1]
        answer = output.outputs[0]
        ids = [*prompt, *answer.token_ids]
        scored = [*output.prompt_logprobs[1:], *answer.logprobs]
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for position, entry in enumerate(scored, 1):
            token = ids[position]
            worst = max(worst, abs(entry[token].logprob - expected[position - 1, token].item()))
    return worst


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
