// The indexer, attention on lists and masks against their formulas in double precision.

#include "check.h"

namespace check {

namespace {

ggml_type cache_type(Bytes & bytes, int64_t width) {
    const ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 };
    return types[bytes.within(0, width % 32 == 0 ? 2 : 1)];
}

struct Scores {
    std::vector<double> values, errors;
};

Scores scores_of(const float * query, const float * weights, const std::vector<float> & keys, int64_t D, int64_t H) {
    const int64_t n = (int64_t) keys.size() / D;
    Scores        scores{ std::vector<double>(n), std::vector<double>(n) };
    for (int64_t j = 0; j < n; ++j) {
        for (int64_t h = 0; h < H; ++h) {
            double dot = 0.0, size = 0.0;
            for (int64_t d = 0; d < D; ++d) {
                const double product = (double) query[h * D + d] * keys[j * D + d];
                dot += product;
                size += std::fabs(product);
            }
            scores.values[j] += weights[h] * std::max(dot, 0.0);
            scores.errors[j] += 1e-6 * std::fabs(weights[h]) * size;
        }
    }
    return scores;
}

// The k best of the first `seen`, each once, in order.
void check_list(const char * name, const int32_t * list, int64_t k, int64_t seen, const Scores & scores) {
    const int64_t named = std::min(k, seen);
    for (int64_t i = 0; i < k; ++i) {
        const int64_t before = i == 0 ? -1 : list[i - 1];
        CHECK(i < named ? list[i] > before && list[i] < seen : list[i] == -1, "%s: entry %d of %d is %d", name, (int) i,
              (int) k, list[i]);
    }
    std::vector<bool> in(seen);
    double            least = INFINITY;
    for (int64_t i = 0; i < named; ++i) {
        in[list[i]] = true;
        least       = std::min(least, scores.values[list[i]] + scores.errors[list[i]]);
    }
    for (int64_t j = 0; j < seen; ++j) {
        CHECK(in[j] || scores.values[j] - scores.errors[j] <= least, "%s: key %d of %d is missing", name, (int) j, (int) seen);
    }
}

} // namespace

void index(Bytes & bytes) {
    const int64_t D = bytes.edge({ 1, 7, 32, 64, 128 }), H = bytes.edge({ 1, 3, 8, 17, 33 });
    const int64_t T = bytes.edge({ 1, 2, 9 });
    const int64_t most_keys = std::max<int64_t>(1, 2000000 / (D * H * T)); // a case takes milliseconds
    const int64_t n_kv = std::min(most_keys, bytes.edge({ 1, 47, 48, 49, 500, 3000, 70000 }));
    const int64_t k = std::min<int64_t>(bytes.edge({ 1, 2, 48, 2048 }), 2 * n_kv + 1);
    const bool    ties = bytes.within(0, 3) == 0, broken = bytes.within(0, 9) == 0;
    const int     threads = (int) bytes.within(1, 5);
    const int64_t splits  = bytes.within(1, 7);

    Tensor             query(GGML_TYPE_F32, D, H, T), keys(cache_type(bytes, D), D, n_kv), weights(GGML_TYPE_F32, H, T);
    Tensor             visible(GGML_TYPE_I32, T);
    std::vector<float> q = query.fill(bytes), key = keys.fill(bytes, ties ? 0.0f : 1.0f), w = weights.fill(bytes);
    if (broken) {
        w[0] = weights.data<float>()[0] = bytes.within(0, 1) ? NAN : INFINITY;
    }
    std::vector<Scores> scores;
    for (int64_t t = 0; t < T; ++t) {
        visible.data<int32_t>()[t] = (int32_t) bytes.within(-1, n_kv + 1);
        scores.push_back(scores_of(q.data() + t * H * D, w.data() + t * H, key, D, H));
    }
    for (const Named & named : variants()) {
        Tensor list(GGML_TYPE_I32, k, T), parts(GGML_TYPE_I32, 2 * k + 2, splits, T), merged(GGML_TYPE_I32, k, T);
        run(named.variant->index_select, list, { &query, &keys, &weights, &visible }, threads);
        run(named.variant->index_candidates, parts, { &query, &keys, &weights, &visible }, threads);
        run(named.variant->index_merge, merged, { &parts }, threads);
        CHECK(std::memcmp(list.data<int32_t>(), merged.data<int32_t>(), k * T * 4) == 0, "%s: parts differ", named.name);
        for (int64_t t = broken ? 1 : 0; t < T; ++t) {
            const int64_t seen = std::clamp<int64_t>(visible.data<int32_t>()[t], 0, n_kv);
            check_list(named.name, list.data<int32_t>() + t * k, k, seen, scores[t]);
            for (int64_t i = 0; ties && i < std::min(k, seen); ++i) {
                CHECK(list.data<int32_t>()[t * k + i] == i, "%s: a tie at %d of %d keys of %d", named.name, (int) i, (int) seen, (int) D);
            }
        }
    }
}

