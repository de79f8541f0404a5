// The lightning indexer, exact top-k selection, and attention on selected rows: see skippy_kernels.h.

#include "rows.h"
#include "skippy_kernels.h"

#include <cmath>
#include <limits>

using skippy::f32x8;
using skippy::load8;
using skippy::splat8;
using skippy::store8;

namespace {

// ---- indexer ------------------------------------------------------------------------------------------------------

constexpr int64_t TILE = 32;     // keys of a tile: four vectors of eight
constexpr int     VECS = TILE / 8;

struct KeyTile;
struct KeyRow;

// relu(query . key) * weight for one head, added to the scores of a tile. `keys` is transposed: [D][TILE].
inline void add_head(const float * query, float weight, const float * keys, int64_t D, f32x8 * score) {
    f32x8 dot[VECS] = {};
    for (int64_t d = 0; d < D; ++d) {
        const f32x8 q = splat8(query[d]);
        for (int v = 0; v < VECS; ++v) {
            dot[v] += q * load8(keys + d * TILE + 8 * v);
        }
    }
    for (int v = 0; v < VECS; ++v) {
        const f32x8 zero = {};
        score[v] += splat8(weight) * (dot[v] > zero ? dot[v] : zero);
    }
}

// The same for two heads at once: a key is loaded once for both.
inline void add_two_heads(
        const float * query, const float * other, float weight, float other_weight, const float * keys, int64_t D,
        f32x8 * score) {
    f32x8 dot[VECS] = {}, dot2[VECS] = {};
    for (int64_t d = 0; d < D; ++d) {
        const f32x8 q = splat8(query[d]), q2 = splat8(other[d]);
        for (int v = 0; v < VECS; ++v) {
            const f32x8 key = load8(keys + d * TILE + 8 * v);
            dot[v] += q * key;
            dot2[v] += q2 * key;
        }
    }
    for (int v = 0; v < VECS; ++v) {
        const f32x8 zero = {};
        score[v] += splat8(weight) * (dot[v] > zero ? dot[v] : zero);
        score[v] += splat8(other_weight) * (dot2[v] > zero ? dot2[v] : zero);
    }
}

// ---- selection ----------------------------------------------------------------------------------------------------

// Floats as integers of the same order; -0.0 and 0.0 are one value.
inline uint32_t ordered(float x) {
    uint32_t bits;
    x += 0.0f;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The k-th largest of n keys (1 <= k < n), and in `above` how many are larger than it. Radix search, 11 + 11 + 10 bits.
uint32_t kth_largest(const float * scores, int64_t n, int64_t k, int64_t * above) {
    static thread_local uint32_t counts[1 << 11];
    uint32_t prefix = 0;
    int64_t  left   = k;
    int      known  = 0;
    for (int bits : { 11, 11, 10 }) {
        const int shift = 32 - known - bits;
        std::fill(counts, counts + (1 << bits), 0u);
        for (int64_t i = 0; i < n; ++i) {
            const uint32_t key = ordered(scores[i]);
            if (known == 0 || key >> (32 - known) == prefix) {
                ++counts[(key >> shift) & ((1u << bits) - 1)];
            }
        }
        int64_t digit = (1 << bits) - 1;
        while (counts[digit] < left) {
            left -= counts[digit--];
        }
        prefix = prefix << bits | (uint32_t) digit;
        known += bits;
    }
    *above = k - left;
    return prefix;
}

// ---- attention ----------------------------------------------------------------------------------------------------

struct CacheTile;
struct HeadState;

float dot(const float * a, const float * b, int64_t n) {
    f32x8   sum[2] = {};
    int64_t i      = 0;
    for (; i + 16 <= n; i += 16) {
        sum[0] += load8(a + i) * load8(b + i);
        sum[1] += load8(a + i + 8) * load8(b + i + 8);
    }
    const f32x8 both = sum[0] + sum[1];
    float       total = 0.0f;
    for (int lane = 0; lane < 8; ++lane) {
        total += both[lane];
    }
    for (; i < n; ++i) {
        total += a[i] * b[i];
    }
    return total;
}

// acc = acc * keep + x * weight
void mix(float * acc, float keep, const float * x, float weight, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store8(acc + i, load8(acc + i) * splat8(keep) + load8(x + i) * splat8(weight));
    }
    for (; i < n; ++i) {
        acc[i] = acc[i] * keep + x[i] * weight;
    }
}

} // namespace

void skippy_op_index(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * query   = dst->src[0];
    const ggml_tensor * keys    = dst->src[1];
    const ggml_tensor * weights = dst->src[2];
    const int64_t       D = query->ne[0], H = query->ne[1], T = query->ne[2], n_kv = keys->ne[1];

    const skippy::RowReader reader(keys);
    float *                 tile = skippy::scratch<KeyTile>(D * TILE);
    float *                 row  = skippy::scratch<KeyRow>(D);
    const skippy::Share     share(n_kv, TILE, ith, nth);
    for (int64_t first = share.begin; first < share.end; first += TILE) {
        const int64_t count = std::min(TILE, n_kv - first);
        if (count < TILE) {
            std::fill(tile, tile + D * TILE, 0.0f);
        }
        for (int64_t j = 0; j < count; ++j) {
            const float * key = reader.row(first + j, row);
            for (int64_t d = 0; d < D; ++d) {
                tile[d * TILE + j] = key[d];
            }
        }
        for (int64_t t = 0; t < T; ++t) {
            const float * q = (const float *) query->data + t * H * D;
            const float * w = (const float *) weights->data + t * H;
            f32x8         score[VECS] = {};
            int64_t       h = 0;
            for (; h + 2 <= H; h += 2) {
                add_two_heads(q + h * D, q + (h + 1) * D, w[h], w[h + 1], tile, D, score);
            }
            for (; h < H; ++h) {
                add_head(q + h * D, w[h], tile, D, score);
            }
            float out[TILE];
            for (int v = 0; v < VECS; ++v) {
                store8(out + 8 * v, score[v]);
            }
            std::memcpy((float *) dst->data + t * n_kv + first, out, count * sizeof(float));
        }
    }
}

