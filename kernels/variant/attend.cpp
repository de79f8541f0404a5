// Attention on selected rows, and the mask of a selection: see skippy_kernels.h.
//
// The heads of a token share keys and values (absorbed MLA), so both products of attention are products of matrices: rows of
// a tile with heads as columns, then heads with the tile as columns. Each row is gathered and converted once for a tile.

#include "ops.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

namespace {

constexpr int64_t TILE_ROWS   = 48;           // selected rows of a tile: a multiple of BLOCK_ROWS of every variant
constexpr int64_t MOST_HEADS  = 32;           // columns of a product
constexpr int64_t BLOCKS      = 4;            // products that share a gathered tile
constexpr int64_t LEAST_HEADS = WIDTH;
constexpr int64_t DEPTH       = 192;          // elements of a row between partial sums: their columns stay in the first cache

struct ColumnsTag;
struct TileTag;
struct ScoresTag;
struct WeightsTag;

// Heads that share tiles: fewer where some threads would have none. A head's values do not depend on who shares its tile.
int64_t heads_at_once(int64_t T, int64_t H, int nth) {
    int64_t heads = MOST_HEADS * BLOCKS;
    while (heads > LEAST_HEADS && T * ((H + heads - 1) / heads) < nth) {
        heads /= 2;
    }
    return heads;
}

// Softmax over tiles: sums so far shrink when a larger score appears.
struct Online {
    float max[MOST_HEADS];
    float sum[MOST_HEADS];

    Online() {
        fill(max, MOST_HEADS, -INFINITY);
        fill(sum, MOST_HEADS, 0.0f);
    }

    // Takes in scores [count][width], which become weights [width][TILE_ROWS]. `out` [heads][V] holds the values so far.
    void add(float * scores, int64_t count, int64_t width, float scale, float * weights, float * out, int64_t heads,
             int64_t V) {
        for (int64_t h = 0; h < width; h += WIDTH) {
            const vec old = load(max + h);
            vec       top = old;
            for (int64_t r = 0; r < count; ++r) {
                const vec s = load(scores + r * width + h) * scale;
                store(scores + r * width + h, s);
                top = greater(s, top);
            }
            const vec keep = exp_of(old - top);
            vec       all  = load(sum + h) * keep;
            for (int64_t r = 0; r < count; ++r) {
                const vec p = exp_of(load(scores + r * width + h) - top);
                all += p;
                for (int64_t lane = 0; lane < WIDTH; ++lane) {
                    weights[(h + lane) * TILE_ROWS + r] = p[lane];
                }
            }
            store(max + h, top);
            store(sum + h, all);
            for (int64_t lane = 0; lane < WIDTH && h + lane < heads; ++lane) {
                if (keep[lane] != 1.0f) {
                    float * values = out + (h + lane) * V;
                    for (int64_t i = 0; i < V; ++i) {
                        values[i] *= keep[lane];
                    }
                }
            }
        }
    }
};

struct Attend {
    const float *   query;    // [T][H][W]
    Rows            cache;
    const int32_t * lists;    // [T][k]
    float *         out;      // [T][H][V]
    int64_t         W, H, T, V, k;
    float           scale;

    Attend(const ggml_tensor * dst, float scale)
        : query((const float *) dst->src[0]->data), cache(dst->src[1]), lists((const int32_t *) dst->src[2]->data),
          out((float *) dst->data), W(dst->src[0]->ne[0]), H(dst->src[0]->ne[1]), T(dst->src[0]->ne[2]), V(dst->ne[0]),
          k(dst->src[2]->ne[0]), scale(scale) {}

    // Up to TILE_ROWS rows that the list names from `next` on; returns how many.
    int64_t gather(const int32_t * list, int64_t & next, float * tile) const {
        int64_t count = 0;
        for (; next < k && count < TILE_ROWS; ++next) {
            if (list[next] >= 0 && list[next] < cache.count) {
                cache.copy(list[next], tile + count * W);
                ++count;
            }
        }
        return count;
    }

    // Starts to fetch part `at` of `parts` of the rows that the next tile will hold. They lie apart, so no hardware foresees them.
    void fetch(const int32_t * list, int64_t next, int64_t at, int64_t parts) const {
        const int64_t rows = least(k - next, TILE_ROWS);
        for (int64_t i = rows * at / parts; i < rows * (at + 1) / parts; ++i) {
            if (list[next + i] >= 0 && list[next + i] < cache.count) {
                cache.fetch(list[next + i]);
            }
        }
    }

