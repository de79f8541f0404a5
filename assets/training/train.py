"""Train the model: `python train.py RUN --minutes 62` after `python data.py RUN`.

The schedule follows the clock, not a number of steps: learning rate, sequence length and sparsity are functions of the
part of the time that has passed. So the run ends when it should, however busy the machine is.
"""
import argparse
import json
import os
import pathlib
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
from model import Model, MoE, parameters_of

BATCH, MICRO = 6144, 2048  # tokens per step, and at once
INDEX_FROM = 0.06  # before this, attention is noise that an indexer need not learn
SPARSE_FROM = 0.70
LENGTHS = [(0.45, 256), (0.92, 512), (1.01, 1024)]  # short first: attention is cheaper, and text is local


def newton_schulz(g):
    """The nearest orthogonal matrix, roughly (Polar Express coefficients), batched over the first dimension."""
    x = g if g.shape[1] <= g.shape[2] else g.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in [(8.28721, -23.59588, 17.30039), (4.10706, -2.94785, 0.54484), (3.94869, -2.9089, 0.55182),
                    (3.31842, -2.48848, 0.51004)]:
        s = x @ x.transpose(1, 2)
        x = a * x + (b * s + c * (s @ s)) @ x
    return x if g.shape[1] <= g.shape[2] else x.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: needs far fewer tokens than AdamW. Equal shapes go through Newton-Schulz together."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                shapes.setdefault(p.shape[-2:], []).append((p, torch.lerp(p.grad, m, group["momentum"])))
            for (rows, cols), members in shapes.items():
                update = newton_schulz(torch.cat([u.view(-1, rows, cols) for _, u in members]))
                scale = group["lr"] * max(1.0, rows / cols) ** 0.5
                sizes = [p.numel() // (rows * cols) for p, _ in members]
                for (p, _), u in zip(members, update.split(sizes)):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u.view_as(p), alpha=-scale)


class Windows:
    """Endless windows of the wanted length; each epoch has the chapters anew in another order, and other dialogues."""

    def __init__(self, tok, held_in, seed):
        self.tok, self.held_in, self.rng = tok, held_in, random.Random(seed)
        self.windows, self.length, self.epoch = [], 0, 0

    def fill(self, length):
        end = self.tok.token_to_id(data.END)
        ids = []
        for e in self.tok.encode_batch(data.documents(self.held_in, self.rng)):
            ids += e.ids + [end]
        start = self.rng.randrange(length)
        self.windows = list(torch.tensor(ids)[start:].unfold(0, length + 1, length))
        self.rng.shuffle(self.windows)
        self.length, self.epoch = length, self.epoch + 1

    def next(self, length):
        if length != self.length and self.windows:  # what is left of the epoch, cut or joined to the new length
            flat = torch.cat([w[:-1] for w in self.windows])
            self.windows, self.length = list(flat.unfold(0, length + 1, length)), length
        rows = []
        while len(rows) < MICRO // length:
            if not self.windows:
                self.fill(length)
            rows.append(self.windows.pop())
        return torch.stack(rows)


def losses(model, ids, sparse, sparse_draft, teach, distill):
    x, y = ids[:, :-1], ids[:, 1:]
    h, index = model.trunk(x, sparse, teach)
    logits = model.head(h).flatten(0, 1)
    lm = F.cross_entropy(logits, y.flatten())
    d, draft_index = model.draft(x, h, sparse_draft, teach)
    log_d = F.log_softmax(model.head(d).flatten(0, 1), -1)
    # What decides is whether the draft agrees with the trunk, so the trunk's own distribution becomes its target.
    draft = (1 - distill) * F.nll_loss(log_d, y.flatten())
    if distill:
        draft = draft - distill * (logits.detach().softmax(-1) * log_d).sum(-1).mean()
    return lm, draft, (index + draft_index if teach else None)


