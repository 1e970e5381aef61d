// What an index consists of, and the invariants of all its nodes.
namespace inside {

struct Inspection {
    const Context& context;
    Counts counts{};
    uint64_t keys = 0, used = 0;
    const char* broken = nullptr;

    void inspect(Child child, Range range, uint64_t depth) {
        counts.depth = std::max(counts.depth, depth);
        if (is_leaf(child)) return inspect_leaf(*leaf_of(child), range);
        const InnerNode& node = *inner_of(child);
        ++counts.inner_nodes;
        used += Memory::rounded(sizeof(InnerNode)) + Memory::rounded(node.slots * sizeof(Child));
        demand((node.slots & (node.slots - 1)) == 0 && node.slots > 1, "an inner node has no power of two of slots");
        uint64_t children = 0;
        for (uint64_t s = 0, end; s < node.slots; s = end) {
            for (end = s + 1; end < node.slots && node.child[end] == node.child[s];) ++end;
            ++children;
            const uint64_t width = end - s;
            demand((width & (width - 1)) == 0 && s % width == 0, "a child takes slots that cannot be halved");
            if (!node.child[s]) return demand(false, "a slot has no child");
            const Range part = range_of(node, range, s, end);
            demand(part.first <= part.last && part.first >= range.first && part.last <= range.last,
                   "a child has no keys of its parent's range");
            inspect(node.child[s], part, depth + 1);
        }
        demand(children == node.children, "an inner node counts its children wrong");
    }

    void inspect_leaf(const DataNode& leaf, Range range) {
        ++counts.leaves;
        keys += leaf.count;
        used += Memory::rounded(sizeof(DataNode));
        if (context.settings.leaves == Leaves::fragmented_log)
            inspect_log(leaf, range);
        else
            inspect_gapped(leaf, range);
    }

    void inspect_log(const DataNode& leaf, Range range) {
        const Settings& of = context.settings;
        used += Memory::rounded(leaf.slots * sizeof(Fragment));
        counts.fragments += leaf.slots;
        demand(leaf.slots <= of.most_fragments, "a leaf has more fragments than Mnf");
        uint64_t count = 0;
        for (uint32_t f = 0; f < leaf.slots; ++f) {
            const Fragment& fragment = leaf.fragments[f];
            const uint32_t room = capacity(fragment.exponent, of.fragment_keys);
            count += fragment.filled;
            counts.empty_fragment_slots += !fragment.filled;
            counts.fullest_fragment = std::max<uint64_t>(counts.fullest_fragment, fragment.filled);
            demand(fragment.filled <= of.fragment_keys, "a fragment has more keys than mf_size");
            demand(fragment.filled <= room, "a fragment has more keys than room");
            demand((fragment.keys == nullptr) == (fragment.filled == 0), "an empty fragment has memory");
            if (fragment.keys) {
                used += Memory::rounded(fragment_bytes(fragment.exponent, of.fragment_keys));
                demand(fragment.values == fragment.keys + room, "values do not follow the keys of a fragment");
            }
            for (uint32_t i = 0; i < fragment.filled; ++i) {
                demand(leaf.model(fragment.keys[i]) == f, "a key is in the wrong fragment");
                demand(fragment.keys[i] >= range.first && fragment.keys[i] <= range.last, "a key is in the wrong leaf");
            }
        }
        demand(count == leaf.count, "a leaf counts its keys wrong");
    }

    void inspect_gapped(const DataNode& leaf, Range range) {
        used += Memory::rounded(gapped_bytes(leaf.slots));
        uint64_t count = 0, above = UINT64_MAX;
        bool first = true;
        for (uint32_t at = leaf.slots; at-- > 0;) {
            const uint64_t key = leaf.keys[at];
            if (!is_set(leaf.occupied, at)) {
                demand(key == above, "a gap does not hold the key that follows it");
                continue;
            }
            ++count;
            demand(first || key < above, "keys of a gapped array are not in order");
            demand(key >= range.first && key <= range.last, "a key is in the wrong leaf");
            above = key;
            first = false;
        }
        demand(count == leaf.count, "a leaf counts its keys wrong");
        demand(count < leaf.slots, "a gapped array has no gap");
        demand(leaf.inserts || leaf.count <= FEW_KEYS || context.has(COST_MODEL_ONLY) ||
                   (leaf.expected_search <= float(context.settings.most_search) &&
                    leaf.expected_shifts <= float(context.settings.most_shifts)),
               "a new leaf is over the thresholds");
    }

    void demand(bool holds, const char* words) {
        if (!holds && !broken) broken = words;
    }
};

}  // namespace inside

inline Counts Index::counts() const {
    inside::Inspection all{context_};
    all.inspect(root_, range_, 0);
    all.counts.expansions = context_.expansions;
    all.counts.splits = context_.splits;
    all.counts.growths = context_.growths;
    all.counts.multiplications = context_.multiplications;
    return all.counts;
}

inline const char* Index::broken() const {
    inside::Inspection all{context_};
    all.inspect(root_, range_, 0);
    all.demand(all.keys == size_, "the index counts its keys wrong");
    all.demand(all.used == context_.memory.used(), "the memory of all nodes is not what is in use");
    return all.broken;
}
