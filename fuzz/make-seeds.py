#!/usr/bin/env python3
"""Writes the seed corpus: small files, sound ones (`ok-*`) and one for each kind of fault. Standard library only."""
import hashlib
import json
import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent / "seeds"
U8, U32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 4, 6, 7, 8, 9, 10, 12


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def string(text):
    data = text.encode()
    return u64(len(data)) + data


def key(name, kind, value):
    return string(name) + u32(kind) + value


def array(name, kind, items):
    return key(name, ARRAY, u32(kind) + u64(len(items)) + b"".join(items))


def tensor(name, shape, kind, offset):
    return string(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def gguf(keys, tensors, data_len, version=3, counts=None, alignment=32):
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys) + b"".join(keys + tensors)
    return head + bytes(-len(head) % alignment) + bytes(i % 251 for i in range(data_len))


ARCH = key("general.architecture", STRING, string("llama"))
MODEL = [
    ARCH,
    key("llama.block_count", U32, u32(2)),
    key("llama.rope.freq_base", F32, struct.pack("<f", 1e4)),
    key("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
    array("tokenizer.ggml.tokens", STRING, [string("<s>"), string("a"), string("ü")]),
    array("tokenizer.ggml.scores", F32, [struct.pack("<f", -i) for i in range(3)]),
]
TENSORS = [tensor("token_embd.weight", [8, 3], 0, 0), tensor("blk.0.attn_q.weight", [32, 2], 8, 96)]

GGUF_SEEDS = {
    "ok-model": gguf(MODEL, TENSORS, 96 + 68),
    "ok-version-2": gguf(MODEL, TENSORS, 192, version=2),
    "ok-metadata-alone": gguf(MODEL, [], 0),
    "ok-shard": gguf([key("split.no", 2, b"\1\0"), key("split.count", 2, b"\2\0")], TENSORS[:1], 96),
    "ok-aligned-64": gguf([key("general.alignment", U32, u32(64))], [tensor("a", [1, 1, 1, 1], 24, 0)], 1, alignment=64),
    "ok-wide-types": gguf([key("a", U64, u64(2**64 - 1)), key("b", F64, b"\xff" * 8), key("c", U8, b"\7")], [], 0),
    "ok-tensors-of-blocks": gguf([], [tensor("k", [256, 2], 12, 0), tensor("m", [32, 1, 2], 39, 288)], 288 + 34),
    "alignment-zero": gguf([key("general.alignment", U32, u32(0))], [], 0),
    "alignment-u64": gguf([key("general.alignment", U64, u64(32))], [], 0),
    "kv-count-2-pow-60": gguf([ARCH], [], 0, counts=(0, 2**60)),
    "tensor-count-2-pow-60": gguf([ARCH], TENSORS, 64, counts=(2**60, 1)),
    "array-of-unknown-type": gguf([key("a", ARRAY, u32(77) + u64(5))], [], 0),
    "array-of-arrays": gguf([key("a", ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(0))], [], 0),
    "array-too-long": gguf([key("a", ARRAY, u32(U64) + u64(2**61))], [], 0),
    "string-past-the-end": gguf([key("a", STRING, u64(2**40))], [], 0),
    "duplicate-key": gguf([ARCH, ARCH], [], 0),
    "duplicate-tensor": gguf([], [tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)], 64),
    "five-dimensions": gguf([], [tensor("a", [1] * 5, 0, 0)], 4),
    "shape-overflow": gguf([], [tensor("a", [2**32, 2**32], 0, 0)], 4),
    "control-character-in-tensor-name": gguf([], [tensor("\1a", [0], 0, 0)], 4),
    "offset-overflow": gguf([], [tensor("a", [8], 0, 2**64 - 32)], 32),
    "tensors-overlap": gguf([], [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], 96),
    "tensor-past-the-end": gguf([], [tensor("a", [8], 0, 0)], 31),
    "version-1": gguf([], [], 0, version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "html": b"<!DOCTYPE html><title>404</title>",
}

SHA = hashlib.sha256(b"test").hexdigest()


def artifact(path, n_tensors, **more):
    n_bytes = 100 * n_tensors
    counts = {"tensor_count": n_tensors, "tensor_bytes": n_bytes, "artifact_bytes": n_bytes + 123}
    return {**more, "path": path, **counts, "sha256": SHA}


def manifest(**changes):
    layers = [artifact(f"layers/layer-{i:05}.gguf", 9, layer_index=i) for i in range(2)]
    whole = {
        "schema_version": 1,
        "model_id": "Qwen/Qwen3-GGUF:Q4_K_M",
        "source_model": {"path": "/cache/model.gguf", "sha256": SHA},
        "format": "layer-package",
        "layer_count": len(layers),
        "shared": {
            "metadata": artifact("shared/metadata.gguf", 0),
            "embeddings": artifact("shared/embeddings.gguf", 1),
            "output": artifact("shared/output.gguf", 2),
        },
        "layers": layers,
        "skippy_abi_version": "1.2.3",
        **changes,
    }
    return json.dumps({name: value for name, value in whole.items() if value is not None}, indent=1).encode()


SOURCE = {
    "path": "/cache/model.gguf",
    "sha256": SHA,
    "repo": "Qwen/Qwen3-GGUF",
    "revision": "0123abc",
    "primary_file": "model.gguf",
    "canonical_ref": "Qwen/Qwen3-GGUF:Q4_K_M",
    "distribution_id": "Q4_K_M",
    "files": [{"path": "model.gguf", "size_bytes": 123, "sha256": SHA}],
}
WINDOW = {"default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1, "pipeline_depth": 1}
MTP = {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [1], "window_policy": WINDOW}
GENERATION = {
    "policy": {
        "profile": "glm-dsa-v1",
        "decode": "compact-flash",
        "short_prefill": "dense",
        "long_prefill": "sparse-chunked",
        "verify": "auto",
        "indexshare": "required",
        "experimental": {"selected_row_flash": "evidence-gated"},
    },
    "thresholds": {"short_prefill_max_tokens": 2048, "compact_flash_min_kv": 1, "dense_mask_max_bytes": 1 << 28},
    "speculative_decoding": {"default": "mtp", "strategies": {"mtp": MTP}},
}
LAYER = artifact("layers/layer-00000.gguf", 9, layer_index=0)

MANIFEST_SEEDS = {
    "ok-smallest": manifest(),
    "ok-everything": manifest(
        source_model=SOURCE,
        activation_width=64,
        generation=GENERATION,
        projectors=[artifact("projectors/mmproj-model-f16.gguf", 128, kind="mmproj")],
        created_at_unix_secs=1_790_000_000,
    ),
    "ok-unknown-field": manifest(later={"a": [1, 2.5, None, "x"]}),
    "schema-version-2": manifest(schema_version=2),
    "other-format": manifest(format="gguf"),
    "no-model-id": manifest(model_id=None),
    "no-layers": manifest(layer_count=0, layers=[]),
    "layer-twice": manifest(layers=[LAYER, LAYER]),
    "path-leaves-the-root": manifest(layer_count=1, layers=[{**LAYER, "path": "../../etc/passwd"}]),
    "path-is-absolute": manifest(layer_count=1, layers=[{**LAYER, "path": "/etc/passwd"}]),
    "path-with-drive": manifest(layer_count=1, layers=[{**LAYER, "path": "C:\\model.gguf"}]),
    "control-character": manifest(model_id="\1\n", skippy_abi_version="\x1b[31m"),
    "control-character-in-key": b'{"s\\u0000hared": {"metadata" 1}}',
    "counts-wrong": manifest(layer_count=2**32, activation_width=-1, created_at_unix_secs=1e300),
    "short-digest": manifest(source_model={"path": "m", "sha256": "abc"}),
    "abi-too-new": manifest(skippy_abi_version="2.0.0"),
    "cut": manifest()[:200],
    "duplicate-field": b'{"schema_version": 1, "schema_version": 2}',
    "deep": b"[" * 200,
    "not-utf-8": b'{"model_id": "\xff"}',
    "html": b"<!DOCTYPE html><title>404</title>",
}

# The first byte says what the rest is: a grammar, the body of `root`, a schema, a regular expression.
GRAMMAR_SEEDS = {
    "gbnf-json": b'\x00root ::= object\n'
    b'object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws\n'
    b'value ::= object | string | [0-9]+ | "true"\n'
    b'string ::= "\\"" [^"\\\\\\x00-\\x1f]* "\\""\n'
    b'ws ::= | " " | "\\n" [ \\t]{0,20}\n',
    "gbnf-recursive": b'\x00root ::= "(" root ")" | [a-z]{1,8} | . # comment\n',
    "gbnf-body": b'\x01("a" | [^b-d]){2,3} one\none ::= root? "\\u00e4"+\n',
    "lark": b'\x00start: "call " args\nargs: %json {"type": "object"}\n',
    "lark-terminal": b'\x00start: a+ B~2..3\na: /[a-z]/ | B\nB: "x"i & ~/y/\n%ignore /[ ]+/\n',
    "schema-object": b'\x02{"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, '
    b'"b": {"enum": [1, null, "x"]}}, "required": ["a"], "additionalProperties": false}',
    "schema-ref": b'\x02{"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}}',
    "schema-all": b'\x02{"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40, "multipleOf": 3}]}',
    "schema-any": b'\x02{"anyOf": [{"type": "string", "pattern": "^a+$", "format": "email"}, {"type": ["null", "boolean"]}], '
    b'"oneOf": [{"const": 1}, {"const": "a"}]}',
    "regex": b"\x03(ab|c)+[0-9]{1,3}\\w?",
}



def varint(n):
    low, n = n & 0x7F, n >> 7
    return bytes([low | 0x80]) + varint(n) if n else bytes([low])


def message(*fields):
    """Fields of a protobuf message: (number, integer, bytes, text or a float in a list)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, list):
            out += varint(number << 3 | 5) + struct.pack("<f", *value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def step(rows, tokens, hidden, *more):
    return message((3, message((1, 7), (2, bytes(tokens)), *((3, row) for row in rows), (5, hidden), *more)))


# The first byte says which way, and how hidden rows travel. Limits are those of the target: 2 wide, 4 rows, 3 sequences of
# 8 rows, 100 tokens.
ROWS = [message((1, 2), (2, 3), (3, 2), (4, b"\2")), message((2, 7), (3, 1), (4, b"\1"))]
TOKENS, HIDDEN = [0, 7, 99], floats(0, -0.0, 1.5, -2, 0.25, 3e38)
SPANS = [(4, message((1, 2), (4, 1), (6, 1))), (4, message((2, 5), (5, 5)))]
TOP_K = (6, message((1, 2), (2, struct.pack("<6i", 0, 3, 1, 4, 7, -1))))
SAMPLING = message(
    *((n, [1.0]) for n in (1, 2, 5, 7, 13)), (3, 40), (6, 2**64 - 1), (10, b"\5"), (11, floats(-1)), (15, 1), (16, "\n")
)
HELLO = [(1, 1), (2, SHA), (3, "org/model"), (4, 40), (5, 20), (6, 2), (7, 8), (8, 3), (9, 4), (10, "f16"), (11, "f16")]
INFO = [(1, 1), (2, "two"), (4, 20), (5, 40), (6, 40), (7, "dsa"), (11, 8), (12, 3), (13, 4), (14, 2), (15, 100), (23, SHA)]
PICKED = message((1, 3), (2, [-0.5]), (3, bytes([3, 99])), (4, floats(-0.5, -7)))

FRAME_SEEDS = {
    "ok-hello": b"\0" + message((1, message(*HELLO, (12, 2), (13, "abi"), (14, "0.1.0"), (15, 1), (16, "one")))),
    "ok-open": b"\0" + message((2, message((1, 2), (2, bytes([1, 99])), (3, 1), (4, SAMPLING), (7, 5), (8, 6), (9, 8)))),
    "ok-open-schema": b"\0" + message((2, message((4, SAMPLING), (5, message((2, '{"type": "object"}')))))),
    "ok-step": b"\0" + step(ROWS, TOKENS, HIDDEN, *SPANS),
    "ok-step-top-k": b"\0" + step(ROWS, TOKENS, HIDDEN, TOP_K),
    "ok-step-f16": b"\2" + step(ROWS, TOKENS, struct.pack("<6e", 0, 1, -2, 65504, 6e-8, 0.1)),
    "ok-truncate": b"\0" + message((4, message((1, 2), (2, 8)))),
    "ok-copy": b"\0" + message((5, message((2, 1), (3, 4)))),
    "ok-ping": b"\0" + message((6, 2**63)),
    "ok-welcome": b"\1" + message((1, message((1, message(*INFO))))),
    "ok-done": b"\1" + message((2, message((1, 7), (2, message((1, 2), (2, PICKED), (3, PICKED), (4, 5))), (3, b"\1\2")))),
    "ok-done-fault": b"\1" + message((2, message((2, message((5, 1), (6, "no")))))),
    "ok-fault": b"\1" + message((3, message((1, 2), (2, 5), (3, "going down")))),
    "ok-pong": b"\1" + message((4, 1)),
    "rows-twice": b"\0" + step([ROWS[0], ROWS[0]], [1] * 4, floats(*[0] * 8)),
    "rows-beyond-the-context": b"\0" + step([message((2, 2**32 - 1), (3, 1))], [1], floats(0, 0)),
    "rows-2-pow-32": b"\0" + step([message((3, 2**32 - 1))], [1], floats(0, 0)),
    "hidden-short": b"\0" + step(ROWS, TOKENS, HIDDEN[:-1]),
    "hidden-nan": b"\0" + step(ROWS, TOKENS, floats(0, 1, 2, 3, 4, float("nan"))),
    "hidden-2-gib": b"\0\x1a\x80\x80\x80\x80\x08",
    "top-k-invisible": b"\0" + step(ROWS, TOKENS, HIDDEN, (6, message((1, 2), (2, struct.pack("<6i", 0, 4, 0, 1, 0, 1))))),
    "fault-of-no-kind": b"\1" + message((3, message((2, 99)))),
    "empty": b"\0",
}

for target, seeds in {"frames": FRAME_SEEDS, "gguf": GGUF_SEEDS, "grammar": GRAMMAR_SEEDS, "manifest": MANIFEST_SEEDS}.items():
    for name, content in seeds.items():
        path = SEEDS / target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
