// Payloads of compressed gradients: their bits, and the arithmetic that all encoders and decoders share.
//
// A payload is a row of sections of whole 4-byte words, little-endian; bits that fill up a section are 0. n elements, of
// which sparse payloads hold k.
//   randomk        k float32. Element j is the one at random_index(seed, n, k, j): one of each of k strata.
//   topk, dgc      k float32 by ascending index; then indices: k times `low` bits, the low bits of the index of each; then
//                  k + (n >> low) + 1 bits, of which bit (index >> low) + j is set for the j-th index, the others not
//                  (Elias, Efficient Storage and Retrieval by Content and Address of Static Files). low is the floor of
//                  log2(n / k).
//   efsignsgd      n sign bits of IEEE floats (1: negative), the first in the lowest bit; float32 mean of |v|.
//   onebit         n sign bits; float32 mean of the elements with sign bit 0, then of those with 1; 0 of none.
//   qsgd, int8     n signed bytes q in [-127, 127]; then a float32 scale for every 512 elements, the largest |v| of them
//                  / 127. v is q * scale. int8 rounds to nearest, ties to even; qsgd rounds up with the probability of
//                  its fraction, by chance(seed, bucket, index). A largest |v| below 2^-100 counts as 0.
//   fp16, bf16     n numbers of 16 bits, rounded to nearest, ties to even; beyond their range infinite.
//
// topk takes the k of the largest |v|, of equal ones those of the lowest index. dgc estimates a threshold from a sample.
// If at least k elements reach it, it takes what topk takes; else those that do, and the first of the others.
//
// What is not finite: NaN counts as larger than infinity. Sparse payloads and 16 bits carry it as it is, a scale or mean
// with it is not finite either, and then all that it scales decodes to what is not finite. A residual that would not be
// finite becomes 0, so that what overflowed once is lost and not kept.
//
// Sums of |v| are the same on any machine with any number of threads: chunks of 4,096 elements, in each 256 lanes that add
// up every 256th element in float32 and are halved until one is left; chunks are added up alike in float64.
#pragma once
#include "treadle_reduce.h"

