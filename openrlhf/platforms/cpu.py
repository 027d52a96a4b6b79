"""OpenRLHF without a GPU: everything upstream and vLLM need to train and generate on CPUs, in float32.

One function per obstacle, numbered as in docs/overlay.md ("The CPU platform"); each says what would happen without it.
Applied by `openrlhf.platforms.apply`, never on CUDA.
"""

import argparse
import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from openrlhf.platforms import CPU_KV_CACHE_VARIABLE, import_hooks

# vLLM takes 0.9 of the machine's memory for its KV cache unless it is told a size.
DEFAULT_KV_CACHE_MIB = 256
# Blocks of 32 tokens: vLLM's CPU default of 128 is longer than most prompts here, so prefixes would never be shared.
KV_BLOCK_TOKENS = 32
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
IN_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",  # DeepSpeed otherwise guesses from the installed packages
    "OMP_NUM_THREADS": "1",  # several ranks and an engine share the cores
    "HF_HUB_OFFLINE": "1",  # models are local folders; a hub look-up would only wait
    "TOKENIZERS_PARALLELISM": "false",  # the engine forks
    "TORCHDYNAMO_DISABLE": "1",  # vLLM's first sampled log-prob otherwise calls g++ for 10 s
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines would both bind core 0
}
CLI_DEFAULTS = {
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "sdpa",
    "vllm.enforce_eager": True,
    "vllm.sync_backend": "gloo",
}


def install() -> None:
    """Applies the platform to this process. Must run before torch-dependent upstream modules and vLLM are imported."""
    for key, value in ENVIRONMENT.items():  # item 6
        os.environ.setdefault(key, value)
    patch_torch_cuda()
    patch_cli_defaults()
    import_hooks.install(PATCHES)


def patch_torch_cuda() -> None:
    """Item 2. Upstream calls these in about 40 places; on a CPU build each raises "Torch not compiled with CUDA"."""
    import torch

    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.current_stream = lambda device=None: None
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.empty_cache = lambda: None


def patch_cli_defaults() -> None:
    """Items 6 and 7. Upstream's command lines offer bf16 and fp16 only and default to flash attention and NCCL."""
    original = argparse.ArgumentParser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        for action in self._actions:
            if action.dest in CLI_DEFAULTS and action.default != CLI_DEFAULTS[action.dest]:
                if action.choices is not None and CLI_DEFAULTS[action.dest] not in action.choices:
                    action.choices = [*action.choices, CLI_DEFAULTS[action.dest]]
                action.default = CLI_DEFAULTS[action.dest]
        return original(self, args, namespace)

    argparse.ArgumentParser.parse_known_args = parse_known_args


def _flash_attn_stand_in(module: ModuleType) -> Iterator[None]:
    """Item 1. Upstream imports flash-attn at module level. The stand-in exists only meanwhile: vLLM and transformers
    ask whether `flash_attn` is importable, and would then use it."""
    if importlib.util.find_spec("flash_attn") is not None:
        yield
        return

    def needs_flash_attn(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("--ds.packing_samples and --ds.ring_attn_size need flash-attn and a GPU: drop them here")

    wanted = {
        "flash_attn": (),
        "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
        "flash_attn.utils": (),
        "flash_attn.utils.distributed": ("all_gather",),
    }
    for name, functions in wanted.items():
        stand_in = ModuleType(name)
        stand_in.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=not functions)
        for function in functions:
            setattr(stand_in, function, needs_flash_attn)
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name in wanted:
            del sys.modules[name]


