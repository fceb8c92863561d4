"""The dimensions of the models, as data; no PyTorch needed to read them."""

from __future__ import annotations

from dataclasses import dataclass

# ResNet-18 for 32 x 32 images
IMAGE_SIZE = 32
CLASSES = 10
WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


@dataclass(frozen=True)
class LlamaShape:
    """The dimensions of a Llama, and how it is trained by default (per process)."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocabulary: int
    sequence_length: int
    batch_size: int
    learning_rate: float
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


# Above rates of 0.2 / dim the loss of the larger shapes depends on how sums are rounded (docs/design/loss.md).
SIZES = {
    "tiny": LlamaShape(128, 2, 4, 2, 352, 256, 128, 16, 3e-3),
    "small": LlamaShape(768, 12, 12, 4, 2048, 32000, 1024, 16, 2e-4),
    "1b": LlamaShape(2048, 22, 32, 4, 5632, 32000, 2048, 8, 1e-4),  # the shape of TinyLlama 1.1B
    "3b": LlamaShape(3072, 28, 24, 8, 8192, 128256, 2048, 4, 5e-5, 500000.0),  # Llama 3.2 3B, head not tied
    "8b": LlamaShape(4096, 32, 32, 8, 14336, 128256, 2048, 1, 4e-5, 500000.0),  # Llama 3.1 8B
}


def convolution_shapes() -> list[tuple[int, int, int, int]]:
    """Return (channels in, channels out, kernel, output size) of every convolution, in order."""
    shapes = [(3, WIDTHS[0], 3, IMAGE_SIZE)]
    channels, size = WIDTHS[0], IMAGE_SIZE
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS_PER_STAGE):
            if stage > 0 and block == 0:
                size //= 2
                shapes.append((channels, width, 1, size))
            shapes += [(channels, width, 3, size), (width, width, 3, size)]
            channels = width
    return shapes
