// The C face of skippy-stage's own C++ code. bindgen reads this header; src/kernels.rs, src/ggml/ and src/llama/ call it.
//
// Three things live here because Rust cannot do them over the plain C API:
//   * guarded calls: an exception that llama.cpp throws must never unwind into Rust, so each call that may throw is
//     wrapped, and its text comes back in a buffer;
//   * ggml's CPU part, which may be a library that is chosen when the program runs (cpu.h);
//   * a read-only FILE over memory segments, which lets llama.cpp read a GGUF that exists only as a header in memory
//     and mapped fragments behind it.

#ifndef SKIPPY_KERNELS_H
#define SKIPPY_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cpu.h"

#include "llama.h"

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Constants of the linked llama.cpp that are macros there, where bindgen of other crates does not see them.
enum skippy_limits {
    SKIPPY_MAX_THREADS = GGML_MAX_N_THREADS,
};

// The seed that llama.cpp reads as "pick one at random".
enum skippy_seeds {
    SKIPPY_RANDOM_SEED = LLAMA_DEFAULT_SEED,
};

// ---- guarded calls ----------------------------------------------------------------------------------------------

// What a guarded call returns when an exception was caught; its text is in the error buffer (always terminated).
#define SKIPPY_EXCEPTION INT32_MIN

// llama_decode. Returns its status, or SKIPPY_EXCEPTION.
int32_t skippy_decode(struct llama_context * ctx, const struct llama_batch * batch, char * err, size_t err_len);

// llama_tokenize. Returns the token count, or minus the count needed, or SKIPPY_EXCEPTION.
int32_t skippy_tokenize(
        const struct llama_vocab * vocab,
        const char * text,
        int32_t text_len,
        llama_token * tokens,
        int32_t n_tokens_max,
        bool add_special,
        bool parse_special,
        char * err,
        size_t err_len);

// llama_token_to_piece. Returns the byte count, or minus the count needed, or SKIPPY_EXCEPTION.
int32_t skippy_token_to_piece(
        const struct llama_vocab * vocab,
        llama_token token,
        char * piece,
        int32_t piece_len,
        bool special,
        char * err,
        size_t err_len);

// Fills scratch, which has room for n_vocab, from the logits of the row that are not minus infinity, and applies both
// sampler chains to it. The second must end in a sampler that selects. Returns the chosen token id, -1 when it selected
// none or there was none to select from, or SKIPPY_EXCEPTION.
int32_t skippy_sample(
        struct llama_sampler * cuts,
        struct llama_sampler * draw,
        const float * logits,
        int32_t n_vocab,
        struct llama_token_data * scratch,
        char * err,
        size_t err_len);

// ---- a FILE over memory -----------------------------------------------------------------------------------------

struct skippy_segment {
    const void * data;
    size_t len;
};

// Opens the concatenation of the segments for reading. The table is copied; the bytes are not, and must outlive the
// FILE. Close with fclose. NULL with errno set on failure, or when the platform has neither fopencookie nor funopen.
FILE * skippy_segments_open(const struct skippy_segment * segments, size_t n_segments);

// ---- variants for instruction sets -----------------------------------------------------------------------------------

enum skippy_isas {
    SKIPPY_ISA_PORTABLE = 0,
    SKIPPY_ISA_AVX2     = 1,   // with FMA and F16C
    SKIPPY_ISA_AVX512   = 2,   // F, BW, DQ and VL
    SKIPPY_ISA_NEON     = 3,
};

// The one that the operations below use: the best that the CPU has, until skippy_isa_use is called.
int32_t skippy_isa(void);

// Whether this build has the variant and the CPU what it needs.
bool skippy_isa_available(int32_t isa);

// Uses another one from now on; false if it is not available. Not while a graph is computed.
bool skippy_isa_use(int32_t isa);

// Multiply-adds of f32 per second that the calling thread reaches in registers, by the variant in use.
double skippy_fma_rate(void);

// ---- operations of a ggml graph -----------------------------------------------------------------------------------
//
// Bodies for ggml_custom_4d, CPU only. Each reads shapes from dst and its sources, which the caller has checked, and
// divides the work by thread number. Results do not depend on the number of threads or on how many tokens T a call
// holds. A "cache" is a 2-D tensor of rows of f32, f16 or Q8_0.

