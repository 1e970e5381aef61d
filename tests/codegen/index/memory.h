// Bytes that an index holds, against what operator new gave; and an operator new that fails.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <random>

#include "treadle_index.hpp"

namespace memory {

inline size_t taken = 0;
inline long allowed = -1;  // further allocations; negative: any number

inline void* allocated(size_t bytes, size_t alignment) {
    if (allowed == 0) throw std::bad_alloc();
    if (allowed > 0) --allowed;
    // the size stands before the block
    const size_t before = alignment < 16 ? 16 : alignment;
    char* block = static_cast<char*>(std::aligned_alloc(before, before + (bytes + before - 1) / before * before));
    if (!block) throw std::bad_alloc();
    std::memcpy(block + before - sizeof(size_t), &bytes, sizeof(size_t));
    taken += bytes;
    return block + before;
}

inline void freed(void* block, size_t alignment) {
    if (!block) return;
    size_t bytes;
    std::memcpy(&bytes, static_cast<char*>(block) - sizeof(size_t), sizeof(size_t));
    taken -= bytes;
    std::free(static_cast<char*>(block) - (alignment < 16 ? 16 : alignment));
}

using namespace treadle;

inline uint64_t key_of(int family, std::mt19937_64& random) {
    return family == 0 ? random() : family == 1 ? random() % 5000 : random() >> (random() % 60);
}

// Whether bytes() is what operator new has given, while keys come and go.
inline bool counted(const Settings& settings, int family) {
    std::mt19937_64 random(7);
    const size_t before = taken;
    {
        Index index(settings);
        for (int i = 0; i < 60000; ++i) {
            index.insert(key_of(family, random), 1);
            if (i % 3 == 0) index.erase(key_of(family, random));
            if (i % 1000 == 0 && index.bytes() - sizeof(Index) != taken - before) return false;
        }
        size_t bytes[2];
        for (size_t& each : bytes) {  // what was erased is used again
            while (index.size()) index.erase(index.begin().key());
            for (int i = 0; i < 20000; ++i) index.insert(random(), 1);
            each = index.bytes();
        }
        if (bytes[1] > bytes[0] + bytes[0] / 4) return false;
    }
    return taken == before;
}

// An insert that runs out of memory at its first, second ... allocation changes nothing and succeeds later.
inline bool survives(const Settings& settings, int family) {
    std::mt19937_64 random(9);
    std::map<uint64_t, uint64_t> map;
    Index index(settings);
    unsigned failures = 0;
    for (int i = 0; i < 3000; ++i) {
        const uint64_t key = key_of(family, random);
        for (long some = 0;; ++some) {
            allowed = some;
            bool done = true, inserted = false;
            try {
                inserted = index.insert(key, key);
            } catch (const std::bad_alloc&) {
                done = false;
                ++failures;
            }
            allowed = -1;
            if (done && inserted != map.emplace(key, key).second) return false;
            if (!done && index.broken()) return std::puts(index.broken()), false;
            if (done) break;
        }
    }
    size_t same = 0;
    for (const auto [key, payload] : index) same += map.count(key) && payload == key;
    return failures > 3 && same == map.size() && index.size() == map.size() && !index.broken();
}

inline int run() {
    const Settings all[] = {{Leaves::fragmented_log, 0, 0, 16, 32, 4, 0.5, 0},
                            {Leaves::fragmented_log, 0, 0, 256, 512, 2, 0.5, 0},
                            {Leaves::gapped_array, 2, 8, 0, 0, 0, 0.5, 0},
                            {Leaves::gapped_array, 4, 32, 0, 0, 0, 0.5, COST_MODEL_ONLY}};
    for (const Settings& each : all)
        for (int family = 0; family < 3; ++family) {
            if (!counted(each, family)) return std::printf("bytes of family %d\n", family), 1;
            if (!survives(each, family)) return std::printf("short memory, family %d\n", family), 1;
        }
    return 0;
}

}  // namespace memory

void* operator new(size_t bytes) { return memory::allocated(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) { return memory::allocated(bytes, size_t(alignment)); }
void operator delete(void* block) noexcept { memory::freed(block, 16); }
void operator delete(void* block, size_t) noexcept { memory::freed(block, 16); }
void operator delete(void* block, std::align_val_t alignment) noexcept { memory::freed(block, size_t(alignment)); }
void operator delete(void* block, size_t, std::align_val_t alignment) noexcept {
    memory::freed(block, size_t(alignment));
}
