// Deals the non-zero units of a gradient out to parts, on CPUs.
//
// By hierarchical hashing (Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training, algorithm 3.2):
// h0 names the part, the other functions slots in it, of which compare-and-swap takes the first free one; a counter of the
// part deals out serial words where none is free. A word is a unit + 1, and 0 if it is free.
// By counting: each thread lists its units and counts those of each part; then they are written in their order.
#pragma once
#include <numeric>

#include "treadle_sparse_host.h"

namespace treadle {

// A call. The units are those of `indices`, all distinct, or else the non-zero rows of `values`. `taken` are serial words,
// or the units of each thread; more than there is room for means that the call has to be made again with more of it.
struct Partition {
    const uint32_t *values, *indices;
    int64_t count, width;       // of indices or rows; of a row
    uint32_t *memory;           // of parts, each `slots` then `serial` words; or of threads, each `slots` words
    int64_t *taken, *counts;    // by part or thread; units, by part
    const uint32_t *seeds;
    uint32_t *out;
    int64_t slots, serial;
    int32_t parts, functions, threads, counting;
};

// `work(units, count)` for the units of [begin, end), at most BATCH at a time, in ascending order.
template <class Work>
void each_batch(const Partition &call, int64_t begin, int64_t end, const Work &work) {
    if (call.indices) {
        for (int64_t at = begin; at < end; at += BATCH)
            work(call.indices + at, int(std::min<int64_t>(BATCH, end - at)));
        return;
    }
    uint32_t units[BATCH];
    int count = 0;
    int64_t row = begin;
    const auto room_for = [&](int more) {
        if (count + more <= BATCH) return;
        work(units, count);
        count = 0;
    };
    if (call.width == 1) {
        for (; row + LANES <= end; row += LANES) {
            room_for(LANES);
            count += append(units + count, counted_from(uint32_t(row)), having(load(call.values + row), MAGNITUDE));
        }
    }
    for (; row < end; ++row) {
        room_for(1);
        units[count] = uint32_t(row);
        count += is_filled(call.values + row * call.width, call.width);
    }
    work(units, count);
}

// Calls write memory that could be that of anything, so what loops need lies in locals.
inline void parts_of(const Partition &call, const uint32_t *units, int count, uint32_t *parts) {
    const uint32_t seed = call.seeds[0], all = uint32_t(call.parts);
    for (int i = 0; i < count; ++i) parts[i] = ranged(units[i], seed, all);
}

// Takes a word if it is free. Without compare-and-swap two threads could both find it free, and one unit would be lost.
template <bool SHARED>
bool claim(uint32_t *word, uint32_t value) {
    const uint32_t found = __atomic_load_n(word, __ATOMIC_RELAXED);
    if (SHARED) {
        uint32_t free = 0;
        return !found && __atomic_compare_exchange_n(word, &free, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    *word = found ? found : value;
    return !found;
}

// Inserts units in rounds: each function names the slots of all that are left, which are fetched at once.
template <bool SHARED>
void insert(const Partition &call, const uint32_t *units, int count, int64_t *counts) {
    uint32_t left[BATCH], parts[BATCH];
    uint32_t *words[BATCH];
    std::copy(units, units + count, left);
    parts_of(call, left, count, parts);
    for (int i = 0; i < count; ++i) ++counts[parts[i]];
    const int64_t stride = call.slots + call.serial;
    uint32_t *const memory = call.memory;
    for (int f = 1; f <= call.functions && count; ++f) {
        const uint32_t seed = call.seeds[f], slots = uint32_t(call.slots);
        for (int i = 0; i < count; ++i) words[i] = memory + parts[i] * stride + ranged(left[i], seed, slots);
        for (int i = 0; i < count; ++i) __builtin_prefetch(words[i], 1);
        int behind = 0;
        for (int i = 0; i < count; ++i) {
            const uint32_t unit = left[i], part = parts[i];
            left[behind] = unit;
            parts[behind] = part;
            behind += !claim<SHARED>(words[i], unit + 1);
        }
        count = behind;
    }
    for (int i = 0; i < count; ++i) {
        int64_t *taken = call.taken + parts[i];
        const int64_t at = SHARED ? __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) : (*taken)++;
        if (at < call.serial) memory[parts[i] * stride + call.slots + at] = left[i] + 1;
    }
}

inline int team(const Partition &call) {
    return threads_for(call.indices ? call.count : call.count * call.width, call.threads);
}

inline void insert_all(const Partition &call) {
    const int threads = team(call);
    std::vector<std::vector<int64_t>> counts(threads, std::vector<int64_t>(call.parts));
    std::fill(call.taken, call.taken + call.parts, 0);
    parallel(threads, call.count, [&](int thread, int64_t begin, int64_t end) {
        each_batch(call, begin, end, [&](const uint32_t *units, int count) {
            if (threads > 1) {
                insert<true>(call, units, count, counts[thread].data());
            } else {
                insert<false>(call, units, count, counts[thread].data());
            }
        });
    });
    std::fill(call.counts, call.counts + call.parts, 0);
    for (const auto &each : counts)
        for (int part = 0; part < call.parts; ++part) call.counts[part] += each[part];
}

constexpr int64_t CHUNK = 4096;  // words

// Writes the units in the order of their words, and frees these.
inline void extract(const Partition &call) {
    const int64_t words = call.parts * (call.slots + call.serial), chunks = (words + CHUNK - 1) / CHUNK;
    std::vector<int64_t> first(chunks + 1);
    const int threads = threads_for(words, call.threads);
    const auto each_chunk = [&](const auto &work) {
        parallel(threads, chunks, [&](int, int64_t begin, int64_t end) {
            for (int64_t chunk = begin; chunk < end; ++chunk)
                work(chunk, chunk * CHUNK, std::min(words, (chunk + 1) * CHUNK));
        });
    };
    each_chunk([&](int64_t chunk, int64_t begin, int64_t end) {
        int64_t count = 0;
        for (int64_t at = begin; at < end; ++at) count += call.memory[at] != 0;
        first[chunk + 1] = count;
    });
    for (int64_t chunk = 0; chunk < chunks; ++chunk) first[chunk + 1] += first[chunk];
    if (first[chunks] != std::accumulate(call.counts, call.counts + call.parts, int64_t(0)))
        throw std::runtime_error("found an index below 0, expected units from 0");
    each_chunk([&](int64_t chunk, int64_t begin, int64_t end) {
        uint32_t *out = call.out + first[chunk];
        int64_t at = begin;
        for (; at + LANES <= end; at += LANES) {
            const Words read = load(call.memory + at);
            out += append(out, read - 1, having(read, ~0u));
        }
        for (; at < end; ++at)
            if (call.memory[at]) *out++ = call.memory[at] - 1;
        std::fill(call.memory + begin, call.memory + end, 0);
    });
}

// Lists and counts: `taken` units in the memory of each thread; `counts` of each thread and part.
inline void list_all(const Partition &call) {
    std::fill(call.taken, call.taken + call.threads, 0);
    std::fill(call.counts, call.counts + int64_t(call.threads) * call.parts, 0);
    parallel(team(call), call.count, [&](int thread, int64_t begin, int64_t end) {
        uint32_t *list = call.memory + thread * call.slots;
        std::vector<int64_t> counts(2 * call.parts);  // of even and odd places: additions to one wait for each other
        int64_t *const even = counts.data(), *const odd = even + call.parts;
        int64_t taken = 0;
        uint32_t all = 0;
        each_batch(call, begin, end, [&](const uint32_t *units, int count) {
            uint32_t parts[BATCH];
            parts_of(call, units, count, parts);
            for (int i = 0; i < count; ++i) all |= units[i];
            for (int i = 0; i + 1 < count; i += 2) {
                ++even[parts[i]];
                ++odd[parts[i + 1]];
            }
            if (count % 2) ++even[parts[count - 1]];
            if (taken + count <= call.slots) std::copy(units, units + count, list + taken);
            taken += count;
        });
        if (int32_t(all) < 0) throw std::runtime_error("found an index below 0, expected units from 0");
        call.taken[thread] = taken;
        for (int part = 0; part < call.parts; ++part)
            call.counts[int64_t(thread) * call.parts + part] = even[part] + odd[part];
    });
}

inline void deal_out(const Partition &call) {
    std::vector<int64_t> next(int64_t(call.threads) * call.parts);
    int64_t before = 0;
    for (int part = 0; part < call.parts; ++part) {
        for (int64_t thread = 0; thread < call.threads; ++thread) {
            next[thread * call.parts + part] = before;
            before += call.counts[thread * call.parts + part];
        }
    }
    parallel(threads_for(before, call.threads), call.threads, [&](int, int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread) {
            const uint32_t *list = call.memory + thread * call.slots;
            const int64_t taken = call.taken[thread];
            int64_t *const places = next.data() + thread * call.parts;
            uint32_t *const out = call.out;
            for (int64_t at = 0; at < taken; at += BATCH) {
                const int count = int(std::min<int64_t>(BATCH, taken - at));
                uint32_t parts[BATCH];
                parts_of(call, list + at, count, parts);
                for (int i = 0; i < count; ++i) out[places[parts[i]]++] = list[at + i];
            }
        }
    });
}

}  // namespace treadle
