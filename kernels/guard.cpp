// Guarded calls: see skippy_kernels.h.

#include "skippy_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

namespace {

void put_error(char * err, size_t err_len, const char * text) {
    if (err == nullptr || err_len == 0) {
        return;
    }
    const size_t n = std::min(std::strlen(text), err_len - 1);
    std::memcpy(err, text, n);
    err[n] = '\0';
}

template <typename F>
int32_t guarded(char * err, size_t err_len, F && call) {
    put_error(err, err_len, "");
    try {
        return call();
    } catch (const std::exception & e) {
        put_error(err, err_len, e.what());
    } catch (...) {
        put_error(err, err_len, "an exception of unknown type");
    }
    return SKIPPY_EXCEPTION;
}

} // namespace

int32_t skippy_decode(llama_context * ctx, const llama_batch * batch, char * err, size_t err_len) {
    return guarded(err, err_len, [&] { return llama_decode(ctx, *batch); });
}

int32_t skippy_graph_compute(ggml_backend_t backend, ggml_cgraph * graph, char * err, size_t err_len) {
    return guarded(err, err_len, [&] { return (int32_t) ggml_backend_graph_compute(backend, graph); });
}

int32_t skippy_tokenize(
        const llama_vocab * vocab,
        const char * text,
        int32_t text_len,
        llama_token * tokens,
        int32_t n_tokens_max,
        bool add_special,
        bool parse_special,
        char * err,
        size_t err_len) {
    return guarded(err, err_len, [&] {
        return llama_tokenize(vocab, text, text_len, tokens, n_tokens_max, add_special, parse_special);
    });
}

int32_t skippy_token_to_piece(
        const llama_vocab * vocab,
        llama_token token,
        char * piece,
        int32_t piece_len,
        bool special,
        char * err,
        size_t err_len) {
    return guarded(err, err_len, [&] { return llama_token_to_piece(vocab, token, piece, piece_len, 0, special); });
}

int32_t skippy_sample(
        llama_sampler * cuts,
        llama_sampler * draw,
        const float * logits,
        int32_t n_vocab,
        llama_token_data * scratch,
        char * err,
        size_t err_len) {
    return guarded(err, err_len, [&]() -> int32_t {
        size_t n = 0;
        for (int32_t id = 0; id < n_vocab; ++id) {
            // A token without any probability is none: samplers that take logarithms would make NaN of it.
            if (logits[id] != -INFINITY) {
                scratch[n++] = { id, logits[id], 0.0f };
            }
        }
        if (n == 0) {
            return -1;
        }
        llama_token_data_array candidates = { scratch, n, -1, false };
        llama_sampler_apply(cuts, &candidates);
        llama_sampler_apply(draw, &candidates);
        if (candidates.selected < 0 || (size_t) candidates.selected >= candidates.size) {
            return -1;
        }
        return candidates.data[candidates.selected].id;
    });
}
