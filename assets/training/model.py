"""A small GLM-DSA (glm_moe_dsa) in plain PyTorch, as GLM-5.2 defines it: MLA, a lightning indexer whose top-k lists are
shared between layers (IndexShare), sigmoid-gated experts, and one multi-token-prediction (MTP) block behind the trunk.

Attention is computed unabsorbed, which is faster to train; export.py writes the absorbed tensors.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    # Sizes differ wherever they may, so that a swapped dimension cannot go unnoticed; rows are multiples of 32 (Q8_0).
    vocab: int = 1024
    hidden: int = 160
    heads: int = 4
    q_lora: int = 128
    kv_lora: int = 96
    nope: int = 64
    rope: int = 32
    v_dim: int = 48
    index_heads: int = 6
    index_dim: int = 64
    top_k: int = 64
    # True: the layer owns an indexer. False: it uses the list of the nearest such layer before it.
    full: tuple = (True, True, False, False, True, True, False, False)
    dense_layers: int = 1
    dense_ff: int = 320
    experts: int = 8
    experts_used: int = 2
    expert_ff: int = 96
    routed_scale: float = 2.0
    theta: float = 10000.0
    context: int = 1024
    eps: float = 1e-6

    @property
    def layers(self):
        return len(self.full)


def linear(n_in, n_out):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=n_in**-0.5)
    return layer


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.dim, self.eps = nn.Parameter(torch.ones(dim)), (dim,), eps

    def forward(self, x):
        return F.rms_norm(x, self.dim, self.weight, self.eps)


def rope(x, freqs):
    """Interleaved rotary embedding: pairs (2i, 2i+1). x: [..., T, rope], freqs: complex [T, rope/2]."""
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs).flatten(-2)


class Indexer(nn.Module):
    """Scores every earlier token for each query. It learns from the attention it stands for, not from the LM loss."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_b = linear(c.q_lora, c.index_heads * c.index_dim)
        self.k = linear(c.hidden, c.index_dim)
        self.k_norm = nn.LayerNorm(c.index_dim, eps=1e-6)
        self.proj = linear(c.hidden, c.index_heads)

    def forward(self, x, q_latent, freqs):
        c, (b, t, _) = self.c, x.shape
        q = self.q_b(q_latent).view(b, t, c.index_heads, c.index_dim).transpose(1, 2)
        q = torch.cat([rope(q[..., : c.rope], freqs), q[..., c.rope :]], -1)  # head layout [rope | nope]
        k = self.k_norm(self.k(x))
        k = torch.cat([rope(k[..., : c.rope], freqs), k[..., c.rope :]], -1)
        w = self.proj(x) * (c.index_heads**-0.5 * c.index_dim**-0.5)  # both factors commute with the ReLU
        s = torch.relu(q @ k.transpose(1, 2)[:, None])
        return torch.einsum("bhqk,bqh->bqk", s, w)


class Attention(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.c = c
        self.q_a, self.q_a_norm = linear(c.hidden, c.q_lora), RMSNorm(c.q_lora, c.eps)
        self.q_b = linear(c.q_lora, c.heads * (c.nope + c.rope))
        self.kv_a, self.kv_a_norm = linear(c.hidden, c.kv_lora + c.rope), RMSNorm(c.kv_lora, c.eps)
        self.kv_b = linear(c.kv_lora, c.heads * (c.nope + c.v_dim))
        self.o = linear(c.heads * c.v_dim, c.hidden)
        nn.init.zeros_(self.o.weight)
        self.indexer = Indexer(c) if full else None

    def forward(self, x, run, state):
        c, (b, t, _) = self.c, x.shape
        q_latent = self.q_a_norm(self.q_a(x))
        if self.indexer is not None and run.index:
            # Detached: the trunk does not bend to the indexer.
            state.scores = self.indexer(x.detach(), q_latent.detach(), run.freqs)
            state.owner = state.owner + 1
            if run.sparse:
                state.mask = selection(state.scores.detach(), c.top_k)
        q = self.q_b(q_latent).view(b, t, c.heads, -1).transpose(1, 2)
        kv, k_rope = self.kv_a(x).split([c.kv_lora, c.rope], -1)
        kv = self.kv_b(self.kv_a_norm(kv)).view(b, t, c.heads, -1).transpose(1, 2)
        k_nope, v = kv.split([c.nope, c.v_dim], -1)
        q = torch.cat([q[..., : c.nope], rope(q[..., c.nope :], run.freqs)], -1)
        k_rope = rope(k_rope, run.freqs)[:, None].expand(b, c.heads, t, c.rope)
        k = torch.cat([k_nope, k_rope], -1)
        if run.teach:
            state.teach(q.detach(), k.detach())
        a = CausalAttention.apply(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), state.mask if run.sparse else None)
        return self.o(a.view(b, c.heads, t, -1).transpose(1, 2).reshape(b, t, -1))


