"""One training step as a callable, and whether torch.compile can work here.

Owns: building network, data, optimiser and switches of a case; the compile caches' place. Refuses: timing, figures.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from typing import Any

from . import device, scratch

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
CLASSES = {"resnet50": 1000, "bert": 2, "tiny": 2}
CIFAR_SIDE = 32
MOST_LOSSES = 64
"""Losses that are kept: the first, and the latest ones."""


class Step:
    """A network in training; ``run`` is the work under test and waits for nothing."""

    def __init__(self, model: Any, inputs: tuple[Any, Any], optimiser: Any, autocast: Any, loss: Any) -> None:
        self._model, self._optimiser, self._autocast, self._loss = model, optimiser, autocast, loss
        self._inputs, self._labels = inputs
        self._seen: list[Any] = []

    def run(self) -> None:
        """Forward, loss, backward, update."""
        self._optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._loss(self._model(self._inputs), self._labels)
        loss.backward()
        self._optimiser.step()
        if len(self._seen) >= MOST_LOSSES:
            del self._seen[1]
        self._seen.append(loss.detach())

    def losses(self) -> list[float]:
        """The first loss and the latest ones; waits for the device."""
        return [float(loss.item()) for loss in self._seen]

    def weights_sum(self) -> float:
        """A number that changes when any weight does."""
        return sum(float(weight.detach().double().abs().sum().item()) for weight in self._model.parameters())


def make_step(target: device.Target, setup: Any, case: Any) -> Step:
    """The step of ``setup`` (network, batch, side) as ``case`` says; the same weights and data for every case."""
    from . import models

    torch = target.torch
    torch.manual_seed(17)  # weights
    classes = CLASSES[setup.network] if setup.side != CIFAR_SIDE or setup.network != "resnet50" else 10
    generator = torch.Generator().manual_seed(18)
    labels = torch.randint(0, classes, (setup.batch,), generator=generator).to(target.device)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    if setup.network == "resnet50":
        model = models.resnet50(classes).to(device=target.device, memory_format=layout)
        inputs = torch.randn(setup.batch, 3, setup.side, setup.side, generator=generator)
        inputs = inputs.to(target.device).contiguous(memory_format=layout)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        sizes = {"layers": 2, "hidden": 96, "heads": 4, "words": 500} if setup.network == "tiny" else {}
        model = models.BertClassifier(**sizes).to(target.device)
        words = torch.randint(0, sizes.get("words", models.VOCABULARY), (setup.batch, setup.side), generator=generator)
        inputs = words.to(target.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5)
    model.train()
    if case.compiled:
        torch._dynamo.reset()
        model = torch.compile(model)

    def autocast() -> Any:
        return torch.autocast(target.device.type, torch.bfloat16, enabled=case.amp)

    return Step(model, (inputs, labels), optimiser, autocast, torch.nn.functional.cross_entropy)


def compile_obstacle(torch: Any, is_cuda: bool) -> str:
    """Why torch.compile cannot work here, with the remedy; "" when nothing speaks against it."""
    if not hasattr(torch, "compile"):
        return "this torch has no torch.compile"
    # Triton builds its launcher in C for a GPU, inductor its kernels in C++ for a CPU.
    named = os.environ.get("CC" if is_cuda else "CXX", "")
    tools = named.split()[:1] if named else (["gcc", "clang", "cc"] if is_cuda else ["g++", "clang++", "c++"])
    if not any(shutil.which(tool) for tool in tools):
        return f"no {'C' if is_cuda else 'C++'} compiler: install {tools[0]} or set {'CC' if is_cuda else 'CXX'}"
    if is_cuda and importlib.util.find_spec("triton") is None:
        return "no triton: install it with torch"
    return ""


@contextlib.contextmanager
def empty_compile_caches() -> Any:
    """Compile into a folder of our own: a warm cache would hide what compiling costs. Removed afterwards."""
    kept = {name: os.environ.get(name) for name in CACHES}
    with scratch.folder("compile") as folder:
        os.environ.update({name: str(folder / name.lower()) for name in CACHES})
        try:
            yield str(folder)
        finally:
            for name, value in kept.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
