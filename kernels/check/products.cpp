// Products of few rows and routed experts against their formulas in double precision.

#include "check.h"

namespace check {

namespace {

// Columns of Q8_0 products are rounded to 16 bits, or to 8 by the portable variant as by ggml; everything else is f32.
double tolerance(ggml_type type, const char * variant) {
    return type == GGML_TYPE_F32 ? 1e-5 : std::strcmp(variant, "portable") == 0 ? 2e-2 : 1e-3;
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
    return bytes.within(0, 1) ? GGML_TYPE_Q8_0 : GGML_TYPE_F32;
}

} // namespace

void products(Bytes & bytes) {
    const int64_t   K = 32 * bytes.edge({ 1, 2, 5, 18 }), M = bytes.edge({ 1, 3, 15, 16, 70 });
    const int64_t   n = bytes.edge({ 1, 2, 3, 16, 17, 33 }), B = bytes.within(1, 3);
    const int       threads = (int) bytes.within(1, 5);
    const ggml_type type = weight_type(bytes);

    Tensor             weight(type, K, M, B), x(GGML_TYPE_F32, K, n, B);
    std::vector<float> w = weight.fill(bytes), columns = x.fill(bytes);
    for (const Named & named : variants()) {
        Tensor out(GGML_TYPE_F32, M, n, B);
        run(named.variant->matmul_rows, out, { &weight, &x }, threads);
        for (int64_t i = 0; i < M * n * B; ++i) {
            const int64_t m = i % M, c = i / M, b = c / n;
            const double  expected = dot(w.data() + (b * M + m) * K, columns.data() + c * K, K), got = out.data<float>()[i];
            CHECK(std::fabs(got - expected) <= tolerance(type, named.name) * std::sqrt((double) K), "%s: %g is not %g",
                  named.name, got, expected);
        }
    }
}

void experts(Bytes & bytes) {
    const int64_t   K = 32 * bytes.within(1, 3), F = 32 * bytes.within(1, 2), N = bytes.edge({ 1, 8, 17, 40 });
    const int64_t   E = bytes.edge({ 1, 4, 9 }), used = bytes.within(1, E), n = bytes.edge({ 1, 2, 7, 16 });
    const bool      shared = bytes.within(0, 1), biased = bytes.within(0, 1);
    const int64_t   S = shared ? 32 * bytes.within(1, 2) : 0;
    const int       threads = (int) bytes.within(1, 4);
    const ggml_type type = weight_type(bytes);
    float           constants[2] = { 2.5f, bytes.within(0, 1) ? 6e-5f : 0.0f };

    Tensor x(GGML_TYPE_F32, K, n), logits(GGML_TYPE_F32, E, n), bias(GGML_TYPE_F32, E), residual(GGML_TYPE_F32, N, n);
    Tensor gate(type, K, F, E), up(type, K, F, E), down(type, F, N, E);
    Tensor shared_gate(type, K, std::max<int64_t>(S, 1)), shared_up(type, K, std::max<int64_t>(S, 1));
    Tensor shared_down(type, std::max<int64_t>(S, 32), N);
    const std::vector<float> vx = x.fill(bytes), vl = logits.fill(bytes, 3.0f), vb = bias.fill(bytes), vr = residual.fill(bytes);
    const std::vector<float> g = gate.fill(bytes), u = up.fill(bytes), d = down.fill(bytes);
    const std::vector<float> sg = shared_gate.fill(bytes), su = shared_up.fill(bytes), sd = shared_down.fill(bytes);

    for (const Named & named : variants()) {
        Tensor ids(GGML_TYPE_I32, used, n), inner(GGML_TYPE_F32, used * F + S, n), out(GGML_TYPE_F32, N, n);
        run(named.variant->route, ids, { &logits, biased ? &bias : nullptr }, threads);
        run(named.variant->experts_inner, inner,
            { &x, &ids, &gate, &up, shared ? &shared_gate : nullptr, shared ? &shared_up : nullptr }, threads);
        run(named.variant->experts_outer, out, { &inner, &ids, &logits, &residual, &down, shared ? &shared_down : nullptr },
            threads, constants);
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
            const double inner_tolerance = tolerance(type, named.name) * K;
            for (int64_t i = 0; i < used * F + S; ++i) {
                const double expected = i < used * F ? glu(g, u, chosen[i / F] * F + i % F) : glu(sg, su, i - used * F);
                CHECK(std::fabs(got_inner[i] - expected) <= inner_tolerance, "%s: inner %g is not %g", named.name, got_inner[i],
                      expected);
            }
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
                CHECK(std::fabs(got - expected) <= tolerance(type, named.name) * F * size * (double) (used + 1),
                      "%s: %g is not %g", named.name, got, expected);
            }
        }
    }
}

} // namespace check
