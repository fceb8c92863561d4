"""The dimensions of the models, as data, and formulas for their parameters and the model FLOPs of a training step.
Needs no PyTorch.

Model FLOPs count the operations of the mathematics (a multiply-add is 2), without a kernel's repeats, so that TFLOP/s
compare between machines and software. A backward pass is twice its forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

LLAMA_FORMULA = "tokens*(6*(N-N_embedding)+12*L*d*s)"
RESNET_FORMULA = "3*2*MACs(convolutions,head)"

# ResNet-18 for 32 x 32 images
IMAGE_SIZE = 32
CLASSES = 10
WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


@dataclass(frozen=True)
class LlamaShape:
    """The dimensions of a Llama, and default settings of its training (per process)."""

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


# With learning rates above 0.2 / dim, the larger shapes' loss depends on rounding of sums (docs/design/loss.md).
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


def llama_parameters(shape: LlamaShape) -> int:
    """Return a Llama's number of parameters, input embedding and (untied) head included."""
    attention = 2 * shape.dim * shape.head_dim * (shape.heads + shape.kv_heads)
    layer_and_norms = attention + 3 * shape.dim * shape.ffn_dim + 2 * shape.dim
    return shape.layers * layer_and_norms + 2 * shape.dim * shape.vocabulary + shape.dim


def llama_flops(shape: LlamaShape, sequence_length: int, tokens: int) -> int:
    """Return the model FLOPs of training on ``tokens``: ``6 (N - N_embedding) + 12 L d s`` for each token. N are all
    parameters, L the layers, d the width of all heads together, s the sequence length: 6 N is 2 forward and 4 backward
    for each weight, 12 L d s queries with keys and scores with values, without the causal mask's half: the convention
    of PaLM (Chowdhery et al. 2022, appendix B) and torchtitan."""
    weights = llama_parameters(shape) - shape.vocabulary * shape.dim
    attention = 12 * shape.layers * shape.heads * shape.head_dim * sequence_length
    return tokens * (6 * weights + attention)


def resnet18_macs() -> int:
    """Return the multiply-adds of ResNet-18's forward pass for one image, in convolutions and head."""
    return sum(cin * cout * (kernel * size) ** 2 for cin, cout, kernel, size in convolution_shapes()) + (
        WIDTHS[-1] * CLASSES
    )


def resnet18_flops(images: int) -> int:
    """Return the model FLOPs of training ResNet-18 on ``images``: 2 per multiply-add, once forward, twice backward."""
    return 6 * resnet18_macs() * images