    // `all` heads from h0 on of token t.
    void heads(int64_t t, int64_t h0, int64_t all) const {
        const int64_t   whole = V / WIDTH * WIDTH;
        const int32_t * list  = lists + t * k;
        float *         to    = out + (t * H + h0) * V;
        float *         columns = scratch<ColumnsTag>(W * MOST_HEADS * BLOCKS);
        float *         tile    = scratch<TileTag>(TILE_ROWS * W);
        float *         scores  = scratch<ScoresTag>(TILE_ROWS * MOST_HEADS);
        float *         turned  = scratch<WeightsTag>(TILE_ROWS * MOST_HEADS);
        Online          softmax[BLOCKS];
        const float *   weights[MOST_HEADS];
        for (int64_t h = 0; h < MOST_HEADS; ++h) {
            weights[h] = turned + h * TILE_ROWS;
        }
        for (int64_t h = 0; h < all; h += MOST_HEADS) {
            const int64_t count = least(MOST_HEADS, all - h);
            transpose(query + (t * H + h0 + h) * W, count, W, columns + h * W, padded(count));
        }
        fill(to, all * V, 0.0f);
        // Without any row the values stay 0.
        for (int64_t next = 0, count; (count = gather(list, next, tile)) > 0;) {
            for (int64_t h = 0; h < all; h += MOST_HEADS) {
                fetch(list, next, h / MOST_HEADS, (all + MOST_HEADS - 1) / MOST_HEADS);
                const int64_t heads = least(MOST_HEADS, all - h), width = padded(heads);
                float *       values = to + h * V;
                for (int64_t d = 0; d < W; d += DEPTH) {
                    const float * rows[TILE_ROWS];
                    for (int64_t r = 0; r < count; ++r) {
                        rows[r] = tile + r * W + d;
                    }
                    const float * from = columns + h * W + d * width;
                    add_products(rows, count, from, width, least(DEPTH, W - d), width, scores, width, d == 0);
                }
                softmax[h / MOST_HEADS].add(scores, count, width, scale, turned, values, heads, V);
                // out[h] += weight[h][r] * row[r], heads being the rows of the product now.
                add_products(weights, heads, tile, W, count, whole, values, V, false);
                for (int64_t i = whole; i < V; ++i) {
                    for (int64_t r = 0; r < count; ++r) {
                        for (int64_t one = 0; one < heads; ++one) {
                            values[one * V + i] += weights[one][r] * tile[r * W + i];
                        }
                    }
                }
            }
        }
        for (int64_t h = 0; h < all; ++h) {
            const float sum     = softmax[h / MOST_HEADS].sum[h % MOST_HEADS];
            const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
            for (int64_t i = 0; i < V; ++i) {
                to[h * V + i] *= inverse;
            }
        }
    }
};

} // namespace

void attend_listed(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Attend  attend(dst, *(const float *) userdata);
    const int64_t heads  = heads_at_once(attend.T, attend.H, nth);
    const int64_t blocks = (attend.H + heads - 1) / heads;
    const Share   share(attend.T * blocks, 1, ith, nth);
    for (int64_t unit = share.begin; unit < share.end; ++unit) {
        const int64_t h0 = unit % blocks * heads;
        attend.heads(unit / blocks, h0, least(heads, attend.H - h0));
    }
}

void list_mask(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * lists = dst->src[0];
    const int64_t       n_kv = dst->ne[0], T = dst->ne[1], k = lists->ne[0];
    const uint16_t      hidden = 0xfc00, shown = 0; // minus infinity and 0 in f16
    const Share         share(T, 1, ith, nth);
    for (int64_t t = share.begin; t < share.end; ++t) {
        uint16_t *      mask = (uint16_t *) dst->data + t * n_kv;
        const int32_t * list = (const int32_t *) lists->data + t * k;
        fill(mask, n_kv, hidden);
        for (int64_t i = 0; i < k; ++i) {
            if (list[i] >= 0 && list[i] < n_kv) {
                mask[list[i]] = shown;
            }
        }
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy
