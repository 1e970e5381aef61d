// Random operations on an index and on a std::map, with equal answers.
#include <cstdio>
#include <map>
#include <random>

#include "treadle_index.hpp"

namespace random_operations {

using namespace treadle;

struct Case {
    const char* name;
    Settings settings;
};

constexpr Case CASES[] = {
    {"log 16/8/2", {Leaves::fragmented_log, 0, 0, 16, 8, 2, 0.5, 0}},
    {"log 4/4/2", {Leaves::fragmented_log, 0, 0, 4, 4, 2, 0.5, 0}},
    {"log 64/128/8", {Leaves::fragmented_log, 0, 0, 64, 128, 8, 0.5, 0}},
    {"log 6/1/1", {Leaves::fragmented_log, 0, 0, 6, 1, 1, 0.5, 0}},
    {"log 100/300/3 virtual, scalar", {Leaves::fragmented_log, 0, 0, 100, 300, 3, 0.5, VIRTUAL_LEAVES | NO_AVX2}},
    {"gapped 1/2", {Leaves::gapped_array, 1, 2, 0, 0, 0, 0.5, 0}},
    {"gapped 4/32", {Leaves::gapped_array, 4, 32, 0, 0, 0, 0.5, 0}},
    {"gapped 8/128 virtual, monitored", {Leaves::gapped_array, 8, 128, 0, 0, 0, 1, VIRTUAL_LEAVES | MONITOR_LOOKUPS}},
    {"gapped, cost model only", {Leaves::gapped_array, 1, 1, 0, 0, 0, 0.5, COST_MODEL_ONLY}},
};

constexpr int FAMILIES = 10;

struct Keys {
    int family;
    std::mt19937_64 random;
    uint64_t next = 0;

    uint64_t operator()() {
        std::mt19937_64& r = random;
        switch (family) {
            case 0: return r() % 2000;                                              // adjacent
            case 1: return r();                                                     // uniform
            case 2: return uint64_t(1) << (r() % 64);                               // powers of two
            case 3: return UINT64_MAX - r() % 3000;                                 // adjacent, at the end
            case 4: return r() % 50 ? r() % 100000 : UINT64_MAX - r() % 20;         // outliers
            case 5: return r() >> (r() % 64);                                       // all magnitudes
            case 6: return r() % 4 ? (uint64_t(1) << (r() % 64)) + r() % 50 : r() % 2 ? 0 : UINT64_MAX;
            case 7: return r() % 3 ? ++next * 8 : r() % (next + 1) * 8;             // ascending
            case 8: return UINT64_MAX - (r() % 3 ? ++next * 8 : r() % (next + 1) * 8);
            default: return (r() % 8 << 61) + (r() % 8 << 30) + r() % 64;           // clusters of clusters
        }
    }
};

struct Run {
    const Case& of;
    int family;
    uint64_t operations, every;  // invariants are checked each time after `every` operations
    std::map<uint64_t, uint64_t> map{};

    bool fail(const char* words) const { return std::printf("%s, family %d: %s\n", of.name, family, words), false; }

    bool ok(bool bulk) {
        Keys draw{family, std::mt19937_64(uint64_t(family) * 2 + bulk)};
        Index index(of.settings);
        if (bulk && !load(index, draw)) return false;
        for (uint64_t i = 0; i < operations; ++i) {
            if (!step(index, draw, i / (operations / 4 + 1) % 2)) return false;
            if (every && i % every == 0 && index.broken()) return fail(index.broken());
        }
        return whole(index) && emptied(index, draw);
    }

    bool load(Index& index, Keys& draw) {
        for (uint64_t i = 0; i < operations / 4; ++i) map.emplace(draw(), i);
        std::vector<uint64_t> keys, payloads;
        for (const auto& [key, payload] : map) {
            keys.push_back(key);
            payloads.push_back(payload);
        }
        if (!index.bulk_load(keys.data(), payloads.data(), keys.size())) return fail("not loaded");
        if (keys.size() && index.bulk_load(keys.data(), payloads.data(), keys.size())) return fail("loaded twice");
        const Counts before = index.counts();
        const size_t bytes = index.bytes();
        for (const auto& [key, payload] : map) {
            uint64_t found;
            if (!index.lookup(key, &found) || found != payload) return fail("a loaded key is not there");
        }
        const Counts after = index.counts();
        if (std::memcmp(&before, &after, sizeof before) || bytes != index.bytes()) return fail("changed by lookups");
        return index.broken() ? fail(index.broken()) : true;
    }

    bool step(Index& index, Keys& draw, bool shrinks) {
        const unsigned action = unsigned(draw.random() % 10);
        uint64_t key = draw();
        const uint64_t payload = draw.random();
        if (action < (shrinks ? 2 : 5)) {
            if (index.insert(key, payload) != map.emplace(key, payload).second) return fail("insert");
        } else if (action < 7) {
            const auto near = map.lower_bound(key);
            if (shrinks && near != map.end()) key = near->first;
            if (index.erase(key) != (map.erase(key) == 1)) return fail("erase");
        } else if (action < 9) {
            uint64_t found = 0;
            const auto it = map.find(key);
            if (index.lookup(key, &found) != (it != map.end())) return fail("lookup");
            if (it != map.end() && found != it->second) return fail("payload");
        } else {
            uint64_t keys[20], payloads[20];
            const size_t some = index.scan(key, 20, keys, payloads);
            auto it = map.lower_bound(key);
            for (size_t i = 0; i < some; ++i, ++it)
                if (it == map.end() || keys[i] != it->first || payloads[i] != it->second) return fail("scan");
            if (some < 20 && it != map.end()) return fail("short scan");
        }
        return index.size() == map.size() || fail("size");
    }

    bool whole(const Index& index) const {
        if (index.broken()) return fail(index.broken());
        auto it = map.begin();
        for (const auto [key, payload] : index) {
            if (it == map.end() || key != it->first || payload != it->second) return fail("iteration");
            ++it;
        }
        return it == map.end() || fail("short iteration");
    }

    bool emptied(Index& index, Keys& draw) {
        while (!map.empty()) {
            const auto it = draw.random() % 2 ? map.begin() : std::prev(map.end());
            if (!index.erase(it->first)) return fail("last erase");
            map.erase(it);
        }
        if (index.size() || index.begin() != index.end() || index.broken()) return fail("not empty");
        return index.insert(7, 70) && index.lower_bound(0).payload() == 70;
    }
};

inline int run(uint64_t operations, uint64_t every, int first, int last) {
    for (const Case& each : CASES)
        for (int family = first; family < last; ++family)
            for (const bool bulk : {false, true})
                if (!Run{each, family, operations, every}.ok(bulk)) return 1;
    return 0;
}

}  // namespace random_operations