def _replay_buffer_device(module: ModuleType) -> Iterator[None]:
    """Item 3. NaiveReplayBuffer makes its device from the text `cuda:N`."""
    yield
    import torch

    class CpuTorch:
        """`torch`, but every device is the CPU."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def device(*_: Any) -> torch.device:
            return torch.device("cpu")

    module.torch = CpuTorch()


def _strategy_on_cpu(module: ModuleType) -> Iterator[None]:
    """Item 4. The strategy builds a "cuda" device mesh, and its EMA copies parameters to "cuda"."""
    yield
    mesh, strategy = module.init_device_mesh, module.DeepspeedStrategy
    module.init_device_mesh = lambda device_type, *args, **kwargs: mesh("cpu", *args, **kwargs)
    average = strategy.moving_average
    strategy.moving_average = lambda self, model, ema, beta=0.992, device="cpu": average(self, model, ema, beta, "cpu")


def _gloo_sync_group(module: ModuleType) -> Iterator[None]:
    """Item 5, trainer side. The weight sync group is NCCL; Ray collectives can't reach vLLM's engine process."""
    yield

    class GlooGroup:
        """The one call that upstream makes of its NCCL communicator, over gloo."""

        def __init__(self, host: str, port: int, rank: int, world_size: int) -> None:
            from vllm.distributed.utils import stateless_init_torch_distributed_process_group

            self._group = stateless_init_torch_distributed_process_group(host, port, rank, world_size, "gloo")

        def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
            from torch.distributed import BroadcastOptions

            options = BroadcastOptions()
            options.rootRank, options.rootTensor = src, 0
            self._group.broadcast([tensor], options).wait()

    module.stateless_init_process_group = lambda host, port, rank, world_size, device: GlooGroup(
        host, port, rank, world_size
    )


def _receive_weights_on_cpu(module: ModuleType) -> Iterator[None]:
    """Item 5, engine side. The worker allocates what it receives on "cuda"."""
    yield
    import torch

    def update_weight(self: Any, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
        if dtype != self.model_config.dtype:
            raise ValueError(f"{name}: trainer sends {dtype}, engine holds {self.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])

    module.WorkerWrap.update_weight = update_weight


def _float32_dtype(module: ModuleType) -> Iterator[None]:
    """Item 7, training side. float32 is five times faster than bfloat16 on processors without native bf16."""
    yield
    import torch

    original = module.convert_to_torch_dtype
    module.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else original(name)


def _torch_adam(module: ModuleType) -> Iterator[None]:
    """Item 6. DeepSpeed's own CPU Adam is compiled with g++ on first use; torch's AdamW needs no compiler."""
    yield
    original = module.get_train_ds_config

    @functools.wraps(original)
    def get_train_ds_config(*args: Any, **kwargs: Any) -> dict[str, Any]:
        config = original(*args, **kwargs)
        config["zero_optimization"]["offload_optimizer"] = {"device": "none", "pin_memory": False}
        if config.get("optimizer", {}).get("type") == "AdamW":
            config["optimizer"]["params"]["torch_adam"] = True
        return config

    module.get_train_ds_config = get_train_ds_config


def _wait_for_every_gathering(module: ModuleType) -> Iterator[None]:
    """Item 10. DeepSpeed starts one all-gather for each of several parameters and waits for the last: enough on CUDA,
    where they run in order. With gloo others may still be running, and a parameter then holds uninitialised memory."""
    yield
    original = module.Init._allgather_params_coalesced

    @functools.wraps(original)
    def gather(self: Any, param_list: list[Any], *args: Any, **kwargs: Any) -> None:
        original(self, param_list, *args, **kwargs)
        for group in {self.get_partition_dp_group(parameter) for parameter in param_list}:
            module.dist.barrier(group=group)  # gloo's waits for everything started before it

    module.Init._allgather_params_coalesced = gather


def _no_shared_memory_op(module: ModuleType) -> Iterator[None]:
    """Item 6. DeepSpeed compiles a shared-memory all-reduce with g++ on first use; gloo does the same work."""
    yield
    module.build_shm_op = lambda: None


def _engine_arguments(module: ModuleType) -> Iterator[None]:
    """Items 7 and 9, engine side: float32, a small KV cache, and the worker inside the engine process."""
    yield
    original = module.EngineArgs.create_engine_config

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # whole GiB only, and it would win over the size below
        self.dtype = "float32"
        self.enforce_eager = True
        if self.block_size is None:
            self.block_size = KV_BLOCK_TOKENS
        if self.kv_cache_memory_bytes is None:
            self.kv_cache_memory_bytes = int(os.environ.get(CPU_KV_CACHE_VARIABLE, DEFAULT_KV_CACHE_MIB)) << 20
        if self.distributed_executor_backend == "uni":
            # By its short name the CPU backend turns it into one more process that imports everything again.
            self.distributed_executor_backend = IN_PROCESS_EXECUTOR
        return original(self, *args, **kwargs)

    module.EngineArgs.create_engine_config = create_engine_config


def _fork_engine(module: ModuleType) -> Iterator[None]:
    """Item 9. A spawned engine process imports vLLM again, 8 s of a core; a forked one inherits it.

    It inherits the parent's sockets as well: alive after its parent, it would make Ray believe that the actor lives.
    """
    yield
    from multiprocessing.context import ForkContext, ForkProcess

    class EngineProcess(ForkProcess):
        def run(self) -> None:
            die_with_parent()
            super().run()

    class EngineContext(ForkContext):
        Process = EngineProcess

    module.get_mp_context = EngineContext


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that forked it is gone (Linux: prctl)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # too late: it died before
        os._exit(1)


def _plain_linear_weights(module: ModuleType) -> Iterator[None]:
    """Item 8. vLLM packs float32 linear weights for oneDNN: loading new weights then fails half-way, or leaves a tied
    lm_head with its old copy."""
    yield
    module._supports_onednn = False


def _no_sgl_kernel(module: ModuleType) -> Iterator[None]:
    """Item 8, the other packing."""
    yield
    module.check_cpu_sgl_kernel = lambda *args, **kwargs: False


PATCHES: dict[str, import_hooks.Patch] = {
    "deepspeed.comm.torch": _no_shared_memory_op,
    "deepspeed.runtime.zero.partition_parameters": _wait_for_every_gathering,
    "openrlhf.models.ring_attn_utils": _flash_attn_stand_in,
    "openrlhf.trainer.ppo_utils.replay_buffer": _replay_buffer_device,
    "openrlhf._upstream.trainer.ray.vllm_worker_wrap": _receive_weights_on_cpu,
    "openrlhf.utils.deepspeed.deepspeed": _strategy_on_cpu,
    "openrlhf.utils.deepspeed.deepspeed_utils": _torch_adam,
    "openrlhf.utils.distributed_util": _gloo_sync_group,
    "openrlhf.utils.utils": _float32_dtype,
    "vllm._custom_ops": _plain_linear_weights,
    "vllm.engine.arg_utils": _engine_arguments,
    "vllm.model_executor.layers.utils": _no_sgl_kernel,
    "vllm.utils.system_utils": _fork_engine,
}
