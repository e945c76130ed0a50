"""Networks whose cost is a number of equal blocks.

Owns: a residual convolution net, a small GPT and a residual MLP, and their optimizer. Refuses: data and time.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from .plan import Plan

CLASSES = 1000
VOCABULARY = 8192
TINY = {"conv": 16, "gpt": 32, "mlp": 16}
"""Widths on a CPU, where a job only has to run."""


class Block(nn.Module):  # type: ignore[misc]
    """Base: what every block may be asked to do beside its own work."""

    chain, checks, wide = 0, 0, False

    def finish(self, h: Any) -> Any:
        """Elementwise operations and looks at the values."""
        for turn in range(self.chain):
            h = h * 1.0001 + 0.0001 * (turn % 2)
        for _ in range(self.checks):
            if not bool(torch.isfinite(h).all()):
                raise FloatingPointError("the network diverged")
        return h

    def setting(self, x: Any) -> Any:
        """Autocast off for the blocks that run in fp32."""
        return torch.autocast(x.device.type, enabled=False) if self.wide else contextlib.nullcontext()


class ConvBlock(Block):
    """Two 3×3 convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Same shape in and out."""
        with self.setting(x):
            return self.finish(F.relu(self.body(x.float() if self.wide else x) + x))


class TextBlock(Block):
    """Attention and a four times wider MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Same shape in and out."""
        with self.setting(x):
            x = x.float() if self.wide else x
            batch, length, width = x.shape
            split = self.inward(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.outward(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(self.finish(F.gelu(self.up(self.norms[1](x)))))


class RowBlock(Block):
    """A linear layer with a norm and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Same shape in and out."""
        return self.finish(x + F.gelu(self.linear(self.norm(x))))


class Net(nn.Module):  # type: ignore[misc]
    """Blocks between an input and an output layer; ``forward`` takes what the data gives."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        width = TINY[plan.net] if plan.tiny else plan.width
        self.kind = plan.net
        kinds: Any = {"conv": ConvBlock, "gpt": TextBlock, "mlp": RowBlock}
        self.blocks = nn.ModuleList([kinds[plan.net](width) for _ in range(plan.depth)])
        wide = round(plan.depth * plan.wide_share) if plan.precision == "fp32" else 0
        for place, block in enumerate(self.blocks):
            block.chain, block.checks, block.wide = plan.chain, plan.checks, place < wide
        if plan.net == "conv":
            self.enter: Any = nn.Conv2d(3, width, 4, 4)
            self.leave: Any = nn.Linear(width, CLASSES)
        elif plan.net == "gpt":
            self.enter, self.leave = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        else:
            self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores per class, or per token and word."""
        h = self.enter(x)
        for block in self.blocks:
            h = block(h)
        return self.leave(h.mean((2, 3)) if self.kind == "conv" else h)


def build(plan: Plan) -> Any:
    """The network on its device. The MLP is bf16 throughout, so that it can be captured as a graph."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest" if plan.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = plan.precision != "fp32"
    with torch.device(plan.device):  # a CPU would take seconds to draw the weights
        net = Net(plan)
    if plan.net == "conv":
        return net.to(plan.device, memory_format=torch.channels_last)
    if plan.net == "mlp" and plan.device != "cpu":
        return net.to(plan.device, torch.bfloat16)
    return net.to(plan.device)


def optimizer(plan: Plan, net: Any) -> Any:
    """AdamW, or SGD for the convolution net. "plain" is SGD that keeps nothing, for the least work per parameter."""
    if plan.optimizer == "plain":
        return torch.optim.SGD(net.parameters(), lr=1e-4, foreach=True)
    kind = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[plan.optimizer]
    if plan.net == "conv":
        return torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, **kind)
    return torch.optim.AdamW(net.parameters(), lr=1e-5, **kind)


def autocast(plan: Plan) -> Any:
    """bf16 where the network asks for it: not in the MLP, nor on a CPU, where it is slower."""
    enabled = plan.device != "cpu" and plan.net != "mlp" and (plan.precision == "bf16" or plan.wide_share < 1.0)
    return torch.autocast("cuda" if plan.device != "cpu" else "cpu", dtype=torch.bfloat16, enabled=enabled)
