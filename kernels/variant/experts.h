// What the experts of few and of many rows share.

#ifndef SKIPPY_EXPERTS_H
#define SKIPPY_EXPERTS_H

#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

// Calls `use(expert, places, count)` for each of the E experts that `ids` [n] names, in their order, with the places that name it.
template <typename Use> void for_each_expert(const int32_t * ids, int64_t n, int64_t E, Use use) {
    struct Ends;
    struct Places;
    int32_t * ends   = scratch<Ends, int32_t>(E);
    int32_t * places = scratch<Places, int32_t>(n);
    fill(ends, E, 0);
    for (int64_t i = 0; i < n; ++i) {
        ++ends[ids[i]];
    }
    int32_t before = 0;
    for (int64_t e = 0; e < E; ++e) {
        const int32_t count = ends[e];
        ends[e]             = before;
        before += count;
    }
    // Each start moves on to the start of the next expert.
    for (int64_t i = 0; i < n; ++i) {
        places[ends[ids[i]]++] = (int32_t) i;
    }
    for (int64_t e = 0, first = 0; e < E; first = ends[e++]) {
        if (ends[e] > first) {
            use((int32_t) e, places + first, ends[e] - first);
        }
    }
}

// The weights of the chosen experts of one row: sigmoid(logit), divided by their sum, or by `lowest` if that is larger, unless
// `lowest` is 0; and scaled.
inline void expert_weights(
        const float * logits, const int32_t * chosen, int64_t used, float scale, float lowest, float * weights) {
    float sum = 0.0f;
    for (int64_t i = 0; i < used; ++i) {
        weights[i] = sigmoid(logits[chosen[i]]);
        sum += weights[i];
    }
    const float divisor = lowest > 0.0f ? (sum < lowest ? lowest : sum) : 1.0f;
    for (int64_t i = 0; i < used; ++i) {
        weights[i] = weights[i] / divisor * scale;
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
