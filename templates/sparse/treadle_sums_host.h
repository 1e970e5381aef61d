// Sums of sparse gradients on CPUs: entries of equal index, contributions of workers, bitmaps, and dense gradients.
#pragma once
#include "treadle_sparse_host.h"

namespace treadle {

// The units of a part in ascending order: those of `list`, or `count` from `first` on. `rank` is that of any unit of the
// gradient within its part, null for a range.
struct Owned {
    const uint32_t *list, *rank;
    int64_t units, first, count;
    uint32_t seed;
    int32_t parts, part;

    uint32_t rank_of(uint32_t unit) const {
        if (list) {
            if (unit < units && ranged(unit, seed, uint32_t(parts)) == uint32_t(part)) return rank[unit];
        } else if (int64_t(unit) - first >= 0 && int64_t(unit) - first < count) {
            return uint32_t(unit - first);
        }
        throw std::runtime_error("found unit " + std::to_string(unit) + ", expected one of part " + std::to_string(part));
    }
};

// Lists the units of each hashed part in ascending order, and the rank of each unit in its part.
inline void own(int64_t units, int parts, uint32_t seed, uint32_t *list, uint32_t *rank, int64_t *counts, int threads) {
    const int team = threads_for(units, threads);
    std::vector<std::vector<int64_t>> next(team, std::vector<int64_t>(parts));
    parallel(team, units, [&](int thread, int64_t begin, int64_t end) {
        std::vector<int64_t> found(parts);
        for (int64_t unit = begin; unit < end; ++unit) ++found[ranged(uint32_t(unit), seed, uint32_t(parts))];
        next[thread] = found;
    });
    std::vector<int64_t> first(parts);
    int64_t before = 0;
    for (int part = 0; part < parts; ++part) {
        first[part] = before;
        for (auto &each : next) {
            const int64_t count = each[part];
            each[part] = before;
            before += count;
        }
        counts[part] = before - first[part];
    }
    parallel(team, units, [&](int thread, int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const uint32_t part = ranged(uint32_t(unit), seed, uint32_t(parts));
            const int64_t at = next[thread][part]++;
            list[at] = uint32_t(unit);
            rank[unit] = uint32_t(at - first[part]);
        }
    });
}

// Sets the bits of units, and keeps their ranks.
inline void mark(const Owned &owned, const uint32_t *units, int64_t count, uint32_t *bitmap, uint32_t *ranks, int threads) {
    const int team = threads_for(count, threads);
    parallel(team, count, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t rank = ranks[i] = owned.rank_of(units[i]), bit = 1u << rank % 32;
            if (team > 1) {
                __atomic_fetch_or(bitmap + rank / 32, bit, __ATOMIC_RELAXED);
            } else {
                bitmap[rank / 32] |= bit;
            }
        }
    });
}

// Ones before each word; returns those of all words. Throws for ones beyond `count` bits.
inline int64_t ones_before(const uint32_t *bitmap, int64_t count, uint32_t *before) {
    const int64_t words = (count + 31) / 32;
    int64_t ones = 0;
    for (int64_t word = 0; word < words; ++word) {
        before[word] = uint32_t(ones);
        ones += __builtin_popcount(bitmap[word]);
    }
    if (count % 32 && bitmap[words - 1] >> count % 32)
        throw std::runtime_error("found a bitmap with ones beyond its part of " + std::to_string(count) + " units");
    return ones;
}

// Adds rows to the sums of units of these ranks, which are distinct.
inline void add(const uint32_t *ranks, const float *values, int64_t count, int64_t width, const uint32_t *bitmap,
                const uint32_t *before, float *sums, int threads) {
    parallel(threads_for(count * width, threads), count, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t word = ranks[i] / 32, below = bitmap[word] & ((1u << ranks[i] % 32) - 1);
            add_row(sums + int64_t(before[word] + __builtin_popcount(below)) * width, values + i * width, width);
        }
    });
}

// The units whose bits are set.
inline void decode(const Owned &owned, const uint32_t *bitmap, const uint32_t *before, uint32_t *out, int threads) {
    const int64_t words = (owned.count + 31) / 32;
    parallel(threads_for(owned.count, threads), words, [&](int, int64_t begin, int64_t end) {
        if (begin == end) return;
        uint32_t *to = out + before[begin];
        for (int64_t word = begin; word < end; ++word) {
            for (uint32_t ones = bitmap[word]; ones; ones &= ones - 1) {
                const int64_t rank = word * 32 + __builtin_ctz(ones);
                *to++ = owned.list ? owned.list[rank] : uint32_t(owned.first + rank);
            }
        }
    });
}

