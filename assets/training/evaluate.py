"""Measure a GGUF file of ours on the held-out chapters, as it is: `python evaluate.py OUT.gguf RUN/tokenizer.json`.

Perplexity with dense and with sparse attention, by position; how often the draft head agrees with the trunk, on the text
and in greedy generation; and samples. Prints JSON lines. `--tokens 30 --prompt TEXT` prints a greedy completion only.
"""
import argparse
import json
import pathlib

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import export


@torch.no_grad()
def perplexity(model, rows):
    """Losses in nats per token: over all positions, and where there is something left out (beyond top-k)."""
    x, y, out, k = rows[:, :-1], rows[:, 1:], {}, model.c.top_k
    for trunk_name, sparse in (("dense", False), ("sparse", True)):
        nll, agree = [], {False: [], True: []}
        for xs, ys in zip(x.split(4), y.split(4)):
            h, _ = model.trunk(xs, sparse)
            logits = model.head(h)
            nll.append(F.cross_entropy(logits.transpose(1, 2), ys, reduction="none"))
            for sparse_draft in (False, True):
                d, _ = model.draft(xs, h, sparse_draft)
                agree[sparse_draft].append((model.head(d).argmax(-1) == logits.argmax(-1)).float())
        nll = torch.cat(nll)
        out[trunk_name] = {
            "loss": round(nll.mean().item(), 4),
            "ppl": round(nll.mean().exp().item(), 3),
            "ppl_beyond_top_k": round(nll[:, k:].mean().exp().item(), 3),
            "ppl_last_quarter": round(nll[:, -nll.shape[1] // 4 :].mean().exp().item(), 3),
            "draft_agrees_dense": round(torch.cat(agree[False]).mean().item(), 4),
            "draft_agrees_sparse": round(torch.cat(agree[True]).mean().item(), 4),
        }
    return out


@torch.no_grad()
def greedy(model, prompts, count, sparse=True):
    """Greedy continuations of prompts of equal length, without a cache: the model is small."""
    ids = prompts
    for _ in range(count):
        h, _ = model.trunk(ids, sparse)
        ids = torch.cat([ids, model.head(h[:, -1]).argmax(-1, keepdim=True)], 1)
    return ids


@torch.no_grad()
def acceptance(model, prompts, count):
    """Part of the generated tokens that the draft head foresaw, with dense and with sparse attention in the draft."""
    ids = greedy(model, prompts, count)
    h, _ = model.trunk(ids[:, :-1], True)
    out = {}
    for name, sparse in (("dense", False), ("sparse", True)):
        d, _ = model.draft(ids[:, :-1], h, sparse)
        hit = (model.head(d).argmax(-1) == ids[:, 1:])[:, prompts.shape[1] :]
        out[name] = round(hit.float().mean().item(), 4)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("gguf", type=pathlib.Path)
    ap.add_argument("tokenizer", type=pathlib.Path)
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--prompt", action="append", help="complete this greedily and measure nothing; may be given again")
    a = ap.parse_args()
    torch.set_num_threads(1)
    model, tok = export.load(a.gguf), Tokenizer.from_file(str(a.tokenizer))

    def complete(text):
        ids = torch.tensor([tok.encode(text).ids])
        return tok.decode(greedy(model, ids, a.tokens)[0, ids.shape[1] :].tolist(), skip_special_tokens=False)

    if a.prompt:
        for text in a.prompt:
            print(json.dumps({"prompt": text, "greedy": complete(text)}))
        return
    _, held_out = data.split()
    end = tok.token_to_id(data.END)
    chapters = [tok.encode(data.chapter_text(n, v)).ids + [end] for n, v in held_out.items()]
    flat = torch.tensor(sum(chapters, []))
    print(json.dumps({"held_out_chapters": len(chapters), "held_out_tokens": len(flat)}))
    for length in (256, 512, model.c.context):
        print(json.dumps({"length": length, **perplexity(model, flat.unfold(0, length + 1, length))}), flush=True)
    for length in (24, 96, 300):
        prompts = torch.tensor([c[:length] for c in chapters if len(c) > length][:16])
        print(json.dumps({"prompt": length, "generated": a.tokens, "draft_accepted": acceptance(model, prompts, a.tokens)}), flush=True)
    for text in ["In the beginning", "And it came to pass", "The LORD is my", "Proverbs 3\n", "<|user|>Blessed are the<|end|><|assistant|>"]:
        print(json.dumps({"prompt": text, "greedy": complete(text)}), flush=True)


if __name__ == "__main__":
    main()
