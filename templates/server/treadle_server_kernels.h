// What a core of the server does with a chunk: adds gradients up, lets the optimizer make a step, gives the weights
// their form on the wire. Compile it with -ffp-contract=off and, for speed, -fno-math-errno -O3 -march=native.
#pragma once
#ifdef __SSE2__
#include <immintrin.h>
#endif

// Nothing here reads errno or exception flags of the processor, which would keep loops from being vectorized.
#pragma GCC push_options
#pragma GCC optimize("no-math-errno", "no-trapping-math")

#include "treadle_server_order.h"

namespace treadle::kernels {

constexpr int64_t BLOCK = 512;  // elements that are worked on in the cache

// What PyTorch takes for square roots on processors: the vector functions of MKL, where it is built with them. They are
// off by one in the last bit here and there, as the maker of the processor decides. Null: exact ones.
using Roots = void (*)(int n, const float *in, float *out, int64_t mode);
inline Roots pytorch_roots = nullptr;
constexpr int64_t ROOTS_MODE = 0x140102;  // high accuracy, subnormal numbers are kept, errors are ignored

inline void take_roots(const float *in, float *out, int64_t n) {
    if (pytorch_roots) return pytorch_roots(int(n), in, out, ROOTS_MODE);
    for (int64_t i = 0; i < n; ++i) out[i] = sqrtf(in[i]);
}

// Copies a block past the cache; `to` is at a multiple of 64 bytes.
inline void stream(float *to, const float *from, int64_t n) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
#elif defined(__AVX__)
    for (; i + 8 <= n; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
#elif defined(__SSE2__)
    for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
#endif
    memcpy(to + i, from + i, size_t(n - i) * sizeof(float));
}

// out[i] = work(i) for all of [0, n). `work` is a copy and holds copies, which stores cannot change.
template <class Work>
inline void fill(float *out, int64_t n, bool bypass, const Work work) {
    if (!bypass) {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) out[i] = work(i);
        return;
    }
    alignas(64) float block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = n - first < BLOCK ? n - first : BLOCK;
        for (int64_t i = 0; i < count; ++i) block[i] = work(first + i);
        stream(out + first, block, count);
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
}

// `work` with factors in which flags are constants, for loops without branches, which are vectorized.
template <class Work>
inline __attribute__((always_inline)) void fixed(const Factors &f, const Work work) { work(f); }
template <class... Flags, class Work>
inline __attribute__((always_inline)) void fixed(Factors f, const Work work, bool Factors::*flag, Flags... others) {
    if (f.*flag) {
        f.*flag = true;
        fixed(f, work, others...);
    } else {
        f.*flag = false;
        fixed(f, work, others...);
    }
}
#define TREADLE_INLINED __attribute__((always_inline))

// sum = incoming if it is the first, else sum + incoming, which has `type`; both at multiples of 64 bytes.
inline void add_into(float *sum, const void *incoming, int64_t n, int type, bool first, bool bypass) {
    const auto add = [=](const auto value) {
        first ? fill(sum, n, bypass, value) : fill(sum, n, bypass, [=](int64_t i) { return sum[i] + value(i); });
    };
    const auto single = static_cast<const float *>(incoming);
    const auto half = static_cast<const uint16_t *>(incoming);
    if (type == FLOAT16) return add([=](int64_t i) { return widen_half(half[i]); });
    if (type == BFLOAT16) return add([=](int64_t i) { return widen_brain(half[i]); });
    add([=](int64_t i) { return single[i]; });
}

// `values` in the form of `type`, as PyTorch rounds them.
inline void to_type(void *out, const float *values, int64_t n, int type) {
    const auto half = static_cast<uint16_t *>(out);
    if (type == FLOAT32) memcpy(out, values, size_t(n) * sizeof(float));
    if (type == FLOAT16)
        for (int64_t i = 0; i < n; ++i) half[i] = narrow_half(values[i]);
    if (type == BFLOAT16)
        for (int64_t i = 0; i < n; ++i) half[i] = narrow_brain(values[i]);
}

