// The lightning indexer, exact top-k selection, and attention on selected rows: see skippy_kernels.h.

#include "rows.h"
#include "skippy_kernels.h"

#include <cmath>
#include <limits>

using skippy::exp8;
using skippy::f32x8;
using skippy::load8;
using skippy::ordered;
using skippy::splat8;
using skippy::store8;

namespace {

// ---- products with few columns ------------------------------------------------------------------------------------

constexpr int LANES = 4;    // vectors of eight columns at a time
constexpr int ROWS  = 3;    // rows at a time: 12 sums and 4 loaded columns fill 16 registers

// out[r][c] (+)= sum over d of rows[r][d] * columns[d][c], for `count` <= ROWS rows and VECS vectors of columns.
// Each sum has its own order, whatever the blocking.
template <int VECS, int COUNT>
inline void add_products(
        const float * const * rows, const float * columns, int64_t stride, int64_t D, float * out, int64_t out_stride,
        bool fresh) {
    f32x8 sum[COUNT][VECS];
    for (int r = 0; r < COUNT; ++r) {
        for (int v = 0; v < VECS; ++v) {
            sum[r][v] = fresh ? f32x8{} : load8(out + r * out_stride + 8 * v);
        }
    }
    for (int64_t d = 0; d < D; ++d) {
        f32x8 column[VECS];
        for (int v = 0; v < VECS; ++v) {
            column[v] = load8(columns + d * stride + 8 * v);
        }
        for (int r = 0; r < COUNT; ++r) {
            const f32x8 x = splat8(rows[r][d]);
            for (int v = 0; v < VECS; ++v) {
                sum[r][v] += x * column[v];
            }
        }
    }
    for (int r = 0; r < COUNT; ++r) {
        for (int v = 0; v < VECS; ++v) {
            store8(out + r * out_stride + 8 * v, sum[r][v]);
        }
    }
}

template <int VECS>
inline void add_products(
        const float * const * rows, int64_t n, const float * columns, int64_t stride, int64_t D, float * out,
        int64_t out_stride, bool fresh) {
    int64_t r = 0;
    for (; r + ROWS <= n; r += ROWS) {
        add_products<VECS, ROWS>(rows + r, columns, stride, D, out + r * out_stride, out_stride, fresh);
    }
    for (; r < n; ++r) {
        add_products<VECS, 1>(rows + r, columns, stride, D, out + r * out_stride, out_stride, fresh);
    }
}

// All columns: `width` is a multiple of 8.
void add_products(
        const float * const * rows, int64_t n, const float * columns, int64_t stride, int64_t D, int64_t width, float * out,
        int64_t out_stride, bool fresh) {
    int64_t c = 0;
    for (; c + 8 * LANES <= width; c += 8 * LANES) {
        add_products<LANES>(rows, n, columns + c, stride, D, out + c, out_stride, fresh);
    }
    for (; c < width; c += 8) {
        add_products<1>(rows, n, columns + c, stride, D, out + c, out_stride, fresh);
    }
}

int64_t padded8(int64_t n) {
    return (n + 7) / 8 * 8;
}

// [n][D] to [D][stride], columns behind n zero.
void transpose(const float * from, int64_t n, int64_t D, float * to, int64_t stride) {
    std::fill(to, to + D * stride, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = 0; d < D; ++d) {
            to[d * stride + i] = from[i * D + d];
        }
    }
}

struct Columns;
struct Tile;
struct Scores;
struct Sums;

// ---- selection ----------------------------------------------------------------------------------------------------

