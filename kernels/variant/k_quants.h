// The K-quants as ggml stores them, and eight rows of them side by side.
//
// All share one scheme: an element is a number of few bits; 16 or 32 of them share a scale and something to subtract, both
// small integers; and 256 share two halves that these are multiplied with.

#ifndef SKIPPY_K_QUANTS_H
#define SKIPPY_K_QUANTS_H

#include "panels.h"

namespace skippy {
namespace SKIPPY_VARIANT {

#ifdef SKIPPY_AVX2

constexpr int PANEL_ROWS = 8;
constexpr int GROUPS     = SUPER / GROUP;

// A block of eight rows. weight of row r = scale[r] * group scale * quant - least[r] * group least.
struct alignas(32) Panel {
    uint8_t quants[SUPER / 4][PANEL_ROWS][4];  // four elements of each row
    int16_t scales[GROUPS][PANEL_ROWS][2];     // each twice
    int16_t leasts[GROUPS / 2][PANEL_ROWS][2]; // of two groups
    float   scale[PANEL_ROWS];
    float   least[PANEL_ROWS];
};

// ---- eight rows, a word of 32 bits of each in a register --------------------------------------------------------------

// Words 0 to 3 of the 16 bytes at each of eight places.
inline void turn(const uint8_t * const * at, __m256i * out) {
    __m256i v[4];
    for (int i = 0; i < 4; ++i) {
        const __m128i low = _mm_loadu_si128((const __m128i *) at[i]), high = _mm_loadu_si128((const __m128i *) at[i + 4]);
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

// All words of `bytes` bytes, a multiple of 16, `offset` behind the start of each row's block.
inline void turn(const uint8_t * const * rows, size_t offset, int bytes, __m256i * out) {
    for (int done = 0; done < bytes; done += 16) {
        const uint8_t * at[PANEL_ROWS];
        for (int r = 0; r < PANEL_ROWS; ++r) {
            at[r] = rows[r] + offset + done;
        }
        turn(at, out + done / 4);
    }
}

// `count` bits of every byte, from bit `first` on.
inline __m256i bits(__m256i v, int first, int count) {
    return _mm256_and_si256(_mm256_srli_epi16(v, first), _mm256_set1_epi8((char) ((1 << count) - 1)));
}

// `low` with the same count of bits above its `width` lowest.
inline __m256i with_high(__m256i low, __m256i high, int width) {
    return _mm256_or_si256(low, _mm256_slli_epi16(high, width));
}

// Bytes i and j of every word, signed, each as 16 bits and times 2^(8 - shift).
inline __m256i two_of(__m256i v, int i, int j, int shift) {
    const __m256i words = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i order = _mm256_set1_epi32((int) (0x00800080u | (uint32_t) i << 8 | (uint32_t) j << 24));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(v, _mm256_add_epi8(order, words)), shift);
}

// The halves in the low 16 bits of every word.
inline __m256 halves_of(__m256i v) {
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

inline void set_scales(Panel & panel, __m256 scale, __m256 least) {
    _mm256_store_ps(panel.scale, scale);
    _mm256_store_ps(panel.least, least);
}

// Scales of 16 groups, four to a word, with leasts of their own or, `shift` 8 - n, the scales times 2^n.
inline void set_groups(Panel & panel, const __m256i * scales, const __m256i * leasts, int shift) {
    for (int g = 0; g < GROUPS; ++g) {
        _mm256_store_si256((__m256i *) panel.scales + g, two_of(scales[g / 4], g % 4, g % 4, 8));
    }
    for (int i = 0; i < GROUPS / 2; ++i) {
        _mm256_store_si256((__m256i *) panel.leasts + i, two_of(leasts[i / 2], i % 2 * 2, i % 2 * 2 + 1, shift));
    }
}

// Q4_K and Q5_K begin alike: scale and least; then eight group scales and leasts of six bits in twelve bytes. Four of each lie
// whole in the low bits of the first eight bytes; of the others, the low four bits are in the last four bytes and the high two
// above the first ones.
inline void set_six_bits(Panel & panel, const uint8_t * const * rows) {
    __m256i word[4];
    turn(rows, word);
    set_scales(panel, halves_of(word[0]), halves_of(_mm256_srli_epi32(word[0], 16)));
    const __m256i scales[2] = { bits(word[1], 0, 6), with_high(bits(word[3], 0, 4), bits(word[1], 6, 2), 4) };
    const __m256i leasts[2] = { bits(word[2], 0, 6), with_high(bits(word[3], 4, 4), bits(word[2], 6, 2), 4) };
    for (int g = 0; g < GROUPS / 2; ++g) {
        const __m256i scale = two_of(scales[g / 4], g % 4, g % 4, 8);
        _mm256_store_si256((__m256i *) panel.scales + 2 * g, scale);
        _mm256_store_si256((__m256i *) panel.scales + 2 * g + 1, scale);
        _mm256_store_si256((__m256i *) panel.leasts + g, two_of(leasts[g / 4], g % 4, g % 4, 8));
    }
}

// ---- the types ----------------------------------------------------------------------------------------------------------
//
// STEP is how many sums of two products fit a sum of 16 bits. `quad` is quad q of the 32 elements of part p; `groups` sets
// everything but the quants.

struct Q2 {
    static constexpr int STEP = 4;
    uint8_t  scales[16];  // a scale and a least
    uint8_t  quants[64];  // of each 128, four times 32
    uint16_t scale, least;

    static void turn_quants(const uint8_t * const * rows, __m256i * word) { turn(rows, offsetof(Q2, quants), 64, word); }
    static __m256i quad(const __m256i * word, int p, int q) { return bits(word[p / 4 * 8 + q], p % 4 * 2, 2); }

    static void groups(const uint8_t * const * rows, Panel & panel) {
        __m256i word[4], scales[4], leasts[4];
        turn(rows, word);
        for (int i = 0; i < 4; ++i) {
            scales[i] = bits(word[i], 0, 4);
            leasts[i] = bits(word[i], 4, 4);
        }
        set_groups(panel, scales, leasts, 8);
        // The last 16 bytes.
        turn(rows, sizeof(Q2) - 16, 16, word);
        set_scales(panel, halves_of(word[3]), halves_of(_mm256_srli_epi32(word[3], 16)));
    }
};
static_assert(sizeof(Q2) == 84, "the layout of a file");

struct Q3 {
    static constexpr int STEP = 4;
    uint8_t  high[32];    // bit p: whether nothing is subtracted
    uint8_t  quants[64];
    uint8_t  scales[12];  // low four bits of eight, of eight more, and the high two of all
    uint16_t scale;

    static void turn_quants(const uint8_t * const * rows, __m256i * word) { turn(rows, 0, 96, word); }
    static __m256i quad(const __m256i * word, int p, int q) { return with_high(Q2::quad(word + 8, p, q), bits(word[q], p, 1), 2); }

    static void groups(const uint8_t * const * rows, Panel & panel) {
        __m256i word[8], scales[4];
        // The last 16 bytes, and those that end with the scales: nothing behind a block may be read.
        turn(rows, sizeof(Q3) - 16, 16, word);
        turn(rows, offsetof(Q3, scale) - 16, 16, word + 4);
        const __m256 scale = halves_of(_mm256_srli_epi32(word[3], 16));
        for (int i = 0; i < 4; ++i) {
            const __m256i six = with_high(bits(word[5 + i % 2], i / 2 * 4, 4), bits(word[7], 2 * i, 2), 4);
            scales[i]         = _mm256_sub_epi8(six, _mm256_set1_epi8(32));
        }
        set_groups(panel, scales, scales, 6);
        set_scales(panel, scale, scale);
    }
};
static_assert(sizeof(Q3) == 110, "the layout of a file");

struct Q4 {
    static constexpr int STEP = 8;
    uint16_t scale, least;
    uint8_t  scales[12];
    uint8_t  quants[128];  // of each 64, the first 32 in the low halves

    static void turn_quants(const uint8_t * const * rows, __m256i * word) { turn(rows, offsetof(Q4, quants), 128, word); }
    static __m256i quad(const __m256i * word, int p, int q) { return bits(word[p / 2 * 8 + q], p % 2 * 4, 4); }
    static void    groups(const uint8_t * const * rows, Panel & panel) { set_six_bits(panel, rows); }
};
static_assert(sizeof(Q4) == 144, "the layout of a file");

struct Q5 {
    static constexpr int STEP = 4;
    uint16_t scale, least;
    uint8_t  scales[12];
    uint8_t  high[32];  // bit p
    uint8_t  quants[128];

    static void turn_quants(const uint8_t * const * rows, __m256i * word) { turn(rows, offsetof(Q5, high), 160, word); }
    static __m256i quad(const __m256i * word, int p, int q) { return with_high(Q4::quad(word + 8, p, q), bits(word[q], p, 1), 4); }
    static void    groups(const uint8_t * const * rows, Panel & panel) { set_six_bits(panel, rows); }
};
static_assert(sizeof(Q5) == 176, "the layout of a file");

struct Q6 {
    static constexpr int STEP = 2;
    uint8_t  low[128];  // of each 128, two times 32 in the low halves, then two in the high ones
    uint8_t  high[64];
    int8_t   scales[16];
    uint16_t scale;

    static void turn_quants(const uint8_t * const * rows, __m256i * word) { turn(rows, 0, 192, word); }

    static __m256i quad(const __m256i * word, int p, int q) {
        const int half = p / 4, part = p % 4;
        const __m256i four = bits(word[16 * half + 8 * (part % 2) + q], part / 2 * 4, 4);
        return with_high(four, bits(word[32 + 8 * half + q], 2 * part, 2), 4);
    }

    static void groups(const uint8_t * const * rows, Panel & panel) {
        __m256i word[4];
        turn(rows, offsetof(Q6, scales), 16, word);
        set_groups(panel, word, word, 3);
        turn(rows, sizeof(Q6) - 16, 16, word);
        const __m256 scale = halves_of(_mm256_srli_epi32(word[3], 16));
        set_scales(panel, scale, scale);
    }
};
static_assert(sizeof(Q6) == 210, "the layout of a file");

// Block b of eight rows.
template <class Type> inline void unpack(const char * const * rows, int64_t b, Panel & panel) {
    const uint8_t * block[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; ++r) {
        block[r] = (const uint8_t *) rows[r] + b * sizeof(Type);
    }
    __m256i word[sizeof(Type) / 4];
    Type::turn_quants(block, word);
    __m256i * quants = (__m256i *) panel.quants;
    for (int p = 0; p < SUPER / 32; ++p) {
        for (int q = 0; q < 8; ++q) {
            _mm256_store_si256(quants + 8 * p + q, Type::quad(word, p, q));
        }
    }
    Type::groups(block, panel);
}

#endif

} // namespace SKIPPY_VARIANT
} // namespace skippy

#endif