// Moments of all elements, then `next(factors, i, root)` is their weight, or the direction to it.
template <class Next>
inline void in_blocks(const Factors &factors, const Update &update, const Next next) {
    fixed(
        factors,
        [=](const Factors &f) TREADLE_INLINED {
            alignas(64) float roots[BLOCK];
            for (int64_t begin = 0; begin < update.n; begin += BLOCK) {
                const int64_t count = update.n - begin < BLOCK ? update.n - begin : BLOCK;
                const float *sum = update.sum + begin, *weight = update.weight_in + begin, *root = roots;
                const float *first = update.state_in[0] + begin, *second = update.state_in[1] + begin;
                float *second_out = update.state_out[1] + begin;
                fill(update.state_out[0] + begin, count, false, [=](int64_t i) TREADLE_INLINED {
                    float mean = first[i], square = second[i];
                    moments(f, gradient_of(f, sum[i], weight[i]), mean, square);
                    second_out[i] = square;
                    return mean;
                });
                take_roots(second_out, roots, count);
                fill(update.weight_out + begin, count, false,
                     [=](int64_t i) TREADLE_INLINED { return next(f, begin + i, root[i]); });
            }
        },
        &Factors::decays, &Factors::near, &Factors::apart);
}

// The whole step of a chunk; of LAMB what is left once `ratio` is known and `lamb_norms` has put the direction where the
// weights go.
inline void optimize(const Update &update) {
    const Factors f = factors(update);
    const int64_t n = update.n;
    const float *sum = update.sum, *weight = update.weight_in;
    const float *state = update.state_in[0];
    float *out = update.weight_out, *first_out = update.state_out[0];
    switch (update.optimizer) {
        case MEAN:
            return fill(out, n, false, [=](int64_t i) { return mean_of(f, sum[i]); });
        case SGD:
        case NESTEROV:
            return fixed(
                f,
                [=](const Factors &f) TREADLE_INLINED {
                    fill(out, n, false, [=](int64_t i) TREADLE_INLINED {
                        float momentum = state[i];
                        const float next = sgd(f, sum[i], weight[i], momentum);
                        first_out[i] = momentum;
                        return next;
                    });
                },
                &Factors::decays, &Factors::moves, &Factors::first, &Factors::nesterov);
        case ADAM:
            return in_blocks(f, update, [=](const Factors &f, int64_t i, float root) TREADLE_INLINED {
                return adam(f, weight[i], first_out[i], root);
            });
        case LAMB: {
            const float step = lamb_step(f, update.ratio);
            return fill(out, n, false, [=](int64_t i) { return fmaf(step, out[i], weight[i]); });
        }
    }
}

// The squares of a chunk.
inline double square_sum(const float *values, int64_t n) {
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += LEAF) {
        double lanes[LANES] = {};
        const int64_t end = begin + LEAF < n ? begin + LEAF : n;
        for (int64_t row = begin; row < end; row += LANES)
            for (int64_t lane = 0; lane < LANES && row + lane < end; ++lane)
                lanes[lane] += squared(values[row + lane]);
        fold(lanes);
        sum += lanes[0];
    }
    return sum;
}

// The first half of a step of LAMB: the states, the direction in place of the weights, and the sums of squares of
// weights and direction.
inline void lamb_norms(const Update &update, double out[2]) {
    const float *weight = update.weight_in, *first = update.state_out[0];
    in_blocks(factors(update), update, [=](const Factors &f, int64_t i, float root) TREADLE_INLINED {
        return lamb(f, weight[i], first[i], root);
    });
    out[0] = square_sum(weight, update.n);
    out[1] = square_sum(update.weight_out, update.n);
}

}  // namespace treadle::kernels

// Makes every library with this text follow PyTorch's square roots.
extern "C" __attribute__((visibility("default"), used)) inline void treadle_follow_roots(treadle::kernels::Roots roots) {
    treadle::kernels::pytorch_roots = roots;
}

#pragma GCC pop_options
