"""Ours first, upstream's modules behind them; exports what upstream's own `__init__` exports."""

from openrlhf import overlay

overlay(__name__, __path__)

from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call, create_vllm_engines  # noqa: E402

__all__ = ["batch_vllm_engine_call", "create_vllm_engines"]
