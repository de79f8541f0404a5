// The lightning indexer with a streaming top-k: see skippy_kernels.h.
//
// Keys pass by in tiles. Each token keeps what may still be among its k largest scores, at most a small multiple of k, so no
// matrix of tokens and keys ever exists. Scores are compared as integers of the same order, and equal ones by position,
// so the selection is exact whatever the tiles and splits are.

#include "ops.h"
#include "rows.h"

namespace skippy {
namespace SKIPPY_VARIANT {

namespace {

constexpr int64_t KEYS = 48; // of a tile: a multiple of BLOCK_ROWS of every variant

struct ColumnsTag;
struct TileTag;
struct DotsTag;
struct KeysTag;
struct PositionsTag;
struct StatesTag;

// The k-th largest of n keys (1 <= k < n), and in `above` how many are larger than it. Radix search by digits of 8 bits,
// or of 11 where the keys are more than their counters.
uint32_t kth_largest(const uint32_t * keys, int64_t n, int64_t k, int64_t * above) {
    static thread_local uint32_t counts[1 << 11];
    uint32_t                     prefix = 0;
    int64_t                      left   = k;
    int                          known  = 0;
    while (known < 32) {
        const int bits  = (int) least(n < (1 << 12) ? 8 : 11, 32 - known);
        const int shift = 32 - known - bits;
        fill(counts, (int64_t) 1 << bits, 0u);
        for (int64_t i = 0; i < n; ++i) {
            if (known == 0 || keys[i] >> (32 - known) == prefix) {
                ++counts[(keys[i] >> shift) & ((1u << bits) - 1)];
            }
        }
        int64_t digit = ((int64_t) 1 << bits) - 1;
        while (counts[digit] < left) {
            left -= counts[digit--];
        }
        prefix = prefix << bits | (uint32_t) digit;
        known += bits;
    }
    *above = k - left;
    return prefix;
}

// Room for the candidates of one token: k that stay, and at least as many new ones before the next look.
int64_t room_for(int64_t k) {
    return k + most(k, 4 * KEYS);
}

// What may be among the k largest of one token, by position.
struct Candidates {
    uint32_t * keys;
    int32_t *  positions;
    int64_t    n;
    bool       full;    // some were left behind: only keys above `limit` can come in
    uint32_t   limit;

    // Those of `count` scores from position `first` on.
    void add(const float * scores, int64_t count, int64_t first, int64_t k) {
        if (n + count > room_for(k)) {
            cut(k);
        }
        if (!full) {
            for (int64_t j = 0; j < count; ++j, ++n) {
                keys[n]      = ordered(scores[j]);
                positions[n] = (int32_t) (first + j);
            }
            return;
        }
        for (int64_t j = 0; j < count; ++j) {
            // Written in any case, counted only if it counts: no branch to guess.
            const uint32_t key = ordered(scores[j]);
            keys[n]            = key;
            positions[n]       = (int32_t) (first + j);
            n += key > limit;
        }
    }

    // Leaves the k largest; of equal ones those of the lowest positions.
    void cut(int64_t k) {
        if (n <= k) {
            return;
        }
        int64_t above = 0;
        limit         = kth_largest(keys, n, k, &above);
        full          = true;
        int64_t equal = k - above, kept = 0;
        for (int64_t i = 0; i < n; ++i) {
            const bool tie = keys[i] == limit;
            if (keys[i] > limit || (tie && equal > 0)) {
                equal -= tie;
                keys[kept]      = keys[i];
                positions[kept] = positions[i];
                ++kept;
            }
        }
        n = kept;
    }
};

struct Index {
    const float *   query;    // [T][H][D]
    const float *   weights;  // [T][H]
    const int32_t * visible;  // [T]
    Rows            keys;
    int64_t         D, H, T, k;

    Index(const ggml_tensor * dst, int64_t k)
        : query((const float *) dst->src[0]->data), weights((const float *) dst->src[2]->data),
          visible((const int32_t *) dst->src[3]->data), keys(dst->src[1]), D(dst->src[0]->ne[0]), H(dst->src[0]->ne[1]),
          T(dst->src[0]->ne[2]), k(k) {}

