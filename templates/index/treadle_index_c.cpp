// C functions of the index, for other languages. No exception leaves them.
#include "treadle_index.hpp"

#include <time.h>

using treadle::Index;

namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr uint64_t NO_MEMORY = UINT64_MAX;

enum Operation : uint8_t { LOOKUP, INSERT, ERASE, SCAN };

Index& of(void* index) { return *static_cast<Index*>(index); }
const Index& of(const void* index) { return *static_cast<const Index*>(index); }

// Time of this thread on its core, ns: what others do there meanwhile is no time of the index.
uint64_t now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// The same for every index that answers alike.
uint64_t mixed(uint64_t sum, uint64_t answer) { return (sum ^ answer) * 0x9E3779B97F4A7C15u + 1; }

// Buffers of scans, which grow when a larger one is asked for.
struct Scanned {
    std::vector<uint64_t> keys, payloads;

    uint64_t operator()(const Index& index, uint64_t from, uint64_t count) {
        count = std::min<uint64_t>(count, index.size());
        if (keys.size() < count) {
            keys.resize(count);
            payloads.resize(count);
        }
        const size_t some = index.scan(from, count, keys.data(), payloads.data());
        uint64_t sum = some;
        for (size_t i = 0; i < some; ++i) sum += keys[i] ^ payloads[i];
        return sum;
    }
};

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

typedef struct {
    uint32_t leaves;
    double most_search, most_shifts;
    uint32_t fragment_keys, most_fragments, new_fragments;
    double insert_share;
    uint32_t flags;
} treadle_index_settings;

// Null where a setting is out of range or memory is short.
void* treadle_index_new(const treadle_index_settings* s) {
    try {
        return new Index({treadle::Leaves(s->leaves), s->most_search, s->most_shifts, s->fragment_keys,
                          s->most_fragments, s->new_fragments, s->insert_share, s->flags});
    } catch (const std::exception&) {
        return nullptr;
    }
}

void treadle_index_free(void* index) { delete static_cast<Index*>(index); }

int treadle_index_load(void* index, const uint64_t* keys, const uint64_t* payloads, uint64_t n) {
    if (of(index).size()) return 2;
    try {
        return of(index).bulk_load(keys, payloads, n) ? 0 : 1;
    } catch (const std::exception&) {
        return 3;
    }
}

uint64_t treadle_index_lookup(const void* index, const uint64_t* keys, uint64_t n, uint64_t* payloads, uint8_t* found) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; ++i) {
        found[i] = of(index).lookup(keys[i], payloads + i);
        count += found[i];
    }
    return count;
}

// How many were new; UINT64_MAX without memory, where those before it are in.
uint64_t treadle_index_insert(void* index, const uint64_t* keys, const uint64_t* payloads, uint64_t n, uint8_t* inserted) {
    uint64_t count = 0;
    try {
        for (uint64_t i = 0; i < n; ++i) {
            inserted[i] = 0;
            inserted[i] = of(index).insert(keys[i], payloads[i]);
            count += inserted[i];
        }
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
    return count;
}

uint64_t treadle_index_erase(void* index, const uint64_t* keys, uint64_t n, uint8_t* erased) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; ++i) {
        erased[i] = of(index).erase(keys[i]);
        count += erased[i];
    }
    return count;
}

// How many were written; UINT64_MAX without memory.
uint64_t treadle_index_scan(const void* index, uint64_t from, uint64_t count, uint64_t* keys, uint64_t* payloads) {
    try {
        return of(index).scan(from, count, keys, payloads);
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
}

uint64_t treadle_index_size(const void* index) { return of(index).size(); }
uint64_t treadle_index_bytes(const void* index) { return of(index).bytes(); }

void treadle_index_counts(const void* index, uint64_t out[12]) {
    const treadle::Counts c = of(index).counts();
    const uint64_t all[12] = {c.inner_nodes, c.leaves, c.fragments, c.empty_fragment_slots, c.depth, c.expansions,
                              c.splits, c.growths, c.multiplications, c.fullest_fragment, 0, 0};
    std::copy(all, all + 12, out);
}

const char* treadle_index_broken(const void* index) { return of(index).broken(); }

// A trace in windows of as many operations each; 0, or 3 without memory. `answers` is a checksum of all results.
int treadle_index_run(void* index, const uint8_t* ops, const uint64_t* keys, const uint64_t* payloads, uint64_t n,
                      uint32_t windows, uint64_t* window_ns, uint64_t* answers) {
    Index& it = of(index);
    uint64_t sum = 0;
    try {
        Scanned scanned;
        for (uint32_t w = 0; w < windows; ++w) {
            const uint64_t begin = uint64_t(static_cast<Wide>(n) * w / windows);
            const uint64_t end = uint64_t(static_cast<Wide>(n) * (w + 1) / windows);
            const uint64_t start = now();
            for (uint64_t i = begin; i < end; ++i) {
                uint64_t answer = 0;
                switch (ops[i]) {
                    case LOOKUP: answer = it.lookup(keys[i], &answer) ? answer + 1 : 0; break;
                    case INSERT: answer = it.insert(keys[i], payloads[i]); break;
                    case ERASE: answer = it.erase(keys[i]); break;
                    case SCAN: answer = scanned(it, keys[i], payloads[i]); break;
                }
                sum = mixed(sum, answer);
            }
            window_ns[w] = now() - start;
        }
    } catch (const std::exception&) {
        return 3;
    }
    *answers = sum;
    return 0;
}

// What reading the trace takes without an index.
void treadle_index_loop(const uint8_t* ops, const uint64_t* keys, const uint64_t* payloads, uint64_t n, uint64_t* ns,
                        uint64_t* answers) {
    uint64_t sum = 0;
    const uint64_t start = now();
    for (uint64_t i = 0; i < n; ++i) sum = mixed(sum, keys[i] ^ payloads[i] ^ ops[i]);
    *ns = now() - start;
    *answers = sum;
}

}  // extern "C"