// ggml_backend_graph_compute with exceptions caught. Returns the status or SKIPPY_EXCEPTION.
int32_t skippy_graph_compute(ggml_backend_t backend, struct ggml_cgraph * graph, char * err, size_t err_len);

// dst f32 [M, n, B] = weight [K, M, B] x rows f32 [K, n, B]. A column has the same bits whatever columns stand beside it: for
// most types those of ggml's product with it alone. The weight is read once for all of a few columns.
// src: weight (any type with a dot product), rows (elements of a row contiguous). userdata: unused.
void skippy_op_matmul_rows(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// The experts of each row: dst i32 [used, n], ascending, those of the largest sigmoid(logit) + bias, ties to the lowest.
// src: logits f32 [E, n], and optionally bias f32 [E].
void skippy_op_route(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// First half of the experts of few rows: dst f32 [used * F + S, n] = silu(gate x) * (up x) for each expert that `ids` names,
// then for the shared expert. A row has the same bits whatever rows stand beside it.
// src: x f32 [K, n], ids i32 [used, n] below E, gate and up [K, F, E], optionally shared gate and up [K, S].
void skippy_op_experts_inner(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// Gate and up of one expert for any number of rows: dst f32 [S, n] = silu(gate x) * (up x), a few rows at a time. A row has the
// same bits whatever rows stand beside it.
// src: x f32 [K, n] (elements of a row contiguous), gate and up [K, S].
void skippy_op_glu(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// Second half: dst f32 [N, n] = sum of weight * (down inner) in the order of the ids, + shared down, + residual. Weights are
// sigmoid(logit), divided by their sum, or by `least` if that is larger, and scaled.
// src: inner f32 [used * F + S, n], ids i32 [used, n], logits f32 [E, n], residual f32 [N, n], down [F, N, E], optionally
// shared down [S, N]. All f32 ones contiguous. userdata: const float [2]: scale, and `least`, 0 for weights that are not
// divided.
void skippy_op_experts_outer(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// Products with many rows: the rows are packed once for all threads, and for all types that have such products. Where
// skippy_packed_bytes is 0 there are none of that type (in this variant), and none of these may be called.

// Bytes of a packed row of K elements for matrices of this type: the same for all types that have any.
int64_t skippy_packed_bytes(int32_t type, int64_t K);

// dst i8 [packed bytes, n]. src: rows f32 [K, n] (elements of a row contiguous).
void skippy_op_pack(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// dst f32 [M, n] = weight [K, M] x packed rows. src: weight, packed i8 [bytes, n].
void skippy_op_matmul_packed(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// skippy_op_experts_inner with src 0 packed, i8 [bytes, n], and dst as well: i8 [bytes of used * F + S elements, n].
void skippy_op_experts_inner_packed(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// skippy_op_experts_outer with src 0 packed: dst of skippy_op_experts_inner_packed.
void skippy_op_experts_outer_packed(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// The indexer: the positions of the k largest scores of the first `visible[t]` keys, where the score of a key is the sum over
// heads h of weight[h,t] * relu(query[:,h,t] . key[:,j]). dst i32 [k, T], ascending, ties to the lowest position; all visible
// positions, then -1, when there are no more than k. No more than a small multiple of k scores of a token exist at a time.
// src: query f32 [D, H, T], cache of keys [D, n_kv], weights f32 [H, T], visible i32 [T], all contiguous but for the cache's
// row stride.
void skippy_op_index_select(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// The same in two operations, for few tokens and many threads: the keys are cut into S parts. dst i32 [2 k + 2, S, T]: how many
// keys the token sees, how many candidates the part has, their scores as integers of the same order, their positions.
void skippy_op_index_candidates(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// dst i32 [k, T] as skippy_op_index_select makes it. src: candidates.
void skippy_op_index_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// dst f16 [n_kv, T]: 0 where the list of a row names the position, -inf elsewhere. src: list i32 [k, T].
void skippy_op_list_mask(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// Attention on listed rows where they lie: dst f32 [V, H, T], online softmax of scale * query . row over the rows that
// the list names, values being the first V elements of a row.
// src: query f32 [W, H, T] contiguous, cache [W, n_kv], list i32 [k, T], entries of -1 ignored. userdata: const float * scale.
void skippy_op_attend_listed(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#ifdef __cplusplus
}
#endif

#endif
