"""ResNet-18 in its form for 32 x 32 images: a 3 x 3 stem without pooling (He et al. 2016; 11.17 M parameters)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn

from .shapes import BLOCKS_PER_STAGE, CLASSES, WIDTHS


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """A classifier of images; ``forward`` returns the mean cross entropy of the labels, in nats."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        layers, channels = [], WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for block in range(BLOCKS_PER_STAGE):
                layers.append(ResidualBlock(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTHS[-1], CLASSES)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Set random weights: He normal for convolutions, identity for norms."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * module.kernel_size[0] ** 2
                module.weight.normal_(0, (2 / fan_out) ** 0.5, generator=generator)
        self.head.weight.normal_(0, 0.01, generator=generator)
        self.head.bias.zero_()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.layers(F.relu(self.norm(self.stem(images)), inplace=True))
        return F.cross_entropy(self.head(x.mean(dim=(2, 3))).float(), labels)
