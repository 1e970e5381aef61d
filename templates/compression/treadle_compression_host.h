// What all encoders and decoders for CPUs share: threads, blocks of elements with the residual added, sign bits, sums.
#pragma once
#include <algorithm>
#include <vector>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "treadle_compression.h"
#include "treadle_parallel.h"

namespace treadle {

constexpr int64_t LEAST = 1 << 16;  // elements that are worth a thread

inline int parts_of(const Coding &coding) { return int(std::clamp<int64_t>(coding.elements / LEAST, 1, coding.threads)); }

inline int64_t chunks_of(const Coding &coding) { return (coding.elements + CHUNK - 1) / CHUNK; }

// `work(chunk, at, count)` for all chunks, on all threads: `count` elements from `at` on.
template <class Work>
void each_chunk(const Coding &coding, const Work &work) {
    parallel(parts_of(coding), chunks_of(coding), [&](int, int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk)
            work(chunk, chunk * CHUNK, int(std::min<int64_t>(CHUNK, coding.elements - chunk * CHUNK)));
    });
}

// The values from `at` on with the residual added, which then holds them.
inline const float *accumulated(const Coding &coding, int64_t at, int count) {
    const float *__restrict values = coding.values + at;
    if (!coding.residual) return values;
    float *__restrict residual = coding.residual + at;
    for (int i = 0; i < count; ++i) residual[i] += values[i];
    return residual;
}

inline uint32_t largest_key(const float *v, int count) {
    uint32_t largest = 0;
    for (int i = 0; i < count; ++i) largest = std::max(largest, key_of(v[i]));
    return largest;
}

// A chunk that is whole: behind its end are zeros.
struct Whole {
    alignas(64) float room[CHUNK];

    const float *of(const float *values, int count) {
        if (count == CHUNK) return values;
        std::copy(values, values + count, room);
        std::fill(room + count, room + CHUNK, 0.0f);
        return room;
    }
};

// The sign bits of 32 floats.
inline uint32_t signs_of(const float *v) {
    uint32_t word = 0;
#if defined(__AVX__)
    for (int i = 0; i < 4; ++i) word |= uint32_t(_mm256_movemask_ps(_mm256_loadu_ps(v + 8 * i))) << 8 * i;
#else
    for (int i = 0; i < 32; ++i) word |= (bits<uint32_t>(v[i]) >> 31) << i;
#endif
    return word;
}

template <class T>
T halved(T (&lane)[LANES]) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
}

// The sum of a chunk of `term(v)`.
template <class Term>
float chunk_sum(const float *v, const Term &term) {
    alignas(64) float lane[LANES] = {};
    for (int row = 0; row < CHUNK; row += LANES)
        for (int i = 0; i < LANES; ++i) lane[i] += term(v[row + i]);
    return halved(lane);
}

inline double total(const std::vector<float> &sums) {
    double lane[LANES] = {};
    for (size_t i = 0; i < sums.size(); ++i) lane[i % LANES] += double(sums[i]);
    return halved(lane);
}

}  // namespace treadle
