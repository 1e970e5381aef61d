// Trees from ascending keys: for bulk load, and for the parts of a node that is split.
namespace inside {

class Builder {
public:
    // `total` keys of the whole index say what the memory of a node costs each operation.
    Builder(Context& context, uint64_t total) : context_(context), total_(total ? total : 1) {}

    // Gapped arrays with their keys, or logs whose fragments have room for them: `add` then puts them in.
    Child build(Range range, const uint64_t* keys, const uint64_t* payloads, uint64_t n) {
        if (Child leaf = leaf_that_fits(range, keys, payloads, n)) return leaf;
        return build_inner(range, keys, payloads, n, 0);
    }

    // An inner node with at least two children, or with about `parts` where that is not 0.
    Child build_inner(Range range, const uint64_t* keys, const uint64_t* payloads, uint64_t n, uint64_t parts) {
        uint64_t slots = parts ? parts : wanted_slots(n);
        const Model model = divided(range, keys, n, !parts, slots);
        InnerNode* node = new_inner(context_, model, slots);
        node->built = n;
        try {
            node->children = fill(*node, range, {0, slots}, keys, payloads, n, parts ? 1 : slots, node->child);
        } catch (...) {
            drop(context_, child_of(node));
            throw;
        }
        return child_of(node);
    }

    struct Block {
        uint64_t slot, width;
    };

    // Children for a block of slots of an inner node that gets `range`, none wider than `most` slots unless it is
    // nearly empty; `out` is all null before. Returns how many there are.
    uint64_t fill(const InnerNode& node, Range range, Block block, const uint64_t* keys, const uint64_t* payloads,
                  uint64_t n, uint64_t most, Child* out) {
        std::vector<Block> blocks;
        choose(node, block, keys, n, block.width, most, blocks);
        const uint64_t* end = keys + n;
        for (const Block& each : blocks) {
            const uint64_t after = each.slot + each.width;
            const uint64_t* last = after == block.slot + block.width ? end : first_at(node, keys, end, after);
            const Range inside{each.slot == block.slot ? range.first : node.model.first_key(each.slot),
                               after == block.slot + block.width ? range.last : node.model.first_key(after) - 1};
            const uint64_t some = uint64_t(last - keys);
            const Child child = each.width > 1 ? new_leaf_of(inside, keys, payloads, some) : build(inside, keys, payloads, some);
            for (uint64_t s = each.slot; s < after; ++s) out[s - block.slot] = child;
            keys = last;
            if (payloads) payloads += some;
        }
        return blocks.size();
    }

    // Whether a gapped array of this cost respects the thresholds of the settings.
    bool allowed(const GappedPlan& plan, uint64_t n) const {
        return n <= FEW_KEYS || context_.has(COST_MODEL_ONLY) ||
               (plan.search <= context_.settings.most_search && plan.shifts <= context_.settings.most_shifts);
    }

    // Keys of the fullest slot.
    static uint64_t fullest(const Model& model, const uint64_t* keys, uint64_t n) {
        uint64_t most = 0;
        for (uint64_t i = 0; i < n;) {
            const uint64_t slot = model(keys[i]), from = i;
            while (i < n && model(keys[i]) == slot) ++i;
            most = std::max(most, i - from);
        }
        return most;
    }

private:
    bool logs() const { return context_.settings.leaves == Leaves::fragmented_log; }

    static const uint64_t* first_at(const InnerNode& node, const uint64_t* keys, const uint64_t* end, uint64_t slot) {
        return std::partition_point(keys, end, [&](uint64_t key) { return node.model(key) < slot; });
    }

    uint64_t wanted_slots(uint64_t n) const {
        const Settings& of = context_.settings;
        const uint64_t room = uint64_t(of.fragment_keys) * of.most_fragments / 8 + 1;
        const uint64_t keys = logs() ? std::min(room, KEYS_PER_SLOT) : KEYS_PER_SLOT;
        uint64_t slots = 2;
        while (slots < MOST_CHILDREN && slots * keys < n) slots *= 2;
        return slots;
    }

    // The keys that share a slot with a key, on average.
    static double crowd(const Model& model, const uint64_t* keys, uint64_t n) {
        double squares = 0;
        for (uint64_t i = 0; i < n;) {
            const uint64_t slot = model(keys[i]), from = i;
            while (i < n && model(keys[i]) == slot) ++i;
            squares += double(i - from) * double(i - from);
        }
        return squares / double(n);
    }

