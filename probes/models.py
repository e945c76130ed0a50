"""Two networks written here, so that nothing is downloaded: ResNet-50 and a classifier of BERT-base's size.

Owns: their definition. Refuses: weights, training, timing. Layer sizes are those of the papers (He et al. 2015, Devlin
et al. 2018), so figures can be set beside others' for the same networks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and blocks of the four stages."""
EXPANSION = 4
VOCABULARY = 30522
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 768, 12, 12, 3072, 512


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """1×1, 3×3 (with the stride), 1×1, and the way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, image: Any) -> Any:
        """Body plus what went around it."""
        return self.relu(self.body(image) + self.around(image))


def resnet50(classes: int = 1000) -> Any:
    """ResNet-50 (25.6 million parameters with 1000 classes)."""
    layers: list[Any] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and stage > 0 else 1))
            inputs = width * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Attention(nn.Module):  # type: ignore[misc]  # see above
    """Self-attention over ``scaled_dot_product_attention``."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(hidden, 3 * hidden)
        self.outward = nn.Linear(hidden, hidden)

    def forward(self, tokens: Any) -> Any:
        """Batch × length × hidden to the same."""
        batch, length, hidden = tokens.shape
        parts = self.inward(tokens).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.outward(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):  # type: ignore[misc]  # see above
    """One encoder layer with the norms behind, as in BERT."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.first_norm = nn.LayerNorm(hidden)
        self.inner = nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, hidden))
        self.second_norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Any) -> Any:
        """Attention and feed-forward, each with its way around."""
        tokens = self.first_norm(tokens + self.attention(tokens))
        return self.second_norm(tokens + self.inner(tokens))


class BertClassifier(nn.Module):  # type: ignore[misc]  # see above
    """BERT-base's encoder (about 110 million parameters) with a classifier on the first token, without dropout.

    Dropout would make two runs differ; it costs a few per cent, so figures lie a little above those with it.
    """

    def __init__(
        self, layers: int = LAYERS, hidden: int = HIDDEN, heads: int = HEADS, words: int = VOCABULARY, classes: int = 2
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.places = nn.Embedding(POSITIONS, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.Sequential(*(Layer(hidden, heads, INNER * hidden // HIDDEN) for _ in range(layers)))
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, words: Any) -> Any:
        """Batch × length token numbers to batch × classes."""
        places = torch.arange(words.shape[1], device=words.device)
        tokens = self.layers(self.norm(self.words(words) + self.places(places)))
        return self.classifier(torch.tanh(self.pooler(tokens[:, 0])))


def parameters(model: Any) -> int:
    """How many numbers a model has to learn."""
    return sum(int(weight.numel()) for weight in model.parameters())