@torch.no_grad()
def validate(model, rows):
    model.eval()
    x, y, out = rows[:, :-1], rows[:, 1:].flatten(), {}
    for name, sparse in (("dense", False), ("sparse", True)):
        h, _ = model.trunk(x, sparse)
        logits = model.head(h).flatten(0, 1)
        d, _ = model.draft(x, h, False)
        draft = model.head(d).flatten(0, 1)
        out[name] = round(F.cross_entropy(logits, y).item(), 4)
        out[name + "_mtp"] = round(F.cross_entropy(draft, y).item(), 4)
        out[name + "_agree"] = round((logits.argmax(-1) == draft.argmax(-1)).float().mean().item(), 4)
    model.train()
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("run", type=pathlib.Path)
    ap.add_argument("--minutes", type=float, default=62)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--init", type=pathlib.Path, help="checkpoint to go on from; give another --seed too")
    ap.add_argument("--start", type=float, default=0.0, help="where in the schedule to start, 0 to 1")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    tok = Tokenizer.from_file(str(a.run / "tokenizer.json"))
    held_in, held_out = data.split()
    windows = Windows(tok, held_in, a.seed)
    end = tok.token_to_id(data.END)
    flat = [i for n, v in held_out.items() for i in tok.encode(data.chapter_text(n, v)).ids + [end]]
    held = torch.tensor(flat).unfold(0, 513, 512)[::7]

    model = Model()
    tokens = 0
    if a.init:
        checkpoint = torch.load(a.init)
        model.load_state_dict(checkpoint["model"])
        tokens = checkpoint["tokens"]
    matrices, index, rest = [], [], []
    for name, p in model.named_parameters():
        if "indexer" in name:
            index.append(p)
        elif p.dim() >= 2 and not any(s in name for s in ("embed", "head", "router")):
            matrices.append(p)
        else:
            rest.append(p)
    adam = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    optimizers = [Muon(matrices, lr=a.lr), torch.optim.AdamW(rest, lr=3e-3, **adam), torch.optim.AdamW(index, lr=3e-3, **adam)]
    base = [[g["lr"] for g in o.param_groups] for o in optimizers]
    moes = [m for m in model.modules() if isinstance(m, MoE)]
    print("parameters: %d, active per token: %d; held-out rows %d" % (*parameters_of(model), len(held)), flush=True)

    def save(name):
        torch.save({"model": model.state_dict(), "tokens": tokens, "log": log}, a.run / (name + ".tmp"))
        os.replace(a.run / (name + ".tmp"), a.run / name)

    log, step, mean, started = [], 0, None, time.monotonic()
    begin = started - a.start * a.minutes * 60
    shown = started
    while (at := (time.monotonic() - begin) / 60 / a.minutes) < 1:
        lr = min(1.0, (at - a.start) / 0.012 + 0.02) * min(1.0, max(0.02, (1 - at) / 0.65))
        for o, b in zip(optimizers, base):
            for g, x in zip(o.param_groups, b):
                g["lr"] = x * lr
        length = next(n for until, n in LENGTHS if at < until)
        distill = min(1.0, max(0.0, (at - 0.25) / 0.4))
        micros = BATCH // MICRO
        for i in range(micros):
            teach = i == 0 and at > INDEX_FROM
            sparse = at >= SPARSE_FROM
            # The draft head mostly attends to everything; a third of the time it gets used to its own selection.
            lm, draft, idx = losses(model, windows.next(length), sparse, sparse and i == 1, teach, distill)
            loss = (lm + 0.4 * draft) / micros
            (loss + idx if teach else loss).backward()
            now = torch.tensor([lm.item(), draft.item(), idx.item() if teach else float("nan")])
            mean = now if mean is None else torch.where(now.isnan(), mean, torch.where(mean.isnan(), now, 0.98 * mean + 0.02 * now))
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for o in optimizers:
            if o is optimizers[2] and at <= INDEX_FROM:
                continue
            o.step()
        for o in optimizers:
            o.zero_grad(set_to_none=True)
        for m in moes:
            m.bias += 0.003 * lr * torch.sign(m.load.mean() - m.load)
            m.load.zero_()
        tokens, step = tokens + BATCH, step + 1
        if step % 10 == 0:
            speed = step * BATCH / (time.monotonic() - started)
            print(f"step {step} at {at:.3f} tokens {tokens} epoch {windows.epoch} length {length} lm {mean[0]:.3f} "
                  f"mtp {mean[1]:.3f} index {mean[2]:.3f} {speed:.0f} tok/s", flush=True)
        if time.monotonic() - shown > 200:
            log.append({"at": round(at, 3), "tokens": tokens, **validate(model, held)})
            print(json.dumps(log[-1]), flush=True)
            shown = time.monotonic()
            save("last.pt")
    log.append({"at": 1.0, "tokens": tokens, **validate(model, held)})
    print(json.dumps(log[-1]), flush=True)
    save("final.pt")


if __name__ == "__main__":
    main()
