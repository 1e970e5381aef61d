// Small nodes whose every step is worked out by hand.
#include <cstdio>
#include <string>

#include "treadle_index.hpp"

namespace oracles {

using namespace treadle;

struct SmallIndex : Index {
    SmallIndex(const Settings& settings, inside::Range range) : Index(settings, range) {}

    // Fragments of all leaves as `[5 9] [40] | [60]`, a leaf after each bar.
    std::string text() const { return of(root_); }

    std::string of(inside::Child child) const {
        std::string all;
        if (inside::is_leaf(child)) {
            const inside::DataNode& leaf = *inside::leaf_of(child);
            for (uint32_t f = 0; f < leaf.slots; ++f) {
                all += f ? " [" : "[";
                for (uint32_t i = 0; i < leaf.fragments[f].filled; ++i)
                    all += (i ? " " : "") + std::to_string(leaf.fragments[f].keys[i]);
                all += "]";
            }
            return all;
        }
        const inside::InnerNode& node = *inside::inner_of(child);
        for (uint64_t s = 0; s < node.slots; ++s)
            if (!s || node.child[s] != node.child[s - 1]) all += (s ? " | " : "") + of(node.child[s]);
        return all;
    }

    uint32_t room(uint32_t fragment) const {
        return inside::capacity(inside::leaf_of(root_)->fragments[fragment].exponent, settings().fragment_keys);
    }
};

// Prints the fragments after each step.
inline int log() {
    SmallIndex index({Leaves::fragmented_log, 0, 0, 4, 4, 2, 0.5, 0}, {0, 63});
    for (const uint64_t key : {5, 40, 9, 20, 2, 30, 12, 14}) {
        index.insert(key, 10 * key);
        std::printf("%s\n", index.text().c_str());
        if (key == 9 || key == 20) std::printf("room %u\n", index.room(0));
        if (const char* words = index.broken()) return std::puts(words), 1;
    }
    index.erase(9);
    std::printf("%s\n", index.text().c_str());
    return index.broken() != nullptr;
}

// Fragments and how many have keys after `n` powers of two, with up to `most` keys each.
inline void powers(unsigned n, uint32_t most) {
    inside::Context context({Leaves::fragmented_log, 0, 0, most, 1 << 16, 1, 0.5, 0});
    const uint32_t counts[1] = {0};
    inside::DataNode& node = *inside::new_leaf(context);
    node.fragments = inside::empty_fragments(context, counts, 1);
    node.slots = 1;
    node.model = inside::Model::over({0, (uint64_t(1) << n) - 1}, 1);
    for (unsigned i = 0; i < n; ++i)
        while (inside::insert(context, node, uint64_t(1) << i, i) == inside::Outcome::full)
            inside::multiply(context, node, inside::doublings_for(context, node, uint64_t(1) << i));
    unsigned filled = 0;
    for (uint32_t f = 0; f < node.slots; ++f) filled += node.fragments[f].filled != 0;
    std::printf("%u %u %zu\n", filled, node.slots, node.slots * sizeof(inside::Fragment));
}

inline std::string slots(const inside::DataNode& node) {
    std::string all;
    for (uint32_t at = 0; at < node.slots; ++at)
        all += (at ? " " : "") + (inside::is_set(node.occupied, at) ? std::to_string(node.keys[at]) : std::string("_"));
    return all;
}

inline void gapped() {
    inside::Context context({Leaves::gapped_array, 100, 100, 0, 0, 0, 0.5, 0});
    inside::DataNode& node = *inside::new_leaf(context);
    const uint64_t keys[] = {10, 20, 30, 40, 50};
    inside::fill_gapped(context.memory, node, inside::planned(keys, 5, 10), keys, keys, 5);
    std::printf("%s\n", slots(node).c_str());
    for (const uint64_t key : {25, 26, 27}) {
        const uint64_t before = node.shifts;
        const unsigned predicted = unsigned(node.model(key));
        inside::insert(context, node, key, key);
        std::printf("%u %u %s\n", predicted, unsigned(node.shifts - before), slots(node).c_str());
    }
    std::printf("full %d\n", inside::insert(context, node, 28, 28) == inside::Outcome::full);
    for (const uint64_t key : {27, 25}) {
        uint64_t doublings = 0;
        const uint32_t at = inside::upper_bound(node, key, doublings) - 1;
        std::printf("%u %u\n", at, unsigned(doublings));
    }
    node.expected_shifts = 0.5;
    for (const double most : {0.9, 1.5}) {
        Settings settings = context.settings;
        settings.most_shifts = most;
        std::printf("over %d\n", inside::over_thresholds(node, settings));
    }
}

inline int run() {
    if (log()) return 1;
    powers(8, 3);
    powers(10, 4);
    powers(16, 4);
    gapped();
    return 0;
}

}  // namespace oracles
