// Products of few rows and routed experts against their formulas in double precision.

#include "check.h"

namespace check {

namespace {

// Columns of Q8_0 products are rounded to 16 bits, or to 8 by the portable variant as by ggml; those of Q4_K to 8 bits, and those
// of other K-quants, and of all by the portable variant, not at all by the dot product of this harness. Everything else is f32.
constexpr double EIGHT_BITS = 6e-3;

double tolerance(ggml_type type, const char * variant) {
    const bool portable = std::strcmp(variant, "portable") == 0;
    switch (type) {
        case GGML_TYPE_Q8_0: return portable ? 2e-2 : 1e-3;
        case GGML_TYPE_Q4_K: return portable ? 1e-5 : EIGHT_BITS;
        default: return 1e-5;
    }
}

// The largest of some weights, at least 1: differences may grow with it.
double size_of(const std::vector<float> & weights) {
    double size = 1.0;
    for (const float weight : weights) {
        size = std::max(size, (double) std::fabs(weight));
    }
    return size;
}

double dot(const float * a, const float * b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += (double) a[i] * b[i];
    }
    return sum;
}

double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

ggml_type weight_type(Bytes & bytes) {
    const ggml_type types[] = { GGML_TYPE_F32,  GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q2_K,
                                GGML_TYPE_Q3_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K };
    return types[bytes.within(0, 6)];
}

int64_t block_of(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_Q8_0 ? 32 : K_QUANTS;
}

} // namespace

void products(Bytes & bytes) {
    const ggml_type type = weight_type(bytes);
    const int64_t   block = block_of(type);
    const int64_t   K = block * bytes.edge({ 1, 2, 5 }), M = bytes.edge({ 1, 3, 15, 16, 70 });
    const int64_t   n = bytes.edge({ 1, 2, 3, 16, 17, 33, 70 }), B = bytes.within(1, 3);
    const int       threads = (int) bytes.within(1, 5);

    Tensor             weight(type, K, M, B), x(GGML_TYPE_F32, K, n, B);
    std::vector<float> w = weight.fill(bytes), columns = x.fill(bytes);
    const double size = size_of(w);
    for (const Named & named : variants()) {
        const auto compare = [&](Tensor & out, double tolerance) {
            for (int64_t i = 0; i < M * n * B; ++i) {
                const int64_t m = i % M, c = i / M, b = c / n;
                const double expected = dot(w.data() + (b * M + m) * K, columns.data() + c * K, K), got = out.data<float>()[i];
                CHECK(std::fabs(got - expected) <= tolerance * size * std::sqrt((double) K), "%s, type %d: %g is not %g",
                      named.name, type, got, expected);
            }
        };
        Tensor out(GGML_TYPE_F32, M, n, B);
        run(named.variant->matmul_rows, out, { &weight, &x }, threads);
        compare(out, tolerance(type, named.name));
        const int64_t packed_bytes = named.variant->packed_bytes(type, K);
        if (packed_bytes > 0 && B == 1) {
            Tensor packed(GGML_TYPE_I8, packed_bytes, n), again(GGML_TYPE_F32, M, n), last(GGML_TYPE_F32, M, 1);
            run(named.variant->pack, packed, { &x }, threads);
            run(named.variant->matmul_packed, again, { &weight, &packed }, threads);
            compare(again, EIGHT_BITS);
            Tensor alone(GGML_TYPE_I8, packed_bytes, 1);
            std::memcpy(alone.data<char>(), packed.data<char>() + (n - 1) * packed_bytes, packed_bytes);
            run(named.variant->matmul_packed, last, { &weight, &alone }, 1);
            const bool same = std::memcmp(last.data<float>(), again.data<float>() + (n - 1) * M, M * sizeof(float)) == 0;
            CHECK(same, "%s: a column depends on its neighbours", named.name);
        }
    }
}

