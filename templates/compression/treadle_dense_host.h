// Signs, bytes and halves on CPUs.
#pragma once
#include "treadle_compression_host.h"

namespace treadle {

inline void encode_signs(const Coding &coding) {
    const bool two = coding.algorithm == ONEBIT;
    const int64_t n = coding.elements, words = (n + 31) / 32;
    std::vector<float> upper(chunks_of(coding)), lower(two ? upper.size() : 0);
    std::vector<int32_t> negatives(lower.size());
    each_chunk(coding, [&](int64_t chunk, int64_t at, int count) {
        Whole whole;
        const float *v = whole.of(accumulated(coding, at, count), count);
        for (int64_t word = 0; word < (count + 31) / 32; ++word) {
            coding.payload[at / 32 + word] = signs_of(v + 32 * word);
            if (two) negatives[chunk] += __builtin_popcount(coding.payload[at / 32 + word]);
        }
        if (!two) {
            upper[chunk] = chunk_sum(v, [](float x) { return bits<float>(key_of(x)); });
            return;
        }
        upper[chunk] = chunk_sum(v, [](float x) { return bits<float>(bits<uint32_t>(x) & ~uint32_t(bits<int32_t>(x) >> 31)); });
        lower[chunk] = chunk_sum(v, [](float x) { return bits<float>(bits<uint32_t>(x) & uint32_t(bits<int32_t>(x) >> 31)); });
    });
    float *means = reinterpret_cast<float *>(coding.payload + words);
    if (two) {
        int64_t below = 0;
        for (int32_t each : negatives) below += each;
        means[0] = n > below ? float(total(upper) / double(n - below)) : 0.0f;
        means[1] = below ? float(total(lower) / double(below)) : 0.0f;
    } else {
        means[0] = float(total(upper) / double(n));
    }
    if (!coding.residual) return;
    each_chunk(coding, [&](int64_t, int64_t at, int count) {
        const Means sent(coding, coding.payload);
        float *__restrict v = coding.residual + at;
        for (int i = 0; i < count; ++i) v[i] = left_of(v[i], sent.of(bits<uint32_t>(v[i]) >> 31));
    });
}

inline void add_signs(const Coding &coding, const uint32_t *payload, int64_t at, int count) {
    const Means means(coding, payload);
    for (int first = 0; first < count; first += 32) {
        const uint32_t word = payload[(at + first) / 32];
        float *__restrict out = coding.out + at + first;
        const int here = std::min(32, count - first);
        for (int i = 0; i < here; ++i) out[i] += means.of(word >> i & 1);
    }
}

template <bool RANDOM>
void encode_bytes(const Coding &coding) {
    const int64_t n = coding.elements;
    const auto bytes = reinterpret_cast<int8_t *>(coding.payload);
    const auto scales = reinterpret_cast<float *>(coding.payload + (n + 3) / 4);
    coding.payload[(n + 3) / 4 - 1] = 0;
    each_chunk(coding, [&](int64_t, int64_t begin, int size) {
        for (int64_t at = begin; at < begin + size; at += BUCKET) {
            const int count = int(std::min<int64_t>(BUCKET, n - at));
            const float *v = accumulated(coding, at, count);
            const uint32_t largest = largest_key(v, count);
            const Scale scale(largest);
            int8_t *__restrict q = bytes + at;
            scales[at / BUCKET] = scale.value;
            if (largest >= INFINITE) {
                std::fill(q, q + count, int8_t(0));
            } else if (RANDOM) {
                const uint32_t key = uint32_t(mixed(coding.seed, at / BUCKET));
                for (int i = 0; i < count; ++i) q[i] = int8_t(rounded_up_by(chance(key, i), product(v[i], scale.inverse)));
            } else {
                for (int i = 0; i < count; ++i) q[i] = int8_t(nearest(product(v[i], scale.inverse)));
            }
            if (!coding.residual) continue;
            float *__restrict residual = coding.residual + at;
            for (int i = 0; i < count; ++i) residual[i] = left_of(residual[i], product(float(q[i]), scale.value));
        }
    });
}

inline void add_bytes(const Coding &coding, const uint32_t *payload, int64_t at, int count) {
    const auto scales = reinterpret_cast<const float *>(payload + (coding.elements + 3) / 4);
    const auto q = reinterpret_cast<const int8_t *>(payload) + at;
    for (int first = 0; first < count; first += BUCKET) {
        const float scale = scales[(at + first) / BUCKET];
        float *__restrict out = coding.out + at + first;
        const int here = std::min(BUCKET, count - first);
        for (int i = 0; i < here; ++i) out[i] += product(float(q[first + i]), scale);
    }
}

template <bool BRAIN>
void narrow(const float *__restrict v, uint16_t *__restrict h, int count) {
    int i = 0;
#if defined(__F16C__)
    if (!BRAIN)
        for (; i + 8 <= count; i += 8)
            _mm_storeu_si128(reinterpret_cast<__m128i *>(h + i), _mm256_cvtps_ph(_mm256_loadu_ps(v + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; ++i) h[i] = BRAIN ? to_brain(v[i]) : to_half(v[i]);
}

template <bool BRAIN>
void widen(const uint16_t *__restrict h, float *__restrict v, int count) {
    int i = 0;
#if defined(__F16C__)
    if (!BRAIN)
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(v + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(h + i))));
#endif
    for (; i < count; ++i) v[i] = BRAIN ? from_brain(h[i]) : from_half(h[i]);
}

template <bool BRAIN>
void encode_halves(const Coding &coding) {
    coding.payload[(coding.elements + 1) / 2 - 1] = 0;
    const auto halves = reinterpret_cast<uint16_t *>(coding.payload);
    each_chunk(coding, [&](int64_t, int64_t at, int count) {
        narrow<BRAIN>(accumulated(coding, at, count), halves + at, count);
        if (!coding.residual) return;
        alignas(64) float decoded[CHUNK];
        widen<BRAIN>(halves + at, decoded, count);
        float *residual = coding.residual + at;
        for (int i = 0; i < count; ++i) residual[i] = left_of(residual[i], decoded[i]);
    });
}

template <bool BRAIN>
void add_halves(const Coding &coding, const uint32_t *payload, int64_t at, int count) {
    alignas(64) float decoded[CHUNK];
    widen<BRAIN>(reinterpret_cast<const uint16_t *>(payload) + at, decoded, count);
    float *__restrict out = coding.out + at;
    for (int i = 0; i < count; ++i) out[i] += decoded[i];
}

// Adds the pieces chunk by chunk.
template <class Add>
void decode_dense(const Coding &coding, const Add &add) {
    each_chunk(coding, [&](int64_t, int64_t at, int count) {
        for (int piece = 0; piece < coding.pieces; ++piece) add(coding, coding.payload + piece * coding.words, at, count);
    });
}

}  // namespace treadle
