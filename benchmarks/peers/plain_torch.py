"""Plain PyTorch: a GPT-2 in the shape of nanoGPT, and `torch.nn.Transformer`. Shapes: B batch, T time, C channels."""

import torch
from torch import nn
from torch.nn import functional

from peers.torch_loop import Training


def create(case, settings):
    """The program of a case; `settings["published"]` asks for nanoGPT's own form, of a GPT alone."""
    family = case["family"]
    if settings.get("published"):
        return Training(NanoGPT(case["sizes"], case["dropout"]), case, lambda *given: LOSSES[family](*given)[1])
    return Training(MODELS[family](case["sizes"], case["dropout"]), case, LOSSES[family])


class Block(nn.Module):
    """One layer: causal self-attention with one matrix for query, key and value, then an MLP, norms first."""

    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU("tanh"), nn.Linear(4 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        """Float `(B, T, C)` to `(B, T, C)`."""
        batch, length, dim = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, length, 3 * self.num_heads, -1).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)  # (B, H, T, C/H) each
        dropped = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropped)
        x = x + self.drop(self.output(y.transpose(1, 2).reshape(batch, length, dim)))
        return x + self.drop(self.mlp(self.mlp_norm(x)))  # (B, T, C)


class GPT(nn.Module):
    """A GPT-2 whose head is the embedding's own matrix."""

    def __init__(self, sizes, dropout):
        super().__init__()
        dim = sizes["dim"]
        self.tokens, self.positions = nn.Embedding(sizes["vocab_size"], dim), nn.Embedding(sizes["max_length"], dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, sizes["num_heads"], dropout) for _ in range(sizes["num_layers"]))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, sizes["vocab_size"], bias=False)
        self.head.weight = self.tokens.weight
        self.apply(_initialize)

    def logits(self, tokens):
        """Logits `(B, T, V)` of the tokens after those given, `(B, T)`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(positions))  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def forward(self, tokens, labels):
        """The loss of predicting labels `(B, T)` after tokens `(B, T)`."""
        return functional.cross_entropy(self.logits(tokens).flatten(0, 1), labels.flatten())


class NanoGPT(GPT):
    """As nanoGPT has it: the exact form of GELU, and the logits are handed back with the loss."""

    def __init__(self, sizes, dropout):
        super().__init__(sizes, dropout)
        for block in self.blocks:
            block.mlp[1] = nn.GELU()

    def forward(self, tokens, labels):
        """Logits `(B, T, V)`, and the loss."""
        logits = self.logits(tokens)
        return logits, functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _initialize(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class EncoderDecoder(nn.Module):
    """`torch.nn.Transformer` between one embedding for both sides and a head that is its matrix."""

    def __init__(self, sizes, dropout):
        super().__init__()
        dim, depth = sizes["dim"], sizes["num_layers"]
        self.tokens = nn.Embedding(sizes["vocab_size"], dim)
        self.drop = nn.Dropout(dropout)
        self.body = nn.Transformer(dim, sizes["num_heads"], depth, depth, sizes["mlp_dim"], dropout, batch_first=True)
        self.head = nn.Linear(dim, sizes["vocab_size"], bias=False)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.head.weight = self.tokens.weight
        angles = torch.arange(sizes["max_length"])[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=-1))  # (T, C)

    def embed(self, tokens):
        """Tokens `(B, T)` with their positions, `(B, T, C)`."""
        scale = self.tokens.embedding_dim**0.5
        return self.drop(self.tokens(tokens) * scale + self.positions[: tokens.shape[1]])

    def forward(self, source, target, labels):
        """The loss of predicting labels `(B, T)` after target `(B, T)`, given source `(B, S)`."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        x = self.body(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)  # (B, T, C)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


MODELS = {"gpt": GPT, "transformer": EncoderDecoder}
LOSSES = {
    "gpt": lambda model, batch: model(batch["tokens"], batch["labels"]),
    "transformer": lambda model, batch: model(batch["source"], batch["target"], batch["labels"]),
}