void skippy_op_select(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * scores  = dst->src[0];
    const ggml_tensor * visible = dst->src[1];
    const int64_t       k = dst->ne[0], T = dst->ne[1], n_kv = scores->ne[0];

    const skippy::Share share(T, 1, ith, nth);
    for (int64_t t = share.begin; t < share.end; ++t) {
        const float * row  = (const float *) scores->data + t * n_kv;
        int32_t *     list = (int32_t *) dst->data + t * k;
        const int64_t n    = std::clamp<int64_t>(((const int32_t *) visible->data)[t], 0, n_kv);
        if (n <= k) {
            for (int64_t i = 0; i < k; ++i) {
                list[i] = i < n ? (int32_t) i : -1;
            }
            continue;
        }
        int64_t        above = 0;
        const uint32_t limit = kth_largest(row, n, k, &above);
        int64_t        equal = k - above;
        int64_t        taken = 0;
        for (int64_t i = 0; i < n && taken < k; ++i) {
            const uint32_t key = ordered(row[i]);
            if (key > limit || (key == limit && equal-- > 0)) {
                list[taken++] = (int32_t) i;
            }
        }
    }
}

void skippy_op_list_mask(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * lists = dst->src[0];
    const int64_t       n_kv = dst->ne[0], T = dst->ne[1], k = lists->ne[0];
    const ggml_fp16_t   hidden = ggml_fp32_to_fp16(-std::numeric_limits<float>::infinity());
    const ggml_fp16_t   shown  = ggml_fp32_to_fp16(0.0f);

    const skippy::Share share(T, 1, ith, nth);
    for (int64_t t = share.begin; t < share.end; ++t) {
        ggml_fp16_t *   mask = (ggml_fp16_t *) dst->data + t * n_kv;
        const int32_t * list = (const int32_t *) lists->data + t * k;
        std::fill(mask, mask + n_kv, hidden);
        for (int64_t i = 0; i < k; ++i) {
            if (list[i] >= 0 && list[i] < n_kv) {
                mask[list[i]] = shown;
            }
        }
    }
}

void skippy_op_attend_listed(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const ggml_tensor * query = dst->src[0];
    const ggml_tensor * cache = dst->src[1];
    const ggml_tensor * lists = dst->src[2];
    const float         scale = *(const float *) userdata;
    const int64_t       W = query->ne[0], H = query->ne[1], T = query->ne[2], V = dst->ne[0];
    const int64_t       k = lists->ne[0], n_kv = cache->ne[1];
    constexpr int64_t   ROWS = 16;

    const skippy::RowReader reader(cache);
    float *                 tile  = skippy::scratch<CacheTile>(W * ROWS);
    float *                 state = skippy::scratch<HeadState>(H * 2);
    // Heads are divided, not tokens: one token alone must keep all threads busy.
    const skippy::Share share(H, 1, ith, nth);
    if (share.begin == share.end) {
        return;
    }
    for (int64_t t = 0; t < T; ++t) {
        const int32_t * list = (const int32_t *) lists->data + t * k;
        for (int64_t h = share.begin; h < share.end; ++h) {
            state[2 * h]     = -std::numeric_limits<float>::infinity();
            state[2 * h + 1] = 0.0f;
            std::fill_n((float *) dst->data + (t * H + h) * V, V, 0.0f);
        }
        const float * rows[ROWS];
        for (int64_t next = 0; next < k;) {
            int64_t count = 0;
            for (; next < k && count < ROWS; ++next) {
                if (list[next] >= 0 && list[next] < n_kv) {
                    rows[count] = reader.row(list[next], tile + count * W);
                    ++count;
                }
            }
            for (int64_t h = share.begin; h < share.end; ++h) {
                const float * q   = (const float *) query->data + (t * H + h) * W;
                float *       acc = (float *) dst->data + (t * H + h) * V;
                float &       max = state[2 * h];
                float &       sum = state[2 * h + 1];
                for (int64_t r = 0; r < count; ++r) {
                    const float s    = scale * dot(q, rows[r], W);
                    const float top  = std::max(max, s);
                    const float keep = std::exp(max - top);
                    const float p    = std::exp(s - top);
                    mix(acc, keep, rows[r], p, V);
                    sum = sum * keep + p;
                    max = top;
                }
            }
        }
        for (int64_t h = share.begin; h < share.end; ++h) {
            float *     acc = (float *) dst->data + (t * H + h) * V;
            const float inv = state[2 * h + 1] > 0.0f ? 1.0f / state[2 * h + 1] : 0.0f;
            for (int64_t i = 0; i < V; ++i) {
                acc[i] *= inv;
            }
        }
    }
}
