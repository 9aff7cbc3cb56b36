"""The moment in which a rank has its own gradients, and begins to wait for those of the others."""

from collections.abc import Callable

import torch
from torch.autograd import Variable


def on_arrival(loss: torch.Tensor, arrived: Callable[[], None]) -> None:
    """Have a function called when the backward pass from this loss is over, before it waits for other ranks.

    Data parallelism adds its wait for the others to the end of a backward pass while the pass goes on. This is added at
    its very beginning, and is called first. Nothing here waits for a device.
    """
    engine = Variable._execution_engine  # noqa: SLF001 - FSDP takes the same way
    loss.register_hook(lambda _: engine.queue_callback(arrived))  # type: ignore[no-untyped-call]
