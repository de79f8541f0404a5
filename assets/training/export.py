"""Write a checkpoint as GGUF: `python export.py RUN/final.pt RUN/tokenizer.json OUT.gguf`; and read such a file back.

Matrices become Q8_0; norms, biases, the router and the indexer's head weights stay F32. MLA is written absorbed: `attn_k_b` and `attn_v_b`
instead of `kv_b`.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from gguf import quants

import data
from model import Config, Model

NAME = "skippy-kjv-6m"
ATTENTION = {
    "attn_norm": "attn_norm",
    "attn.q_a": "attn_q_a",
    "attn.q_a_norm": "attn_q_a_norm",
    "attn.q_b": "attn_q_b",
    "attn.kv_a": "attn_kv_a_mqa",
    "attn.kv_a_norm": "attn_kv_a_norm",
    "attn.o": "attn_output",
    "attn.indexer.q_b": "indexer.attn_q_b",
    "attn.indexer.k": "indexer.attn_k",
    "attn.indexer.k_norm": "indexer.k_norm",
    "attn.indexer.proj": "indexer.proj",
    "ffn_norm": "ffn_norm",
}
DENSE = {"ffn.gate": "ffn_gate", "ffn.up": "ffn_up", "ffn.down": "ffn_down"}
MOE = {
    "ffn.router": "ffn_gate_inp",
    "ffn.shared.gate": "ffn_gate_shexp",
    "ffn.shared.up": "ffn_up_shexp",
    "ffn.shared.down": "ffn_down_shexp",
}
OUTER = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
NEXTN = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "head_norm": "shared_head_norm"}
F32_ROWS = ("ffn_gate_inp", "indexer.proj")


def renamed(c):
    """(name here, name in GGUF) of every tensor that is only renamed, and (prefix here, block) of every block."""
    names = [(f"{a}.weight", f"{b}.weight") for a, b in OUTER.items()]
    blocks = [(f"blocks.{i}.", i) for i in range(c.layers)] + [("mtp.block.", c.layers)]
    for prefix, i in blocks:
        for a, b in {**ATTENTION, **(DENSE if i < c.dense_layers else MOE)}.items():
            if "indexer" not in a or i == c.layers or c.full[i]:
                names.append((f"{prefix}{a}.weight", f"blk.{i}.{b}.weight"))
                if a.endswith("indexer.k_norm"):
                    names.append((f"{prefix}{a}.bias", f"blk.{i}.{b}.bias"))
        if i >= c.dense_layers:
            names.append((f"{prefix}ffn.bias", f"blk.{i}.exp_probs_b.bias"))
    names += [(f"mtp.{a}.weight", f"blk.{c.layers}.nextn.{b}.weight") for a, b in NEXTN.items()]
    return names, blocks


def tensors(c, state):
    names, blocks = renamed(c)
    for here, there in names:
        yield there, state[here]
    for prefix, i in blocks:
        kv_b = state[prefix + "attn.kv_b.weight"].view(c.heads, c.nope + c.v_dim, c.kv_lora)
        yield f"blk.{i}.attn_k_b.weight", kv_b[:, : c.nope].transpose(1, 2)
        yield f"blk.{i}.attn_v_b.weight", kv_b[:, c.nope :]
        if i >= c.dense_layers:
            gate, up = state[prefix + "ffn.gate_up"].chunk(2, 1)
            yield f"blk.{i}.ffn_gate_exps.weight", gate
            yield f"blk.{i}.ffn_up_exps.weight", up
            yield f"blk.{i}.ffn_down_exps.weight", state[prefix + "ffn.down"]


def load(path):
    """The model that a GGUF file of ours describes, its weights dequantised, and its top-k as written there."""
    reader = gguf.GGUFReader(path)
    found = {t.name: torch.from_numpy(np.array(quants.dequantize(t.data, t.tensor_type), np.float32)) for t in reader.tensors}
    c = Config()
    names, blocks = renamed(c)
    state = {here: found[there] for here, there in names}
    for prefix, i in blocks:
        k_b, v_b = found[f"blk.{i}.attn_k_b.weight"], found[f"blk.{i}.attn_v_b.weight"]
        state[prefix + "attn.kv_b.weight"] = torch.cat([k_b.transpose(1, 2), v_b], 1).reshape(-1, c.kv_lora)
        if i >= c.dense_layers:
            state[prefix + "ffn.gate_up"] = torch.cat([found[f"blk.{i}.ffn_{n}_exps.weight"] for n in ("gate", "up")], 1)
            state[prefix + "ffn.down"] = found[f"blk.{i}.ffn_down_exps.weight"]
    model = Model(c)
    model.load_state_dict(state)
    return model.eval()


def write_metadata(w, c, tok, description, file_type):
    w.add_type("model")
    w.add_name(NAME)
    w.add_description(description)
    w.add_license("MIT OR Apache-2.0")
    w.add_languages(["en"])
    w.add_tags(["text-generation"])
    w.add_quantization_version(2)
    w.add_file_type(file_type)  # 0: all F32, 7: mostly Q8_0
    sizes = {
        "block_count": c.layers + 1,
        "nextn_predict_layers": 1,
        "vocab_size": c.vocab,
        "context_length": c.context,
        "embedding_length": c.hidden,
        "feed_forward_length": c.dense_ff,
        "leading_dense_block_count": c.dense_layers,
        "expert_count": c.experts,
        "expert_used_count": c.experts_used,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_shared_count": 1,
        "expert_feed_forward_length": c.expert_ff,
        "expert_gating_func": 2,  # sigmoid
        "rope.dimension_count": c.rope,
        "attention.head_count": c.heads,
        "attention.head_count_kv": 1,  # of the absorbed form, whose one key is the latent and the rotary part
        "attention.key_length": c.kv_lora + c.rope,
        "attention.value_length": c.kv_lora,
        "attention.key_length_mla": c.nope + c.rope,
        "attention.value_length_mla": c.v_dim,
        "attention.q_lora_rank": c.q_lora,
        "attention.kv_lora_rank": c.kv_lora,
        "attention.indexer.head_count": c.index_heads,
        "attention.indexer.key_length": c.index_dim,
        "attention.indexer.top_k": c.top_k,
    }
    for key, value in sizes.items():
        w.add_uint32(f"glm-dsa.{key}", value)
    w.add_float32("glm-dsa.attention.layer_norm_rms_epsilon", c.eps)
    w.add_float32("glm-dsa.rope.freq_base", c.theta)
    w.add_float32("glm-dsa.expert_weights_scale", c.routed_scale)
    w.add_bool("glm-dsa.expert_weights_norm", True)
    w.add_array("glm-dsa.attention.indexer.types", [bool(f) for f in c.full])

    ids = sorted(tok["model"]["vocab"].items(), key=lambda pair: pair[1])
    names = [name for name, _ in ids] + [t["content"] for t in tok["added_tokens"]]
    assert len(names) == c.vocab and names[tok["added_tokens"][0]["id"]] == data.CONTROL[0]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(names)
    w.add_token_types([gguf.TokenType.NORMAL] * len(ids) + [gguf.TokenType.CONTROL] * len(tok["added_tokens"]))
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tok["model"]["merges"]])
    w.add_eos_token_id(names.index(data.END))
    w.add_eot_token_id(names.index(data.TURN))
    w.add_pad_token_id(names.index(data.END))
    w.add_add_bos_token(False)
    w.add_chat_template(data.CHAT_TEMPLATE)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("checkpoint", type=pathlib.Path)
    ap.add_argument("tokenizer", type=pathlib.Path)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--f32", action="store_true", help="round nothing: to compare with other implementations")
    a = ap.parse_args()
    c = Config()
    checkpoint = torch.load(a.checkpoint)
    w = gguf.GGUFWriter(a.out, "glm-dsa")
    description = (
        "A very small GLM-DSA model (MLA, lightning indexer with shared top-k lists, experts, one MTP block), trained from nothing on the "
        f"King James Bible: {checkpoint['tokens'] / 1e6:.1f} million tokens. It shows and tests every path of the architecture."
    )
    write_metadata(w, c, json.loads(a.tokenizer.read_text()), description, 0 if a.f32 else 7)
    for name, tensor in sorted(tensors(c, checkpoint["model"]), key=lambda pair: block_of(pair[0])):
        values = tensor.float().contiguous().numpy()
        if a.f32 or values.ndim < 2 or any(s in name for s in F32_ROWS):
            w.add_tensor(name, values)
        else:
            w.add_tensor(name, quants.quantize(values, Q.Q8_0), raw_dtype=Q.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"wrote {a.out}: {a.out.stat().st_size} bytes")


def block_of(name):
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


if __name__ == "__main__":
    main()