    // A model over equal parts of the range, or where that leaves nearly all keys in one slot or `best` is asked for, of
    // the keys without more and more of those at the ends, whichever spreads them most; else two halves. `slots` shrinks
    // where there are not as many different keys.
    static Model divided(Range range, const uint64_t* keys, uint64_t n, bool best, uint64_t& slots) {
        const uint64_t wanted = slots, t = n >> 12, u = n >> 8, v = n >> 4, m = n / 2, w = n / 8, e = n - 1;
        const Range parts[] = {range,
                               {keys[0], keys[e]},
                               {keys[t], keys[e - t]},
                               {keys[u], keys[e - u]},
                               {keys[v], keys[e - v]},
                               {keys[0], keys[m]},
                               {keys[0], keys[w]},
                               {keys[m], keys[e]},
                               {keys[m] - 1, keys[m]}};
        Model chosen;
        double least = INFINITY;
        for (const Range& part : parts) {
            if (part.last == part.first) continue;
            uint64_t some = wanted;
            while (some > 2 && some - 1 > part.last - part.first) some /= 2;
            if (&part == &parts[8]) some = 2;
            const Model model = Model::over(part, some);
            const double crowded = crowd(model, keys, n);
            if (crowded >= least) continue;
            least = crowded;
            chosen = model;
            slots = some;
            if (!best && fullest(model, keys, n) <= n - (n + 15) / 16) break;
        }
        return chosen;
    }

    // Appends the blocks of `whole` slots that become children, and returns what an operation costs in them on average.
    double choose(const InnerNode& node, Block block, const uint64_t* keys, uint64_t n, uint64_t whole, uint64_t most,
                  std::vector<Block>& blocks) {
        const bool may = block.width <= most || (block.width < whole && nearly_empty(n));
        const double alone = may ? cost_of_leaf(node, block, keys, n) : INFINITY;
        if (block.width == 1 || (may && !n) || (logs() && alone == 0)) {
            blocks.push_back(block);
            return std::isinf(alone) ? 2 * LEVEL_COST : alone;
        }
        const size_t before = blocks.size();
        const uint64_t half = block.width / 2, middle = block.slot + half;
        const uint64_t left = uint64_t(first_at(node, keys, keys + n, middle) - keys);
        double cost = choose(node, {block.slot, half}, keys, left, whole, most, blocks) * double(left);
        cost += choose(node, {middle, half}, keys + left, n - left, whole, most, blocks) * double(n - left);
        cost = (cost + MEMORY_COST * sizeof(DataNode) * double(total_)) / double(n ? n : 1);
        if (alone > cost) return cost;
        blocks.resize(before);
        blocks.push_back(block);
        return alone;
    }

    bool nearly_empty(uint64_t n) const {
        const Settings& of = context_.settings;
        return logs() ? n <= uint64_t(of.fragment_keys) * of.new_fragments / 4 : !n;
    }

    // Infinite where the keys must not be in one leaf.
    double cost_of_leaf(const InnerNode& node, Block block, const uint64_t* keys, uint64_t n) const {
        if (!n) return 0;
        if (logs()) {
            const Range range{node.model.first_key(block.slot), keys[n - 1]};
            return planned_log(context_.settings, range, keys, n).counts.empty() ? INFINITY : 0;
        }
        if (double(n) > MOST_SLOTS * EXPANDED_FILL) return INFINITY;
        const GappedPlan plan = planned(keys, n, gapped_slots(n, BUILT_FILL));
        return allowed(plan, n) ? plan.cost(context_.settings.insert_share) : INFINITY;
    }

    // Null where the keys must not or should not be in one leaf.
    Child leaf_that_fits(Range range, const uint64_t* keys, const uint64_t* payloads, uint64_t n) {
        if (logs()) {
            const LogPlan plan = planned_log(context_.settings, range, keys, n);
            return plan.counts.empty() ? 0 : child_of(log_of(plan));
        }
        if (double(n) > MOST_SLOTS * EXPANDED_FILL) return 0;
        const GappedPlan plan = planned(keys, n, gapped_slots(n, BUILT_FILL));
        if (!allowed(plan, n)) return 0;
        if (n >= 16 * KEYS_PER_SLOT && plan.cost(context_.settings.insert_share) > LEVEL_COST + SEARCH_COST) return 0;
        return child_of(gapped_of(plan, keys, payloads, n));
    }

    Child new_leaf_of(Range range, const uint64_t* keys, const uint64_t* payloads, uint64_t n) {
        if (logs()) return child_of(log_of(planned_log(context_.settings, range, keys, n)));
        return child_of(gapped_of(planned(keys, n, gapped_slots(n, BUILT_FILL)), keys, payloads, n));
    }

    DataNode* log_of(const LogPlan& plan) {
        const uint32_t fragments = uint32_t(plan.counts.size());
        DataNode* node = new_leaf(context_);
        try {
            node->fragments = empty_fragments(context_, plan.counts.data(), fragments);
        } catch (...) {
            drop_leaf(context_, node);
            throw;
        }
        node->slots = fragments;
        node->model = plan.model;
        return node;
    }

    DataNode* gapped_of(const GappedPlan& plan, const uint64_t* keys, const uint64_t* payloads, uint64_t n) {
        DataNode* node = new_leaf(context_);
        try {
            fill_gapped(context_.memory, *node, plan, keys, payloads, n);
        } catch (...) {
            drop_leaf(context_, node);
            throw;
        }
        return node;
    }

    Context& context_;
    uint64_t total_;
};

// Into the room that a builder left for it.
inline void add(DataNode& node, uint64_t key, uint64_t payload) {
    append(node.fragments[node.model(key)], key, payload);
    ++node.count;
}

}  // namespace inside
