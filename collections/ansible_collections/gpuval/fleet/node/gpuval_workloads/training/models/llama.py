"""Llama: RMSNorm before each half of a layer, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn

from .shapes import LlamaShape

INIT_STD = 0.02


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.wq = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # Without enable_gqa, for which some back ends have no fused kernel.
        k, v = (repeat_heads(x, self.shape.heads // self.shape.kv_heads) for x in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(shape.dim), Attention(shape)
        self.ffn_norm, self.ffn = RMSNorm(shape.dim), FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """A decoder; ``forward`` returns the mean cross entropy of the next token, in nats."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LlamaShape, sequence_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        cos, sin = rotary_tables(shape.head_dim, sequence_length, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Set normal random weights, in layers that feed the residual stream narrower with depth, as in GPT-2."""
        narrow = INIT_STD / (2 * len(self.layers)) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                writes = name.endswith(("wo.weight", "down.weight"))
                parameter.normal_(0, narrow if writes else INIT_STD, generator=generator)

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the next token's scores after every token: (batch, length, vocabulary)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(tokens).flatten(0, 1)
        precise = torch.promote_types(logits.dtype, torch.float32)  # float64 stays float64
        return F.cross_entropy(logits.to(precise), targets.flatten())


def rotary_tables(head_dim: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles, each of shape (length, head_dim), with equal halves."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) of x (batch, heads, length, head_dim) by its position's angle."""
    x_low, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, x_low], dim=-1) * sin


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Return keys or values repeated for each query head of their group, as views."""
    if times == 1:
        return x
    batch, heads, length, head_dim = x.shape
    return x[:, :, None].expand(batch, heads, times, length, head_dim).reshape(batch, heads * times, length, head_dim)
