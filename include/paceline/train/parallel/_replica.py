"""A process's copy of the model in data-parallel training, and its process group. Created by ``data_parallel``.

Torch's ``DistributedDataParallel`` exchanges the gradients.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from paceline.train.saving.checkpoint import Stateful, restore_parts

from ._agreement import check_optimizers, compare_states, optimizers
from ._arrivals import Arrivals, gather
from ._counters import Counters
from ._exchanges import Exchanges, StepWatch, unused_parameters

_CHUNK_BYTES = 1 << 26


class Replica(nn.Module):
    """A process's copy of the model.

    Without a process group, a call runs the model directly. In a group, gradients are averaged over the processes,
    weighted by each process's share of the batch, so the optimizer receives the gradient of the mean loss over the
    whole batch. The state is that of the model, so any number of processes can load a checkpoint.

    Parameters
    ----------
    module:
        The model, on its device.
    find_unused_parameters:
        As in ``DistributedDataParallel``.
    """

    def __init__(self, module: nn.Module, *, find_unused_parameters: bool = False) -> None:
        super().__init__()
        self.module = module
        self.weight = 1.0
        """Weight of this process's gradients of the current batch."""
        self.accumulates = False
        """Whether some batches are in ``no_sync``; in a group, in any of its processes."""
        # In training, batch normalisation fails for a single sample. SyncBatchNorm sees the samples of all processes.
        normalised = [part for part in self.modules() if isinstance(part, _BatchNorm)]
        self.min_samples = 1 if all(isinstance(part, nn.SyncBatchNorm) for part in normalised) else 2
        """Number of samples that a slice of a batch needs."""
        self.arrivals: Arrivals | None = None
        """The exchanges of the group; ``None`` with a single process."""
        self._in_backward = False
        self.finds_unused = find_unused_parameters
        """Whether a batch may leave parameters without a gradient."""
        # A list keeps torch from registering the module as a submodule.
        self._ddp: list[DistributedDataParallel] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._samples = 0  # of the current batch in this process
        self._syncs = True
        self._exchanges = Exchanges()
        self._counters = Counters(module)
        self._trained: list[bool] = []  # for each parameter, whether it is trained
        self._follow_parameters()

    def start_batch(self, weight: float = 1.0, samples: int = 0) -> None:
        """Start a batch, of which this process has a slice of ``samples`` with this weight."""
        self.weight, self._samples = weight, samples
        self._exchanges.start_batch()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Without gradients, processes exchange nothing, so that one process can validate alone."""
        if not (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.module.parameters())):
            return self.module(*args, **kwargs)
        self._exchanges.call()
        self._follow_parameters()
        if self.arrivals is None:
            return self.module(*args, **kwargs)
        if self.accumulates:
            with self.arrivals.exchange("accumulation"):
                self._check_same_sync()
        self._in_backward = False
        before = self._counters.read()
        try:
            result = self._ddp[0](*args, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            raise unused_parameters(self._named_by_torch(str(error))) from None
        if before:
            with self.arrivals.exchange("counters"):
                self._counters.add(before, self._samples)
        return result

    def __getattr__(self, name: str) -> Any:
        """Explain that an attribute of the model is not one of this module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "module" and hasattr(self.module, name):
                raise AttributeError(
                    f"data_parallel: the model's {name!r} is model.module.{name}. To train, call model(...), whose "
                    "gradients the processes exchange: compute the loss in its forward() or from its result"
                ) from None
            raise

    def _named_by_torch(self, error: str) -> list[str]:
        """Return the names of the parameters whose numbers are in torch's error about unused parameters."""
        numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", error)
        trained = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        return [trained[int(number)] for number in numbers[1].split()] if numbers else ["a parameter"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Replica:
        """Return a copy of the model, for example for an average of weights, that no exchange changes."""
        return Replica(copy.deepcopy(self.module, memo), find_unused_parameters=self.finds_unused)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own state."""
        return self.module.state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state that a module around this one has saved: it contains the model's own state at ``prefix``."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name[len(prefix) :]}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's own state."""
        return self.module.load_state_dict(*args, **kwargs)

    def watch_optimizers(self, parts: Mapping[str, Any]) -> StepWatch:
        """Check the optimizers among ``parts``, and watch the steps of others until the result is closed."""
        check_optimizers(self.module, parts)
        return StepWatch(self.module, optimizers(parts).values(), lambda: self._exchanges.batches)

    def check_use(self) -> bool:
        """Return whether the batch had a backward pass. Raises ``ValueError`` if it has not reached all parameters."""
        return self._exchanges.check_use(
            name for name, parameter in self.module.named_parameters() if parameter.requires_grad
        )

    def compare(self, parts: Mapping[str, Any], done: int) -> None:
        """Compare the states of all processes after ``done`` batches. Raises ``RuntimeError`` if they differ."""
        if self.arrivals is not None:
            with self.arrivals.exchange("comparison"):
                compare_states(self.module, parts, done)

    def join(
        self,
        place: str,
        rank: int,
        world_size: int,
        parts: Mapping[str, Stateful],
        has_ended: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        """Form a group with the other processes at a ``place``, and load ``parts`` from the first process.

        The place is the path of a new file, or ``tcp://host:port/name`` if the processes are in several pods.

        Raises ``IncompleteGroup`` in the first process if another process, such as one of a rank that ``has_ended``,
        does not join. The others then stay without a group.
        """
        self.leave()
        if world_size == 1:
            return
        device = next(self.module.parameters()).device
        # Only joining has a timeout: a process may compile its model or validate before its next exchange.
        store: Any
        if place.startswith("tcp://"):
            address = urlsplit(place)
            server = dist.TCPStore(str(address.hostname), address.port or 0)  # type: ignore[attr-defined]
            store = dist.PrefixStore(address.path, server)  # type: ignore[attr-defined]
            self.arrivals = Arrivals(None, rank, world_size)
        else:  # all processes are on one machine: do not listen on other interfaces
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, "lo")
            store = dist.FileStore(place, world_size)  # type: ignore[attr-defined]
            self.arrivals = Arrivals(f"{place}-arrivals", rank, world_size)
        with self.arrivals.exchange("join"):
            if not gather(store, rank, world_size, has_ended):
                return
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
            if parts:
                self._broadcast_states(parts, rank, device)
            self._follow_parameters()
            self._distribute()

    def share_gradients(self) -> None:
        """Average the gradients accumulated so far. All processes call this before the group changes.

        Without ``no_sync``, they are already equal in all processes, and stay as they are.
        """
        if not self._ddp:
            return
        parameters = list(self.module.parameters())
        assert self.arrivals is not None
        self.arrivals.arrive("end of a group")
        present = torch.tensor([int(parameter.grad is not None) for parameter in parameters])
        present = present.to(parameters[0].device)
        dist.all_reduce(present)
        for parameter, processes in zip(parameters, present.tolist(), strict=True):
            if processes:  # an optimizer skips a parameter without a gradient, but not one with a gradient of zero
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(gradient)
                parameter.grad = gradient.div_(dist.get_world_size())
        self.arrivals.leave()

    def leave(self) -> None:
        """Leave the group."""
        self.start_batch()
        self.arrivals = None
        if self._ddp:
            self._remove_ddp()
            dist.destroy_process_group()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally until a later batch exchanges them, as in ``DistributedDataParallel``."""
        self.accumulates, self._syncs = True, False
        try:
            self._follow_parameters()
            with self._ddp[0].no_sync() if self._ddp else nullcontext():
                yield
        finally:
            self._syncs = True

    def _check_same_sync(self) -> None:
        """Raise ``RuntimeError`` if only some processes are in ``no_sync``, because the others would wait for them."""
        synchronising = torch.tensor([int(self._syncs)], device=next(self.module.parameters()).device)
        dist.all_reduce(synchronising)
        if int(synchronising) not in (0, dist.get_world_size()):
            raise RuntimeError(
                "data_parallel: some processes accumulate this batch (no_sync) and others do not: number the batches "
                "with loop.done or track(...).enumerate(), because a process that joins would count from 0"
            )

    def _follow_parameters(self) -> None:
        """Create hooks and the model's wrapper anew if the training code has frozen or unfrozen parameters."""
        if self._trained == [parameter.requires_grad for parameter in self.module.parameters()]:
            return
        is_group = bool(self._ddp)
        self._remove_ddp()
        self._trained = [parameter.requires_grad for parameter in self.module.parameters()]
        for hook in self._hooks:
            hook.remove()
        # Weight each backward pass, not the sum of the passes that a later pass exchanges.
        self._hooks = [
            parameter.register_hook(partial(self._on_gradient, name))  # type: ignore[no-untyped-call]
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        ]
        if is_group:
            self._distribute()

    def _distribute(self) -> None:
        device = next(self.module.parameters()).device
        model = DistributedDataParallel(
            self.module,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=self.finds_unused,
        )
        self._ddp.append(model)

    def _remove_ddp(self) -> None:
        if self._ddp:
            self._ddp.clear()
            gc.collect()  # removes the module's hooks from the parameters

    def _on_gradient(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        self._exchanges.gradient(name)
        if not self._in_backward:
            self._in_backward = True
            _call_after_backward(self._arrive)  # torch calls this before its own function, which waits for the others
        if self.weight == 1.0:
            return gradient
        return gradient * self.weight if self.weight else torch.zeros_like(gradient)

    def _arrive(self) -> None:
        if self.arrivals is not None:
            self.arrivals.arrive()
        _call_after_backward(self._end_exchange)

    def _end_exchange(self) -> None:
        self._in_backward = False
        if self.arrivals is not None:
            self.arrivals.leave()

    def _broadcast_states(self, parts: Mapping[str, Stateful], rank: int, device: torch.device) -> None:
        """Load the states of ``parts`` and the gradients from the first process into the other processes."""
        buffer = io.BytesIO()
        if rank == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            of_parameters = [(parameter.requires_grad, parameter.grad) for parameter in self.module.parameters()]
            torch.save((states, of_parameters), buffer)
        size = torch.tensor([buffer.tell()], device=device)
        dist.broadcast(size, 0)
        packed = bytearray(buffer.getbuffer() if rank == 0 else int(size))
        for chunk in torch.split(torch.frombuffer(packed, dtype=torch.uint8), _CHUNK_BYTES):
            sent = chunk.to(device)
            dist.broadcast(sent, 0)
            if rank > 0:
                chunk.copy_(sent)
        if rank > 0:
            states, of_parameters = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
            restore_parts(dict(parts), states, "the first process")
            for parameter, (trained, gradient) in zip(self.module.parameters(), of_parameters, strict=True):
                parameter.requires_grad = trained
                parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _call_after_backward(function: Callable[[], None]) -> None:
    """Call ``function`` at the end of the current backward pass, in the order of these calls."""
    torch.autograd.Variable._execution_engine.queue_callback(function)
