// Encoders and decoders of dense payloads on GPUs. A kernel is launched after the other; what must be known in between
// lies in the scratch memory of the call.
#pragma once
#include "treadle_compression.h"

namespace treadle {

constexpr int BINS = 1 << 11;

// What selecting elements has found so far.
struct Selection {
    uint32_t prefix;     // the key's bits above those that are looked at
    uint32_t sampled;    // the threshold of the sample
    uint32_t low, high;  // taken are keys above `high`, and the first `take` of those from `low` to `high`
    int64_t rank, take;
    uint32_t infinite;   // something is not finite
    uint32_t bins[BINS];
};

// The parameters of a launch. `first` and `second` are numbers of each chunk.
struct Task : Coding {
    Abort abort;
    int64_t blocks, chunks, sample_rank;
    Selection *selection;
    float *first, *second;
    int64_t *greater, *equal;
    int32_t shift, sampling, piece;
};
using CompressionKernel = void (*)(TREADLE_TASK);

#ifdef __CUDACC__
TREADLE_DEVICE void add_to(uint32_t *to, uint32_t by) { atomicAdd(to, by); }
TREADLE_DEVICE void raise_to(uint32_t *to, uint32_t by) { atomicMax(to, by); }
#else
TREADLE_DEVICE void add_to(uint32_t *to, uint32_t by) { *to += by; }
TREADLE_DEVICE void raise_to(uint32_t *to, uint32_t by) { *to = *to > by ? *to : by; }
#endif

// `work(i)` for all of [0, count), dealt out to the threads of all blocks.
template <class Work>
TREADLE_DEVICE void each_of(const Task &task, int64_t count, Work work) {
    for (int64_t i = int64_t(block_index()) * threads() + thread(); i < count; i += task.blocks * threads()) work(i);
}

// `work(i)` for all of [0, count), dealt out to the threads of this block.
template <class Work>
TREADLE_DEVICE void each_here(int count, Work work) {
    for (int i = thread(); i < count; i += threads()) work(i);
}

TREADLE_DEVICE float value_of(const Task &task, int64_t i) { return task.residual ? task.residual[i] : task.values[i]; }

// The residual takes the values in, if there is one.
TREADLE_DEVICE float accumulated(const Task &task, int64_t i) {
    if (!task.residual) return task.values[i];
    return task.residual[i] = sum(task.residual[i], task.values[i]);
}

// Adds up LANES numbers that all threads see; the result is in the first.
template <class T>
TREADLE_DEVICE void halve(T *lane) {
    for (int half = LANES / 2; half; half /= 2) {
        barrier();
        each_here(half, [&](int i) { lane[i] += lane[i + half]; });
    }
    barrier();
}

struct SignChunk {
    float first[LANES], second[LANES];
    uint8_t negative[CHUNK];
    uint32_t negatives;
};

// Adds up a chunk and writes its sign bits.
TREADLE_KERNEL sum_signs(TREADLE_TASK task) {
    TREADLE_SHARED(SignChunk, shared);
    for (int64_t chunk = block_index(); chunk < task.chunks; chunk += task.blocks) {
        if (thread() == 0) shared.negatives = 0;
        each_here(LANES, [&](int lane) {
            float first = 0, second = 0;
            for (int at = lane; at < CHUNK; at += LANES) {
                const int64_t i = chunk * CHUNK + at;
                const float v = i < task.elements ? accumulated(task, i) : 0.0f;
                const uint32_t negative = bits<uint32_t>(v) >> 31;
                shared.negative[at] = uint8_t(negative);
                if (task.algorithm == EFSIGNSGD) {
                    first = sum(first, bits<float>(key_of(v)));
                } else {
                    first = sum(first, negative ? 0.0f : v);
                    second = sum(second, negative ? v : 0.0f);
                }
            }
            shared.first[lane] = first;
            shared.second[lane] = second;
        });
        halve(shared.first);
        halve(shared.second);
        each_here(CHUNK / 32, [&](int word) {
            uint32_t signs = 0;
            for (int bit = 0; bit < 32; ++bit) signs |= uint32_t(shared.negative[word * 32 + bit]) << bit;
            if (chunk * CHUNK + word * 32 < task.elements) task.payload[chunk * (CHUNK / 32) + word] = signs;
            add_to(&shared.negatives, ones_of(signs));
        });
        barrier();
        if (thread() == 0) {
            task.first[chunk] = shared.first[0];
            task.second[chunk] = shared.second[0];
            task.greater[chunk] = shared.negatives;
        }
        barrier();
    }
}

struct SignTotals {
    double first[LANES], second[LANES];
    int64_t negatives[LANES];
};

// By one block: the means of all chunks.
TREADLE_KERNEL mean_signs(TREADLE_TASK task) {
    TREADLE_SHARED(SignTotals, shared);
    each_here(LANES, [&](int lane) {
        double first = 0, second = 0;
        int64_t negatives = 0;
        for (int64_t chunk = lane; chunk < task.chunks; chunk += LANES) {
            first += double(task.first[chunk]);
            second += double(task.second[chunk]);
            negatives += task.greater[chunk];
        }
        shared.first[lane] = first;
        shared.second[lane] = second;
        shared.negatives[lane] = negatives;
    });
    halve(shared.first);
    halve(shared.second);
    halve(shared.negatives);
    if (thread()) return;
    float *means = reinterpret_cast<float *>(task.payload + (task.elements + 31) / 32);
    const int64_t below = shared.negatives[0], all = task.elements;
    if (task.algorithm == EFSIGNSGD) {
        means[0] = float(shared.first[0] / double(all));
    } else {
        means[0] = all > below ? float(shared.first[0] / double(all - below)) : 0.0f;
        means[1] = below ? float(shared.second[0] / double(below)) : 0.0f;
    }
}

TREADLE_KERNEL subtract_signs(TREADLE_TASK task) {
    const Means means(task, task.payload);
    each_of(task, task.elements, [&](int64_t i) {
        task.residual[i] = left_of(task.residual[i], means.of(bits<uint32_t>(task.residual[i]) >> 31));
    });
}

// A block takes a bucket, and clears the bytes behind the last element.
TREADLE_KERNEL encode_bytes(TREADLE_TASK task) {
    TREADLE_SHARED(uint32_t, largest);
    const auto q = reinterpret_cast<int8_t *>(task.payload);
    const auto scales = reinterpret_cast<float *>(task.payload + (task.elements + 3) / 4);
    for (int64_t bucket = block_index(); bucket * BUCKET < task.elements; bucket += task.blocks) {
        const int64_t begin = bucket * BUCKET, left = task.elements - begin;
        const int count = left < BUCKET ? int(left) : BUCKET;
        if (thread() == 0) largest = 0;
        barrier();
        uint32_t mine = 0;
        each_here(count, [&](int i) {
            const uint32_t key = key_of(accumulated(task, begin + i));
            mine = mine > key ? mine : key;
        });
        raise_to(&largest, mine);
        barrier();
        const bool finite = largest < INFINITE;
        const Scale scale(largest);
        const uint32_t key = uint32_t(mixed(task.seed, bucket));
        each_here((count + 3) / 4 * 4, [&](int i) {
            int whole = 0;
            if (i < count && finite) {
                const float x = product(value_of(task, begin + i), scale.inverse);
                whole = task.algorithm == QSGD ? rounded_up_by(chance(key, i), x) : nearest(x);
            }
            q[begin + i] = int8_t(whole);
            if (i < count && task.residual)
                task.residual[begin + i] = left_of(task.residual[begin + i], product(float(whole), scale.value));
        });
        if (thread() == 0) scales[bucket] = scale.value;
        barrier();
    }
}

// A thread takes two elements, or one and zeros.
TREADLE_KERNEL encode_halves(TREADLE_TASK task) {
    each_of(task, (task.elements + 1) / 2, [&](int64_t pair) {
        uint32_t word = 0;
        for (int side = 0; side < 2 && 2 * pair + side < task.elements; ++side) {
            const int64_t i = 2 * pair + side;
            const float v = accumulated(task, i);
            const uint16_t half = task.algorithm == BF16 ? to_brain(v) : to_half(v);
            word |= uint32_t(half) << 16 * side;
            if (task.residual) task.residual[i] = left_of(v, task.algorithm == BF16 ? from_brain(half) : from_half(half));
        }
        task.payload[pair] = word;
    });
}

TREADLE_DEVICE float decoded(const Task &task, const uint32_t *payload, int64_t i) {
    switch (task.algorithm) {
        case EFSIGNSGD:
        case ONEBIT: return Means(task, payload).of(payload[i / 32] >> i % 32 & 1);
        case FP16: return from_half(reinterpret_cast<const uint16_t *>(payload)[i]);
        case BF16: return from_brain(reinterpret_cast<const uint16_t *>(payload)[i]);
        default: {
            const float q = float(reinterpret_cast<const int8_t *>(payload)[i]);
            return product(q, bits<float>(payload[(task.elements + 3) / 4 + i / BUCKET]));
        }
    }
}

TREADLE_KERNEL decode_dense(TREADLE_TASK task) {
    each_of(task, task.elements, [&](int64_t i) {
        float out = task.out[i];
        for (int piece = 0; piece < task.pieces; ++piece) out = sum(out, decoded(task, task.payload + piece * task.words, i));
        task.out[i] = out;
    });
}

}  // namespace treadle