namespace treadle {

enum Algorithm : int32_t { RANDOMK, TOPK, DGC, EFSIGNSGD, ONEBIT, QSGD, INT8, FP16, BF16 };

constexpr int CHUNK = 4096, LANES = 256, BUCKET = 512;
constexpr int64_t SAMPLES = 16384;  // of dgc, and of topk where it looks for a start
constexpr uint32_t INFINITE = 0x7f800000u, TINY = 27u << 23;

// A call. Encoding reads `values`, adds up and leaves the `residual` unless it is null, and writes `payload`. Decoding adds
// `pieces` payloads of `words` words to `out`, or, if it `clears`, sets to 0 what a sparse payload holds.
struct Coding {
    int32_t algorithm, pieces, clears;
    int32_t threads;          // of a CPU
    int64_t elements, kept, words;
    uint64_t seed;
    const float *values;
    float *residual;
    uint32_t *payload;
    float *out;
    void *scratch, *stream;   // of a GPU
    uint64_t order;           // of fibers: a seed
    int32_t device;
};

// Single operations, which no compiler joins into one with a rounding less.
#ifdef __CUDA_ARCH__
TREADLE_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
TREADLE_DEVICE float sum(float a, float b) { return __fadd_rn(a, b); }
TREADLE_DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
#else
TREADLE_DEVICE float product(float a, float b) { return a * b; }
TREADLE_DEVICE float sum(float a, float b) { return a + b; }
TREADLE_DEVICE float quotient(float a, float b) { return a / b; }
#endif

// Magnitudes as integers of the same order.
TREADLE_DEVICE uint32_t key_of(float v) { return bits<uint32_t>(v) & 0x7fffffffu; }

// What of `v` is left when `decoded` is sent.
TREADLE_DEVICE float left_of(float v, float decoded) {
    const float left = sum(v, -decoded);
    return key_of(left) < INFINITE ? left : 0.0f;
}

// splitmix64 (Steele et al., Fast splittable pseudorandom number generators)
TREADLE_DEVICE uint64_t mixed(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// In [0, 1), of element `at` of a bucket whose key is mixed(seed, bucket).
TREADLE_DEVICE float chance(uint32_t key, uint32_t at) {
    uint32_t z = key + at * 0x9e3779b9u;
    z = (z ^ (z >> 16)) * 0x7feb352du;
    z = (z ^ (z >> 15)) * 0x846ca68bu;
    return float((z ^ (z >> 16)) >> 8) * 0x1p-24f;
}

// Element j of k that are distinct and ascending: stratum j of n begins at j * n / k.
TREADLE_DEVICE int64_t random_index(uint64_t seed, int64_t n, int64_t k, int64_t j) {
    const int64_t first = j * n / k, width = (j + 1) * n / k - first;
    return first + int64_t((mixed(seed, j) >> 32) * uint64_t(width) >> 32);
}

// The rank, from 1, among the samples of the threshold that at least `kept` of all elements reach, but for rare luck; 0:
// there is no use in sampling.
TREADLE_BOTH inline int64_t sample_rank(int64_t elements, int64_t kept) {
    if (elements <= SAMPLES) return 0;
    const double mean = double(SAMPLES) * double(kept) / double(elements);
    const int64_t rank = int64_t(mean + 3 * sqrt(mean)) + 2;
    return rank < SAMPLES ? rank : 0;
}

// Where the sections of a sparse payload begin, in words.
struct Indices {
    int low;
    int64_t lows, highs, end, elements, kept;

    TREADLE_BOTH Indices(int64_t elements, int64_t kept) : low(0), elements(elements), kept(kept) {
        while (kept << (low + 1) <= elements) ++low;
        lows = kept;
        highs = lows + (kept * low + 31) / 32;
        end = highs + (kept + (elements >> low) + 1 + 31) / 32;
    }

    // Reads the low bits of index j; `highs` follows, so that a second word is always there.
    TREADLE_DEVICE int64_t low_of(const uint32_t *payload, int64_t j) const {
        if (!low) return 0;
        const uint32_t *word = payload + lows + j * low / 32;
        const uint64_t both = word[0] | uint64_t(word[1]) << 32;
        return int64_t(both >> (j * low % 32) & ((uint64_t(1) << low) - 1));
    }

    // `work(j, index)` of the indices whose ones are in a word of `highs`, before which there are `j` ones. Ends early with
    // false where `work` does. No index of a damaged payload is out of range.
    template <class Work>
    TREADLE_DEVICE bool each(const uint32_t *payload, int64_t word, int64_t j, Work work) const {
        const uint32_t ones = payload[highs + word];
        for (int bit = 0; bit < 32 && ones >> bit; ++bit) {
            if (!(ones >> bit & 1)) continue;
            const int64_t index = (word * 32 + bit - j) << low | low_of(payload, j);
            if (j >= kept || index >= elements || !work(j, index)) return false;
            ++j;
        }
        return true;
    }
};

// How a bucket is scaled, by the largest key in it. No bucket that is not finite has bytes other than 0.
struct Scale {
    float value, inverse;

    TREADLE_DEVICE explicit Scale(uint32_t key) : value(0), inverse(0) {
        if (key < TINY) return;
        value = quotient(bits<float>(key), 127.0f);
        if (key < INFINITE) inverse = quotient(127.0f, bits<float>(key));
    }
};

TREADLE_DEVICE int nearest(float x) { return int(bits<uint32_t>(sum(x, 0x1.8p23f)) - 0x4b400000u); }
TREADLE_DEVICE int rounded_up_by(float chance, float x) {
    const float raised = sum(sum(x, 128.0f), chance);
    const int whole = int(raised) - 128;
    return whole > 127 ? 127 : whole;
}

// What a sign decodes to: efsignsgd has one mean for both, onebit one for each.
struct Means {
    uint32_t positive, differing;

    TREADLE_DEVICE Means(const Coding &coding, const uint32_t *payload) {
        const uint32_t *means = payload + (coding.elements + 31) / 32;
        positive = means[0];
        differing = positive ^ (coding.algorithm == ONEBIT ? means[1] : means[0] ^ 0x80000000u);
    }
    TREADLE_DEVICE float of(uint32_t sign) const { return bits<float>(positive ^ (differing & (0u - sign))); }
};

#ifdef __CUDACC__
TREADLE_DEVICE uint16_t to_half(float v) { return __half_as_ushort(__float2half_rn(v)); }
TREADLE_DEVICE float from_half(uint16_t h) { return __half2float(__ushort_as_half(h)); }
TREADLE_DEVICE uint16_t to_brain(float v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
#else
TREADLE_DEVICE uint16_t to_half(float v) { return Half::narrow(v); }
TREADLE_DEVICE float from_half(uint16_t h) { return Half::widen(h); }
TREADLE_DEVICE uint16_t to_brain(float v) { return Brain::narrow(v); }
#endif
TREADLE_DEVICE float from_brain(uint16_t h) { return bits<float>(uint32_t(h) << 16); }

}  // namespace treadle