void attend(Bytes & bytes) {
    const int64_t W = bytes.edge({ 1, 8, 33, 64, 192, 193, 576 }), V = bytes.within(1, W);
    const int64_t H = bytes.edge({ 1, 2, 8, 31, 32, 33, 65 }), T = bytes.edge({ 1, 2, 5 });
    const int64_t n_kv = bytes.edge({ 1, 100, 70000 / W + 1 });
    const int64_t k = std::min<int64_t>(bytes.edge({ 1, 47, 48, 49, 200 }), std::max<int64_t>(1, 4000000 / (W * H * T)));
    const int     threads = (int) bytes.within(1, 9);
    const float   scale   = 8.0f / (float) W;

    Tensor             query(GGML_TYPE_F32, W, H, T), cache(cache_type(bytes, W), W, n_kv), lists(GGML_TYPE_I32, k, T);
    std::vector<float> q = query.fill(bytes), rows = cache.fill(bytes);
    for (int64_t i = 0; i < k * T; ++i) {
        lists.data<int32_t>()[i] = bytes.random() % 9 == 0 ? -1 : (int32_t) (bytes.random() % (n_kv + 1));
    }
    for (const Named & named : variants()) {
        Tensor out(GGML_TYPE_F32, V, H, T);
        float  constants[2] = { scale, 0.0f };
        run(named.variant->attend_listed, out, { &query, &cache, &lists }, threads, constants);
        for (int64_t row = 0; row < T * H; ++row) {
            const int32_t *     list = lists.data<int32_t>() + row / H * k;
            std::vector<double> values(V);
            double              sum = 0.0;
            for (int64_t i = 0; i < k; ++i) {
                if (list[i] < 0 || list[i] >= n_kv) {
                    continue;
                }
                double score = 0.0;
                for (int64_t d = 0; d < W; ++d) {
                    score += (double) q[row * W + d] * rows[list[i] * W + d];
                }
                const double weight = std::exp(score * scale);
                sum += weight;
                for (int64_t d = 0; d < V; ++d) {
                    values[d] += weight * rows[list[i] * W + d];
                }
            }
            for (int64_t d = 0; d < V; ++d) {
                const double expected = sum > 0.0 ? values[d] / sum : 0.0, got = out.data<float>()[row * V + d];
                CHECK(std::fabs(got - expected) <= 2e-5, "%s: %g is not %g", named.name, got, expected);
            }
        }
    }
}

void mask(Bytes & bytes) {
    const int64_t n_kv = bytes.within(1, 300), T = bytes.within(1, 6), k = bytes.within(1, 40);
    Tensor        lists(GGML_TYPE_I32, k, T);
    for (int64_t i = 0; i < k * T; ++i) {
        lists.data<int32_t>()[i] = bytes.random() % 5 == 0 ? (int32_t) bytes.random() : (int32_t) (bytes.random() % n_kv);
    }
    for (const Named & named : variants()) {
        Tensor out(GGML_TYPE_F16, n_kv, T);
        run(named.variant->list_mask, out, { &lists }, (int) bytes.within(1, 4));
        for (int64_t i = 0; i < n_kv * T; ++i) {
            const int32_t * list  = lists.data<int32_t>() + i / n_kv * k;
            const bool      shown = std::find(list, list + k, (int32_t) (i % n_kv)) != list + k;
            CHECK(out.data<uint16_t>()[i] == (shown ? 0 : 0xfc00), "%s: place %d", named.name, (int) i);
        }
    }
}

} // namespace check
