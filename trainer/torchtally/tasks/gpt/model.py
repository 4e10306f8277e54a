"""The decoder: RMSNorm before each sublayer, rotary positions, causal attention."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_WAVELENGTH = 10_000.0  # the longest of the rotary positions


class Attention(nn.Module):
    """Causal self-attention with rotary positions (Su et al., "RoFormer", 2021)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.input(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        attended = scaled_dot_product_attention(_turned(query, turn), _turned(key, turn), value, is_causal=True)
        projected: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return projected


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm, self.network_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn)
        done: Tensor = x + self.network(self.network_norm(x))
        return done


class GPT(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._width = width // heads
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # outputs of residuals are smaller, so that deep sums are not larger
                inner = name.endswith(("output.weight", "network.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if inner else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        turn = self._turn(tokens)
        for block in self.blocks:
            x = block(x, turn)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _turn(self, tokens: Tensor) -> Tensor:
        """Cosines and sines of the rotary positions: (2, length, half the width of a head)."""
        half = torch.arange(0, self._width, 2, device=tokens.device) / self._width
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), _WAVELENGTH**-half)
        return torch.stack([angles.cos(), angles.sin()])


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    cosine, sine = turn.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