inline uint32_t checked(uint32_t unit, int64_t units) {
    if (unit >= units)
        throw std::runtime_error("found unit " + std::to_string(unit) + ", expected less than " + std::to_string(units));
    return unit;
}

inline void gather(const float *values, int64_t units, int64_t width, const uint32_t *indices, int64_t count, float *out,
                   int threads) {
    constexpr int64_t AHEAD = 32;
    parallel(threads_for(count * width, threads), count, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            __builtin_prefetch(values + int64_t(indices[std::min(i + AHEAD, end - 1)]) * width);
            copy_row(out + i * width, values + int64_t(checked(indices[i], units)) * width, width);
        }
    });
}

// Rows times `scale` at their units, zeros elsewhere.
inline void write(const uint32_t *indices, const float *values, int64_t count, int64_t width, float scale, float *out,
                  int64_t units, int threads) {
    parallel(threads_for(units * width, threads), units * width,
             [&](int, int64_t begin, int64_t end) { std::fill(out + begin, out + end, 0.0f); });
    parallel(threads_for(count * width, threads), count, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            float *__restrict to = out + int64_t(checked(indices[i], units)) * width;
            const float *__restrict from = values + i * width;
            for (int64_t at = 0; at < width; ++at) to[at] = from[at] * scale;
        }
    });
}

// Numbers the distinct indices in the order in which they occur: `places` of all entries; returns how many there are.
// A thread looks after the indices that hash to it, in a table of its own.
inline int64_t number(const int64_t *indices, int64_t count, int64_t units, uint32_t *places, int threads) {
    constexpr uint32_t SEED = 0x9e3779b9u;
    const int team = threads_for(count, threads);
    const auto of_thread = [&](int64_t index) { return int(ranged(uint32_t(index), SEED, uint32_t(team))); };
    parallel(team, count, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            if (indices[i] < 0 || indices[i] >= units)
                throw std::runtime_error("found index " + std::to_string(indices[i]) + ", expected 0 to " +
                                         std::to_string(units - 1));
    });
    // First, the entry in which the index of each occurred first.
    parallel(team, team, [&](int thread, int64_t, int64_t) {
        int64_t own = count;
        if (team > 1) own = std::count_if(indices, indices + count, [&](int64_t index) { return of_thread(index) == thread; });
        int64_t size = 64;
        while (size < 2 * own) size *= 2;
        std::vector<uint64_t> table(size);  // an index + 1, then the entry
        uint32_t entries[BATCH], slots[BATCH];
        int held = 0;
        const auto look_up = [&] {
            for (int i = 0; i < held; ++i) slots[i] = murmur3(uint32_t(indices[entries[i]]), ~SEED) & uint32_t(size - 1);
            for (int i = 0; i < held; ++i) __builtin_prefetch(table.data() + slots[i], 1);
            for (int i = 0; i < held; ++i) {
                const uint64_t key = uint64_t(indices[entries[i]]) + 1;
                uint32_t slot = slots[i];
                while (table[slot] && table[slot] >> 32 != key) slot = (slot + 1) & uint32_t(size - 1);
                if (!table[slot]) table[slot] = key << 32 | entries[i];
                places[entries[i]] = uint32_t(table[slot]);
            }
            held = 0;
        };
        for (int64_t i = 0; i < count; ++i) {
            entries[held] = uint32_t(i);
            held += team == 1 || of_thread(indices[i]) == thread;
            if (held == BATCH) look_up();
        }
        look_up();
    });
    // An entry that is the first takes the next place; its place is read by those behind it.
    uint32_t distinct = 0;
    for (int64_t i = 0; i < count; ++i) places[i] = places[i] == uint32_t(i) ? distinct++ : places[places[i]];
    return distinct;
}

// Adds up the entries of each place in their order.
inline void coalesce(const int64_t *indices, const float *values, int64_t count, int64_t width, const uint32_t *places,
                     uint32_t *units, float *sums, int threads) {
    const int team = threads_for(count * width, threads);
    parallel(team, team, [&](int thread, int64_t, int64_t) {
        uint32_t next = 0;
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t place = places[i];
            const bool is_first = place == next;
            next += is_first;
            if (int(place % uint32_t(team)) != thread) continue;
            if (is_first) {
                units[place] = uint32_t(indices[i]);
                copy_row(sums + place * width, values + i * width, width);
            } else {
                add_row(sums + place * width, values + i * width, width);
            }
        }
    });
}

}  // namespace treadle
