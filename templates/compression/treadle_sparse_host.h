// The elements of largest magnitude, and random ones, on CPUs.
#pragma once
#include <atomic>

#include "treadle_compression_host.h"

namespace treadle {

// Key and index of an element, which are then looked at without going through the memory of all.
struct Candidate {
    uint32_t key, index;
};
using Lists = std::vector<std::vector<Candidate>>;  // by ascending index, for each part of the elements

// Adds values and residual where `adds`, and gathers who has a key of at least `threshold`, which is above 0.
inline Lists candidates(const Coding &coding, uint32_t threshold, bool adds) {
    Lists lists(parts_of(coding));
    const float *stored = coding.residual ? coding.residual : coding.values;
    parallel(int(lists.size()), chunks_of(coding), [&](int part, int64_t begin, int64_t end) {
        std::vector<Candidate> list(1024);
        size_t found = 0;
        for (int64_t at = begin * CHUNK; at < std::min(end * CHUNK, coding.elements); at += 32) {
            const int count = int(std::min<int64_t>(32, coding.elements - at));
            const float *v = adds ? accumulated(coding, at, count) : stored + at;
            float below[32] = {};
            for (int i = 0; i < count; ++i) below[i] = bits<float>(threshold - 1 - key_of(v[i]));
            if (found + 32 > list.size()) list.resize(2 * list.size());
            for (uint32_t word = signs_of(below); word; word &= word - 1) {
                const int i = __builtin_ctz(word);
                list[found++] = {key_of(v[i]), uint32_t(at + i)};
            }
        }
        list.resize(found);
        lists[part] = std::move(list);
    });
    return lists;
}

inline int64_t count_of(const Lists &lists) {
    int64_t count = 0;
    for (const auto &list : lists) count += int64_t(list.size());
    return count;
}

// The key of the element of rank `rank`, from 1; `rank` becomes its rank among those of this key.
inline uint32_t key_of_rank(const Lists &lists, int64_t &rank) {
    constexpr int BINS = 1 << 11;
    uint32_t prefix = 0;
    for (int shift : {20, 9, 0}) {
        const int width = shift ? 11 : 9;
        std::vector<int64_t> histogram(lists.size() * BINS);
        parallel(int(lists.size()), int64_t(lists.size()), [&](int part, int64_t, int64_t) {
            int64_t *bins = histogram.data() + int64_t(part) * BINS;
            for (const Candidate &each : lists[part])
                if (each.key >> (shift + width) == prefix) ++bins[each.key >> shift & ((1u << width) - 1)];
        });
        int64_t here = 0;
        int bin = 1 << width;
        while (bin--) {
            here = 0;
            for (size_t part = 0; part < lists.size(); ++part) here += histogram[part * BINS + bin];
            if (rank <= here) break;
            rank -= here;
        }
        prefix = prefix << width | uint32_t(bin);
    }
    return prefix;
}

// A key that a few more than `kept` elements reach, by a sample; at least 1.
inline uint32_t sampled_threshold(const Coding &coding) {
    const int64_t rank = sample_rank(coding.elements, coding.kept);
    if (!rank) return 1;
    std::vector<uint32_t> keys(SAMPLES);
    for (int64_t j = 0; j < SAMPLES; ++j) {
        const int64_t index = random_index(coding.seed, coding.elements, SAMPLES, j);
        keys[j] = key_of(coding.residual ? coding.residual[index] + coding.values[index] : coding.values[index]);
    }
    std::nth_element(keys.begin(), keys.begin() + (rank - 1), keys.end(), std::greater<>());
    return std::max(1u, keys[rank - 1]);
}

// The ascending indices of an encoding.
inline std::vector<uint32_t> chosen(const Coding &coding) {
    const uint32_t threshold = sampled_threshold(coding);
    Lists lists = candidates(coding, threshold, true);
    int64_t count = count_of(lists);
    if (count < coding.kept && threshold > 1 && coding.algorithm == TOPK) {
        lists = candidates(coding, 1, false);
        count = count_of(lists);
    }
    std::vector<uint32_t> indices;
    indices.reserve(coding.kept);
    if (count >= coding.kept) {
        int64_t equal = coding.kept;
        const uint32_t least = key_of_rank(lists, equal);
        for (const auto &list : lists)
            for (const Candidate &each : list)
                if (each.key > least || (each.key == least && equal-- > 0)) indices.push_back(each.index);
        return indices;
    }
    uint32_t next = 0;
    int64_t missing = coding.kept - count;
    const auto fill = [&](int64_t end) {
        for (; next < end && missing; --missing) indices.push_back(next++);
    };
    for (const auto &list : lists)
        for (const Candidate &each : list) {
            fill(each.index);
            indices.push_back(each.index);
            next = each.index + 1;
        }
    fill(coding.elements);
    return indices;
}

// Puts the value of an element into the payload, which leaves nothing of it. Whether it is finite.
inline bool take(const Coding &coding, int64_t j, int64_t index) {
    coding.payload[j] = bits<uint32_t>(coding.residual ? coding.residual[index] : coding.values[index]);
    if (coding.residual) coding.residual[index] = 0;
    return (coding.payload[j] & 0x7fffffffu) < INFINITE;
}

// Leaves nothing of what is not finite and was not taken.
inline void forget_infinite(const Coding &coding) {
    each_chunk(coding, [&](int64_t, int64_t at, int count) {
        for (int i = 0; i < count; ++i) coding.residual[at + i] = left_of(coding.residual[at + i], 0.0f);
    });
}

inline void encode_sparse(const Coding &coding) {
    const Indices layout(coding.elements, coding.kept);
    const std::vector<uint32_t> indices = chosen(coding);
    std::fill(coding.payload + layout.lows, coding.payload + layout.end, 0);
    const uint64_t mask = (uint64_t(1) << layout.low) - 1;
    bool finite = true;
    for (int64_t j = 0; j < coding.kept; ++j) {
        const int64_t index = indices[j], bit = j * layout.low, high = (index >> layout.low) + j;
        finite &= take(coding, j, index);
        coding.payload[layout.highs + high / 32] |= 1u << high % 32;
        if (!layout.low) continue;
        const uint64_t low = (uint64_t(index) & mask) << bit % 32;
        coding.payload[layout.lows + bit / 32] |= uint32_t(low);
        if (low >> 32) coding.payload[layout.lows + bit / 32 + 1] |= uint32_t(low >> 32);
    }
    if (coding.residual && !finite) forget_infinite(coding);
}

// `work(j, index)` of the indices of a payload in [begin, end).
template <class Work>
void each_index(const Indices &layout, const uint32_t *payload, int64_t begin, int64_t end, const Work &work) {
    const int64_t words = layout.end - layout.highs, bucket = begin >> layout.low;
    int64_t word = 0, j = 0;
    for (; word < words; ++word) {  // up to the word with the zero that ends the bucket before the first
        const int ones = __builtin_popcount(payload[layout.highs + word]);
        if ((word + 1) * 32 - j - ones >= bucket) break;
        j += ones;
    }
    for (; word < words; ++word) {
        const bool on = layout.each(payload, word, j, [&](int64_t each, int64_t index) {
            if (index >= end) return false;
            if (index >= begin) work(each, index);
            return true;
        });
        if (!on) return;
        j += __builtin_popcount(payload[layout.highs + word]);
    }
}

inline void decode_sparse(const Coding &coding) {
    const Indices layout(coding.elements, coding.kept);
    parallel(parts_of(coding), coding.elements, [&](int, int64_t begin, int64_t end) {
        for (int piece = 0; piece < coding.pieces; ++piece) {
            const uint32_t *payload = coding.payload + piece * coding.words;
            each_index(layout, payload, begin, end, [&](int64_t j, int64_t index) {
                coding.out[index] = coding.clears ? 0.0f : coding.out[index] + bits<float>(payload[j]);
            });
        }
    });
}

inline void encode_random(const Coding &coding) {
    const int64_t n = coding.elements, k = coding.kept;
    std::atomic<bool> finite{true};
    if (coding.residual)
        each_chunk(coding, [&](int64_t, int64_t at, int count) {
            if (largest_key(accumulated(coding, at, count), count) >= INFINITE) finite = false;
        });
    parallel(parts_of(coding), k, [&](int, int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) take(coding, j, random_index(coding.seed, n, k, j));
    });
    if (!finite) forget_infinite(coding);
}

inline void decode_random(const Coding &coding) {
    parallel(parts_of(coding), coding.kept, [&](int, int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
            float &out = coding.out[random_index(coding.seed, coding.elements, coding.kept, j)];
            for (int piece = 0; piece < coding.pieces; ++piece) out += bits<float>(coding.payload[piece * coding.words + j]);
            if (coding.clears) out = 0;
        }
    });
}

}  // namespace treadle
