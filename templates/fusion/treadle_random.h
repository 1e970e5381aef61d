// Dropout by Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011): which elements are kept
// depends on seed, step, key and the element's index in the whole tensor alone; docs/fusion.md.
#pragma once
#include "treadle_expression.h"

namespace treadle {

struct Words {
    uint32_t w0, w1, w2, w3;
    TREADLE_DEVICE uint32_t lane(int64_t i) const { return i % 4 < 2 ? (i % 2 ? w1 : w0) : (i % 2 ? w3 : w2); }
};

TREADLE_DEVICE Words philox(Words counter, uint32_t k0, uint32_t k1) {
    TREADLE_UNROLL
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t(0xD2511F53u) * counter.w0, second = uint64_t(0xCD9E8D57u) * counter.w2;
        counter = {uint32_t(second >> 32) ^ counter.w1 ^ k0, uint32_t(second), uint32_t(first >> 32) ^ counter.w3 ^ k1,
                   uint32_t(first)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

// What a mask depends on besides the index: `key` is that of the operation, with the rank added for Local tensors.
struct Mask {
    uint64_t seed;
    uint32_t key;
    uint64_t step;
    uint32_t threshold;  // smaller words drop their element

    TREADLE_DEVICE Words words(int64_t block) const {
        return philox({uint32_t(block), uint32_t(block >> 32), uint32_t(step), uint32_t(step >> 32)}, uint32_t(seed), key);
    }
};

namespace op {

// Elements from `global` on; survivors are scaled.
template <class T, int N>
TREADLE_DEVICE Pack<T, N> dropout(const Pack<T, N> &x, const Mask &mask, int64_t global, Computed<T> scale) {
    Pack<T, N> result;
    Words words = mask.words(global / 4);
    const bool whole = N % 4 == 0 && global % 4 == 0;
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) {
        if (i && (whole ? i % 4 == 0 : (global + i) % 4 == 0)) words = mask.words((global + i) / 4);
        const bool kept = words.lane(whole ? i : global + i) >= mask.threshold;
        result[i] = convert<T>(kept ? product(widen(x[i]), scale) : Computed<T>(0));
    }
    return result;
}

// The same for a tensor that is broadcast: element i of all is index(i) of it.
template <class T, int N, class X, class Index>
TREADLE_DEVICE Pack<T, N> dropout(const X &x, const Mask &mask, int64_t global, Computed<T> scale, Index index) {
    Pack<T, N> result;
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) {
        const int64_t at = index(global + i);
        const bool kept = mask.words(at / 4).lane(at) >= mask.threshold;
        result[i] = convert<T>(kept ? product(widen(element(x, i)), scale) : Computed<T>(0));
    }
    return result;
}

}  // namespace op

}  // namespace treadle
