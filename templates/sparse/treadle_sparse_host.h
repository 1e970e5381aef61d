// What the kernels of sparse gradients share on CPUs: threads, sixteen words at a time, and rows.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "treadle_parallel.h"
#include "treadle_sparse_hash.h"

namespace treadle {

constexpr int64_t LEAST = 1 << 14;  // words that are worth a thread

inline int threads_for(int64_t work, int threads) { return int(std::clamp<int64_t>(work / LEAST, 1, threads)); }

constexpr int BATCH = 256;  // units whose words are fetched at once
constexpr int LANES = 16;
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(4)));

inline Words load(const void *from) {
    Words words;
    __builtin_memcpy(&words, from, sizeof words);
    return words;
}

inline Words counted_from(uint32_t first) {
    return Words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
}

// A bit for each word that has any bit of `bits`.
inline uint32_t having(Words words, uint32_t bits) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(words), _mm512_set1_epi32(int(bits)));
#else
    uint32_t mask = 0;
    for (int lane = 0; lane < LANES; ++lane) mask |= uint32_t((words[lane] & bits) != 0) << lane;
    return mask;
#endif
}

// Writes the words whose bit is set, one after the other, and nothing behind them; returns how many.
inline int append(uint32_t *out, Words words, uint32_t mask) {
    const int count = __builtin_popcount(mask);
#if defined(__AVX512F__)
    const __m512i packed = _mm512_maskz_compress_epi32(__mmask16(mask), __m512i(words));
    _mm512_mask_storeu_epi32(out, __mmask16((1u << count) - 1), packed);
#else
    for (int at = 0; mask; mask &= mask - 1) out[at++] = words[__builtin_ctz(mask)];
#endif
    return count;
}

constexpr uint32_t MAGNITUDE = 0x7fffffffu;  // all but the sign: -0 is 0, and NaN is not

// Whether any of `width` floats is not 0.
inline bool is_filled(const uint32_t *row, int64_t width) {
    uint32_t any = 0;
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES)
        if (having(load(row + at), MAGNITUDE)) return true;
    for (; at < width; ++at) any |= row[at];
    return any & MAGNITUDE;
}

inline void copy_row(float *__restrict to, const float *__restrict from, int64_t width) {
    for (int64_t at = 0; at < width; ++at) to[at] = from[at];
}

inline void add_row(float *__restrict to, const float *__restrict from, int64_t width) {
    for (int64_t at = 0; at < width; ++at) to[at] += from[at];
}

}  // namespace treadle