class CausalAttention(torch.autograd.Function):
    """Attention in stripes of queries, each with only the keys it may see: a third less work than the full square."""

    STRIPE = 64

    @staticmethod
    def forward(ctx, q, k, v, mask):
        n, t, _ = q.shape
        scale, out, probs = q.shape[-1] ** -0.5, [], []
        for start in range(0, t, CausalAttention.STRIPE):
            end = min(start + CausalAttention.STRIPE, t)
            if mask is None:
                bias = causal(end)[start:].expand(n, -1, -1)
            else:
                bias = mask[:, start:end, :end].repeat_interleave(n // len(mask), 0)
            p = torch.baddbmm(bias, q[:, start:end], k[:, :end].transpose(1, 2), alpha=scale).softmax(-1)
            out.append(p @ v[:, :end])
            probs.append(p)
        ctx.save_for_backward(q, k, v, *probs)
        return torch.cat(out, 1)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *probs = ctx.saved_tensors
        scale, dq, dk, dv = q.shape[-1] ** -0.5, [], torch.zeros_like(k), torch.zeros_like(v)
        for i, p in enumerate(probs):
            start, end = i * CausalAttention.STRIPE, p.shape[-1]
            g = grad[:, start:end]
            dv[:, :end] += p.transpose(1, 2) @ g
            ds = torch._softmax_backward_data(g @ v[:, :end].transpose(1, 2), p, -1, p.dtype)
            ds *= scale
            dq.append(ds @ k[:, :end])
            dk[:, :end] += ds.transpose(1, 2) @ q[:, start:end]
        return torch.cat(dq, 1), dk, dv, None


def causal(t):
    return torch.full((t, t), float("-inf")).triu(1)


def selection(scores, k):
    """Additive mask with zero at the k best of the visible tokens, the lowest position first where scores tie."""
    t = scores.shape[-1]
    if t <= k:
        return causal(t).expand_as(scores)
    masked = scores + causal(t)
    if torch.is_grad_enabled():
        best = masked.topk(k, -1, sorted=False).indices  # faster, and ties do not matter to training
    else:
        best = masked.sort(stable=True, dim=-1, descending=True).indices[..., :k]
    keep = torch.full_like(scores, float("-inf")).scatter_(-1, best, 0.0)
    return keep + causal(t)


class IndexState:
    """What full layers leave for the shared ones after them, and what the attention layers teach the indexers."""

    def __init__(self):
        self.scores = self.mask = None
        self.owner = -1
        self.lessons = []  # one for each attention layer: (owner, scores, attention averaged over the heads)

    def teach(self, q, k):
        with torch.no_grad():
            s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            target = torch.softmax(s + causal(q.shape[2]), -1).mean(1)
        self.lessons.append((self.owner, self.scores, target))

    def loss(self):
        """KL of softmax(scores) against attention; a list with several users learns from their average."""
        groups = {}
        for owner, scores, target in self.lessons:
            groups.setdefault(owner, (scores, []))[1].append(target)
        total = 0.0
        for scores, targets in groups.values():
            p = torch.stack(targets).mean(0)
            log_q = torch.log_softmax(scores + causal(scores.shape[-1]), -1)
            total = total + (torch.xlogy(p, p) - p * log_q.clamp(min=-100.0)).sum(-1).mean()
        return total / len(groups)


class FFN(nn.Module):
    def __init__(self, c, ff):
        super().__init__()
        self.gate, self.up, self.down = linear(c.hidden, ff), linear(c.hidden, ff), linear(ff, c.hidden)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Permute(torch.autograd.Function):
    """Rows x[src // used], where src is a permutation: gathers both ways, index_add is slow on a CPU."""

    @staticmethod
    def forward(ctx, x, order, inverse, used):
        ctx.save_for_backward(inverse)
        ctx.used = used
        return x.index_select(0, order // used)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        g = grad.index_select(0, inverse)
        return g.view(-1, ctx.used, g.shape[-1]).sum(1) if ctx.used > 1 else g, None, None, None


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = linear(c.hidden, c.experts)
        # Moved by hand towards equal load; it only selects, the weights are the unbiased scores.
        self.register_buffer("bias", torch.zeros(c.experts))
        self.register_buffer("load", torch.zeros(c.experts), persistent=False)
        self.gate_up = nn.Parameter(torch.randn(c.experts, 2 * c.expert_ff, c.hidden) * c.hidden**-0.5)
        self.down = nn.Parameter(torch.zeros(c.experts, c.hidden, c.expert_ff))
        self.shared = FFN(c, c.expert_ff)

    def forward(self, x):
        c, shape = self.c, x.shape
        x = x.reshape(-1, c.hidden)
        s = torch.sigmoid(self.router(x))
        chosen = (s.detach() + self.bias).topk(c.experts_used, -1).indices
        w = s.gather(1, chosen)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c.routed_scale
        flat = chosen.view(-1)
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        counts = torch.bincount(flat, minlength=c.experts)
        if self.training:
            self.load += counts
        rows = Permute.apply(x, order, inverse, c.experts_used).split(counts.tolist())
        out = []
        for e, part in enumerate(rows):
            gate, up = (part @ self.gate_up[e].T).chunk(2, -1)
            out.append((F.silu(gate) * up) @ self.down[e].T)
        y = Permute.apply(torch.cat(out), inverse, order, 1).view(-1, c.experts_used, c.hidden)
        y = torch.bmm(w[:, None], y)[:, 0] + self.shared(x)
        return y.view(shape)


class Block(nn.Module):
    def __init__(self, c, full, dense):
        super().__init__()
        self.attn_norm, self.ffn_norm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.attn = Attention(c, full)
        self.ffn = FFN(c, c.dense_ff) if dense else MoE(c)

    def forward(self, x, run, state):
        x = x + self.attn(self.attn_norm(x), run, state)
        return x + self.ffn(self.ffn_norm(x))


class MTP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.enorm, self.hnorm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.eh_proj = linear(2 * c.hidden, c.hidden)
        self.block = Block(c, True, False)
        self.head_norm = RMSNorm(c.hidden, c.eps)


@dataclasses.dataclass
class Run:
    """How to run: `index` computes index scores, `sparse` attends to the selection only, `teach` gathers lessons."""

    freqs: torch.Tensor
    index: bool
    sparse: bool
    teach: bool


class Model(nn.Module):
    def __init__(self, c=Config()):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.blocks = nn.ModuleList(Block(c, f, i < c.dense_layers) for i, f in enumerate(c.full))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.head = linear(c.hidden, c.vocab)
        self.mtp = MTP(c)
        inv = c.theta ** (-torch.arange(0, c.rope, 2).double() / c.rope)
        angle = torch.arange(c.context).double()[:, None] * inv
        self.register_buffer("freqs", torch.polar(torch.ones_like(angle), angle).to(torch.complex64), persistent=False)

    def run(self, t, sparse=False, teach=False):
        return Run(self.freqs[:t], sparse or teach, sparse, teach)

    def trunk(self, ids, sparse=False, teach=False):
        """Hidden states behind the output norm, and the indexers' loss (or None)."""
        state, run = IndexState(), self.run(ids.shape[1], sparse, teach)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, run, state)
        return self.norm(x), state.loss() if teach else None

    def draft(self, ids, h, sparse=False, teach=False):
        """The MTP block's hidden states: row p sees token p and the trunk's state of p-1 (zero before the first)."""
        m, state, run = self.mtp, IndexState(), self.run(ids.shape[1], sparse, teach)
        before = F.pad(h, (0, 0, 1, 0))[:, :-1]
        x = m.eh_proj(torch.cat([m.enorm(self.embed(ids)), m.hnorm(before)], -1))
        x = m.block(x, run, state)
        return m.head_norm(x), state.loss() if teach else None


def parameters_of(model):
    total = sum(p.numel() for p in model.parameters())
    c = model.c
    idle = (c.experts - c.experts_used) * 3 * c.hidden * c.expert_ff * (c.layers - c.dense_layers + 1)
    return total, total - idle