// The k-th largest of n keys (1 <= k < n), and in `above` how many are larger than it. Radix search by digits of 8 bits,
// or of 11 where the keys are more than their counters.
uint32_t kth_largest(const float * scores, int64_t n, int64_t k, int64_t * above) {
    static thread_local uint32_t counts[1 << 11];
    uint32_t prefix = 0;
    int64_t  left   = k;
    int      known  = 0;
    while (known < 32) {
        const int bits = std::min(n < (1 << 12) ? 8 : 11, 32 - known);
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

constexpr int64_t TILE_ROWS  = 48;    // selected rows of a tile: a multiple of ROWS
constexpr int64_t HEAD_BLOCK = 32;    // heads that share a gathered tile
constexpr int64_t DEPTH      = 192;   // elements of a row between partial sums: their columns stay in the first cache

} // namespace

void skippy_op_index(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * query   = dst->src[0];
    const ggml_tensor * keys    = dst->src[1];
    const ggml_tensor * weights = dst->src[2];
    const int64_t       D = query->ne[0], H = query->ne[1], T = query->ne[2], n_kv = keys->ne[1];
    const int64_t       width = padded8(H);
    constexpr int64_t   KEYS  = 48;

    const skippy::RowReader reader(keys);
    const skippy::Share     share(n_kv, KEYS, ith, nth);
    if (share.begin == share.end) {
        return;
    }
    // Heads are the columns: a key needs no transposition, and is read once for all tokens.
    float * columns = skippy::scratch<Columns>(T * (D + 1) * width);
    float * scales  = columns + T * D * width;
    for (int64_t t = 0; t < T; ++t) {
        transpose((const float *) query->data + t * H * D, H, D, columns + t * D * width, width);
        transpose((const float *) weights->data + t * H, H, 1, scales + t * width, width);
    }
    float * tile = skippy::scratch<Tile>(KEYS * D);
    float * dots = skippy::scratch<Scores>(KEYS * width);
    for (int64_t first = share.begin; first < share.end; first += KEYS) {
        const int64_t count = std::min(KEYS, n_kv - first);
        const float * rows[KEYS];
        for (int64_t j = 0; j < count; ++j) {
            rows[j] = reader.row(first + j, tile + j * D);
        }
        for (int64_t t = 0; t < T; ++t) {
            add_products(rows, count, columns + t * D * width, width, D, width, dots, width, true);
            float *       out   = (float *) dst->data + t * n_kv + first;
            const float * scale = scales + t * width;
            for (int64_t j = 0; j < count; ++j) {
                f32x8       sum  = {};
                const f32x8 zero = {};
                for (int64_t h = 0; h < width; h += 8) {
                    const f32x8 dot = load8(dots + j * width + h);
                    sum += load8(scale + h) * (dot > zero ? dot : zero);
                }
                out[j] = skippy::sum8(sum);
            }
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
    const int64_t       blocks = (H + HEAD_BLOCK - 1) / HEAD_BLOCK, v_width = V / 8 * 8;

    const skippy::RowReader reader(cache);
    float * columns = skippy::scratch<Columns>(W * HEAD_BLOCK);
    float * tile    = skippy::scratch<Tile>(TILE_ROWS * W);
    float * scores  = skippy::scratch<Scores>(TILE_ROWS * HEAD_BLOCK);
    float * turned  = skippy::scratch<Sums>(TILE_ROWS * HEAD_BLOCK);
    // A token's heads come in blocks, so that one token alone keeps several threads busy.
    const skippy::Share share(T * blocks, 1, ith, nth);
    for (int64_t unit = share.begin; unit < share.end; ++unit) {
        const int64_t   t = unit / blocks, h0 = unit % blocks * HEAD_BLOCK;
        const int64_t   heads = std::min(HEAD_BLOCK, H - h0), width = padded8(heads);
        const int32_t * list = (const int32_t *) lists->data + t * k;
        float *         out  = (float *) dst->data + (t * H + h0) * V;
        transpose((const float *) query->data + (t * H + h0) * W, heads, W, columns, width);
        float max[HEAD_BLOCK], sum[HEAD_BLOCK];
        std::fill(max, max + HEAD_BLOCK, -std::numeric_limits<float>::infinity());
        std::fill(sum, sum + HEAD_BLOCK, 0.0f);
        std::fill(out, out + heads * V, 0.0f);

        for (int64_t next = 0; next < k;) {
            const float * rows[TILE_ROWS];
            int64_t       count = 0;
            for (; next < k && count < TILE_ROWS; ++next) {
                if (list[next] >= 0 && list[next] < n_kv) {
                    reader.copy(list[next], tile + count * W);
                    rows[count] = tile + count * W;
                    ++count;
                }
            }
            if (count == 0) {
                break; // nothing (more) is named; without any row the values stay 0
            }
            for (int64_t d = 0; d < W; d += DEPTH) {
                const float * part[TILE_ROWS];
                for (int64_t r = 0; r < count; ++r) {
                    part[r] = rows[r] + d;
                }
                const int64_t depth = std::min(DEPTH, W - d);
                add_products(part, count, columns + d * width, width, depth, width, scores, width, d == 0);
            }
            // Online softmax: sums so far shrink when a larger score appears.
            for (int64_t h = 0; h < width; h += 8) {
                const f32x8 old = load8(max + h);
                f32x8       top = old;
                for (int64_t r = 0; r < count; ++r) {
                    const f32x8 s = load8(scores + r * width + h) * splat8(scale);
                    store8(scores + r * width + h, s);
                    top = s > top ? s : top;
                }
                const f32x8 keep = exp8(old - top);
                f32x8       all  = load8(sum + h) * keep;
                for (int64_t r = 0; r < count; ++r) {
                    const f32x8 p = exp8(load8(scores + r * width + h) - top);
                    all += p;
                    for (int64_t lane = 0; lane < 8; ++lane) {
                        turned[(h + lane) * TILE_ROWS + r] = p[lane];
                    }
                }
                store8(max + h, top);
                store8(sum + h, all);
                for (int64_t lane = 0; lane < 8 && h + lane < heads; ++lane) {
                    if (keep[lane] != 1.0f) {
                        float * values = out + (h + lane) * V;
                        for (int64_t i = 0; i < V; ++i) {
                            values[i] *= keep[lane];
                        }
                    }
                }
            }
            // out[h] += p[h][r] * row[r], heads being the rows of the product now.
            const float * weights[HEAD_BLOCK];
            for (int64_t h = 0; h < heads; ++h) {
                weights[h] = turned + h * TILE_ROWS;
            }
            add_products(weights, heads, tile, W, count, v_width, out, V, false);
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t i = v_width; i < V; ++i) {
                    for (int64_t r = 0; r < count; ++r) {
                        out[h * V + i] += weights[h][r] * tile[r * W + i];
                    }
                }
            }
        }
        for (int64_t h = 0; h < heads; ++h) {
            const float inverse = sum[h] > 0.0f ? 1.0f / sum[h] : 0.0f;
            for (int64_t i = 0; i < V; ++i) {
                out[h * V + i] *= inverse;
            }
        }
    }
}