void experts(Bytes & bytes) {
    const ggml_type type = weight_type(bytes);
    const int64_t   block = block_of(type);
    const int64_t   K = block * bytes.within(1, 3), F = block * bytes.within(1, 2), N = bytes.edge({ 1, 8, 17, 40 });
    const int64_t   E = bytes.edge({ 1, 4, 9 }), used = bytes.within(1, E), n = bytes.edge({ 1, 2, 7, 16 });
    const bool      shared = bytes.within(0, 1), biased = bytes.within(0, 1);
    const int64_t   S = shared ? block * bytes.within(1, 2) : 0;
    const int       threads = (int) bytes.within(1, 4);
    float           constants[2] = { 2.5f, bytes.within(0, 1) ? 6e-5f : 0.0f };

    Tensor x(GGML_TYPE_F32, K, n), logits(GGML_TYPE_F32, E, n), bias(GGML_TYPE_F32, E), residual(GGML_TYPE_F32, N, n);
    Tensor gate(type, K, F, E), up(type, K, F, E), down(type, F, N, E);
    Tensor shared_gate(type, K, std::max<int64_t>(S, 1)), shared_up(type, K, std::max<int64_t>(S, 1));
    Tensor shared_down(type, std::max(S, block), N);
    const std::vector<float> vx = x.fill(bytes), vl = logits.fill(bytes, 3.0f), vb = bias.fill(bytes), vr = residual.fill(bytes);
    const std::vector<float> g = gate.fill(bytes), u = up.fill(bytes), d = down.fill(bytes);
    const std::vector<float> sg = shared_gate.fill(bytes), su = shared_up.fill(bytes), sd = shared_down.fill(bytes);

    const double weight_size = std::max({ size_of(g), size_of(u), size_of(d), size_of(sg), size_of(su), size_of(sd) });
    for (const Named & named : variants()) {
        Tensor ids(GGML_TYPE_I32, used, n), inner(GGML_TYPE_F32, used * F + S, n), out(GGML_TYPE_F32, N, n);
        run(named.variant->route, ids, { &logits, biased ? &bias : nullptr }, threads);
        run(named.variant->experts_inner, inner,
            { &x, &ids, &gate, &up, shared ? &shared_gate : nullptr, shared ? &shared_up : nullptr }, threads);
        run(named.variant->experts_outer, out, { &inner, &ids, &logits, &residual, &down, shared ? &shared_down : nullptr },
            threads, constants);
        Tensor merged(GGML_TYPE_F32, std::max<int64_t>(S, 1), n);
        if (shared) {
            run(named.variant->glu, merged, { &x, &shared_gate, &shared_up }, threads);
        }
        // The same operations in the same order: the same bits.
        for (int64_t i = 0; i < S * n; ++i) {
            const float together = inner.data<float>()[i / S * (used * F + S) + used * F + i % S];
            CHECK(merged.data<float>()[i] == together, "%s: merged", named.name);
        }
        for (int64_t t = 0; t < n; ++t) {
            const int32_t * chosen = ids.data<int32_t>() + t * used;
            const auto      rank   = [&](int64_t e) { return sigmoid(vl[t * E + e]) + (biased ? vb[e] : 0.0f); };
            for (int64_t i = 0; i < used; ++i) {
                CHECK(chosen[i] >= 0 && chosen[i] < E && (i == 0 || chosen[i] > chosen[i - 1]), "%s: ids", named.name);
                for (int64_t e = 0; e < E; ++e) {
                    const bool in = std::find(chosen, chosen + used, (int32_t) e) != chosen + used;
                    CHECK(in || rank(e) <= rank(chosen[i]) + 1e-6, "%s: expert %d is missing", named.name, (int) e);
                }
            }
            // f32 sums of the inner values stand in for exact ones: each half is compared with the formula of what it was given.
            const float * got_inner = inner.data<float>() + t * (used * F + S);
            const auto    glu = [&](const std::vector<float> & g, const std::vector<float> & u, int64_t row) {
                const double a = dot(g.data() + row * K, vx.data() + t * K, K), b = dot(u.data() + row * K, vx.data() + t * K, K);
                return a * sigmoid(a) * b;
            };
            const double inner_tolerance = tolerance(type, named.name) * (double) K * weight_size * weight_size;
            for (int64_t i = 0; i < used * F + S; ++i) {
                const double expected = i < used * F ? glu(g, u, chosen[i / F] * F + i % F) : glu(sg, su, i - used * F);
                CHECK(std::fabs(got_inner[i] - expected) <= inner_tolerance, "%s: inner %g is not %g", named.name, got_inner[i],
                      expected);
            }
        }
        const auto compare = [&](double tolerance) {
            for (int64_t t = 0; t < n; ++t) {
                const int32_t * chosen = ids.data<int32_t>() + t * used;
                const float *   got_inner = inner.data<float>() + t * (used * F + S);
                double sum = 0.0;
                for (int64_t i = 0; i < used; ++i) {
                    sum += sigmoid(vl[t * E + chosen[i]]);
                }
                double size = 1.0;
                for (int64_t i = 0; i < used * F + S; ++i) {
                    size = std::max(size, (double) std::fabs(got_inner[i]));
                }
                for (int64_t m = 0; m < N; ++m) {
                    double expected = vr[t * N + m];
                    for (int64_t i = 0; i < used; ++i) {
                        const double weight = sigmoid(vl[t * E + chosen[i]]) / (constants[1] > 0.0f ? sum : 1.0) * constants[0];
                        expected += weight * dot(d.data() + (chosen[i] * N + m) * F, got_inner + i * F, F);
                    }
                    if (shared) {
                        expected += dot(sd.data() + m * S, got_inner + used * F, S);
                    }
                    const double got = out.data<float>()[t * N + m];
                    CHECK(std::fabs(got - expected) <= tolerance * std::sqrt((double) F) * size * weight_size * (double) (used + 1),
                          "%s: %g is not %g", named.name, got, expected);
                }
            }
        };
        compare(tolerance(type, named.name));
        const int64_t of_x = named.variant->packed_bytes(type, K), of_inner = named.variant->packed_bytes(type, used * F + S);
        if (of_x > 0) {
            Tensor px(GGML_TYPE_I8, of_x, n), pinner(GGML_TYPE_I8, of_inner, n);
            run(named.variant->pack, px, { &x }, threads);
            run(named.variant->experts_inner_packed, pinner,
                { &px, &ids, &gate, &up, shared ? &shared_gate : nullptr, shared ? &shared_up : nullptr }, threads);
            run(named.variant->experts_outer_packed, out,
                { &pinner, &ids, &logits, &residual, &down, shared ? &shared_down : nullptr }, threads, constants);
            // Inner values are rounded to 8 bits as well.
            compare(2 * EIGHT_BITS);
        }
    }
}

} // namespace check
