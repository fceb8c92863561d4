"""How much arithmetic a training step is, and how many parameters a model has, by formula.

Model FLOPs count what the mathematics needs (a multiply-add is 2), never what a kernel happens to repeat, so that
TFLOP/s compare between machines and software. A backward pass is twice its forward pass.
"""

from __future__ import annotations

from .models.shapes import CLASSES, WIDTHS, LlamaShape, convolution_shapes

LLAMA_FORMULA = "tokens*(6*(N-N_embedding)+12*L*d*s)"
RESNET_FORMULA = "3*2*MACs(convolutions,head)"


def llama_parameters(shape: LlamaShape) -> int:
    """Return the number of parameters, input embedding and (untied) head included."""
    return llama_matmul_parameters(shape) + shape.vocabulary * shape.dim + (2 * shape.layers + 1) * shape.dim


def llama_matmul_parameters(shape: LlamaShape) -> int:
    """Return the number of parameters that take part in a matrix product for every token: not embedding and norms."""
    attention = 2 * shape.dim * shape.head_dim * (shape.heads + shape.kv_heads)
    return shape.layers * (attention + 3 * shape.dim * shape.ffn_dim) + shape.dim * shape.vocabulary


def llama_flops(shape: LlamaShape, sequence_length: int, tokens: int) -> int:
    """Return the model FLOPs of training on so many tokens: ``6 (N - N_embedding) + 12 L d s`` for each.

    N are all parameters, L the layers, d the width of all heads together, s the sequence length. 6 N is 2 forward and 4
    backward for each weight; 12 L d s are the products of queries with keys and of scores with values. The causal mask,
    which spares half of the latter, is not deducted: the convention of PaLM (Chowdhery et al. 2022, appendix B) and of
    torchtitan, whose figures these compare with.
    """
    weights = llama_parameters(shape) - shape.vocabulary * shape.dim
    attention = 12 * shape.layers * shape.heads * shape.head_dim * sequence_length
    return tokens * (6 * weights + attention)


def resnet18_macs() -> int:
    """Return the multiply-adds of one image's forward pass, convolutions and head."""
    return sum(cin * cout * (kernel * size) ** 2 for cin, cout, kernel, size in convolution_shapes()) + (
        WIDTHS[-1] * CLASSES
    )


def resnet18_flops(images: int) -> int:
    """Return the model FLOPs of training on so many images: 2 per multiply-add, forward once and backward twice."""
    return 6 * resnet18_macs() * images
