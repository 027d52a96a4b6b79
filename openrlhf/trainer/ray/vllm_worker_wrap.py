"""Upstream's worker extension; importing it in a vLLM worker registers our weight-transfer backend there."""

from openrlhf._upstream.trainer.ray import vllm_worker_wrap as upstream
from openrlhf.trainer.ray import weight_transfer


class WorkerWrap(upstream.WorkerWrap):
    """As upstream's, and a way out of a weight update that failed. `backend` is the one that was registered."""

    backend = weight_transfer.SHARED_MEMORY

    def abandon_weight_update(self) -> None:
        """Ends an update that failed, so that another one may start: vLLM's own end would need it to succeed."""
        self.weight_transfer_engine.reset_weight_update_target()
        self._weight_update_active = False