    int64_t seen(int64_t t) const { return most(0, least(visible[t], keys.count)); }
};

// The candidates of tokens t0..t1 among keys j0..j1. Heads are the columns of the product: a key needs no transposition.
// A token that sees no more than k keys needs no scores and gets no candidates.
Candidates * select(const Index & index, int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
    const int64_t D = index.D, width = padded(index.H), n = t1 - t0, room = room_for(index.k) + KEYS;
    float *       columns   = scratch<ColumnsTag>(n * (D + 1) * width);
    float *       scales    = columns + n * D * width;
    float *       tile      = scratch<TileTag>(KEYS * D);
    float *       dots      = scratch<DotsTag>(KEYS * width);
    uint32_t *    keys      = scratch<KeysTag, uint32_t>(n * room);
    int32_t *     positions = scratch<PositionsTag, int32_t>(n * room);
    Candidates *  found     = scratch<StatesTag, Candidates>(n);
    int64_t       end       = j0;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t t = t0 + i;
        transpose(index.query + t * index.H * D, index.H, D, columns + i * D * width, width);
        transpose(index.weights + t * index.H, index.H, 1, scales + i * width, width);
        found[i] = Candidates{ keys + i * room, positions + i * room, 0, false, 0 };
        if (index.seen(t) > index.k) {
            end = most(end, least(j1, index.seen(t)));
        }
    }
    for (int64_t first = j0; first < end; first += KEYS) {
        const int64_t count = least(KEYS, end - first);
        const float * rows[KEYS];
        for (int64_t j = 0; j < count; ++j) {
            rows[j] = index.keys.row(first + j, tile + j * D);
        }
        for (int64_t i = 0; i < n; ++i) {
            const int64_t seen = index.seen(t0 + i), here = least(count, seen - first);
            if (seen <= index.k || here <= 0) {
                continue;
            }
            add_products(rows, here, columns + i * D * width, width, D, width, dots, width, true);
            float         scores[KEYS];
            const float * scale = scales + i * width;
            for (int64_t j = 0; j < here; ++j) {
                vec sum = {};
                for (int64_t h = 0; h < width; h += WIDTH) {
                    sum += load(scale + h) * greater(load(dots + j * width + h), vec{});
                }
                scores[j] = sum_of(sum);
            }
            found[i].add(scores, here, first, index.k);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        found[i].cut(index.k);
    }
    return found;
}

// The list of a token that sees `seen` <= k keys.
void list_all(int32_t * list, int64_t k, int64_t seen) {
    for (int64_t i = 0; i < k; ++i) {
        list[i] = i < seen ? (int32_t) i : -1;
    }
}

} // namespace

void index_select(ggml_tensor * dst, int ith, int nth, void *) {
    const Index index(dst, dst->ne[0]);
    const Share share(index.T, 1, ith, nth);
    if (share.begin == share.end) {
        return;
    }
    const Candidates * found = select(index, share.begin, share.end, 0, index.keys.count);
    for (int64_t t = share.begin; t < share.end; ++t) {
        int32_t * list = (int32_t *) dst->data + t * index.k;
        if (index.seen(t) <= index.k) {
            list_all(list, index.k, index.seen(t));
        } else {
            memcpy(list, found[t - share.begin].positions, index.k * sizeof(int32_t));
        }
    }
}

void index_candidates(ggml_tensor * dst, int ith, int nth, void *) {
    const int64_t k = (dst->ne[0] - 2) / 2, splits = dst->ne[1];
    const Index   index(dst, k);
    // Enough groups of tokens that every thread has something.
    const int64_t groups = most(1, least(index.T, (nth + splits - 1) / splits));
    const Share   share(groups * splits, 1, ith, nth);
    for (int64_t unit = share.begin; unit < share.end; ++unit) {
        const Share tokens(index.T, 1, (int) (unit / splits), (int) groups);
        const Share keys(index.keys.count, KEYS, (int) (unit % splits), (int) splits);
        if (tokens.begin == tokens.end) {
            continue;
        }
        const Candidates * found = select(index, tokens.begin, tokens.end, keys.begin, keys.end);
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            int32_t *          out = (int32_t *) dst->data + (t * splits + unit % splits) * dst->ne[0];
            const Candidates & of  = found[t - tokens.begin];
            out[0]                 = (int32_t) index.seen(t);
            out[1]                 = (int32_t) of.n;
            memcpy(out + 2, of.keys, of.n * sizeof(int32_t));
            memcpy(out + 2 + k, of.positions, of.n * sizeof(int32_t));
        }
    }
}

void index_merge(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * candidates = dst->src[0];
    const int64_t       k = dst->ne[0], size = candidates->ne[0], splits = candidates->ne[1];
    const Share         share(dst->ne[1], 1, ith, nth);
    for (int64_t t = share.begin; t < share.end; ++t) {
        const int32_t * from = (const int32_t *) candidates->data + t * splits * size;
        int32_t *       list = (int32_t *) dst->data + t * k;
        if (from[0] <= k) {
            list_all(list, k, from[0]);
            continue;
        }
        // The splits are in the order of positions, and so are the candidates of each.
        Candidates all{ scratch<KeysTag, uint32_t>(splits * k), scratch<PositionsTag, int32_t>(splits * k), 0, false, 0 };
        for (int64_t s = 0; s < splits; ++s, from += size) {
            memcpy(all.keys + all.n, from + 2, from[1] * sizeof(int32_t));
            memcpy(all.positions + all.n, from + 2 + k, from[1] * sizeof(int32_t));
            all.n += from[1];
        }
        all.cut(k);
        memcpy(list, all.positions, k * sizeof(int32_t));
    }
}

} // namespace SKIPPY_VARIANT
} // namespace skippy
