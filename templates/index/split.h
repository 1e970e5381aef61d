// Splits of leaves: over slots that the leaf has in its parent, over more slots of a wider parent, or over a new node.
namespace inside {

// The leaf of a key; `range` shrinks to the keys that reach it.
inline Child descend_in(Child at, uint64_t key, Range& range) {
    while (!is_leaf(at)) {
        const InnerNode& node = *inner_of(at);
        const uint64_t slot = node.model(key);
        uint64_t from, to;
        slots_of(node, slot, from, to);
        range = range_of(node, range, from, to);
        at = node.child[slot];
    }
    return at;
}

// A gapped array gets more slots and a new model, unless it is to be split. Raises std::bad_alloc.
inline bool expand(Context& context, DataNode& leaf) {
    if (double(leaf.count) > MOST_SLOTS * EXPANDED_FILL) return false;
    // where room behind the keys did not keep inserts cheap, more of it will not either
    const bool grows_right = appends(leaf) && (is_full(leaf) || !leaf.roomy);
    if (leaf.count > FEW_KEYS && !grows_right && costs_too_much(leaf, context.settings.insert_share)) return false;
    std::vector<uint64_t> keys, payloads;
    keys.reserve(leaf.count);
    payloads.reserve(leaf.count);
    each_item(context, leaf, [&](uint64_t key, uint64_t payload) {
        keys.push_back(key);
        payloads.push_back(payload);
    });
    const uint32_t slots = gapped_slots(keys.size(), EXPANDED_FILL);
    const uint32_t used = grows_right ? std::min(slots, gapped_slots(keys.size(), MOST_FILL)) : slots;
    const GappedPlan plan = planned(keys.data(), keys.size(), slots, used);
    if (!Builder(context, 0).allowed(plan, keys.size())) return false;
    fill_gapped(context.memory, leaf, plan, keys.data(), payloads.data(), keys.size());
    leaf.roomy = used < slots;
    ++context.expansions;
    return true;
}

class Splitter {
public:
    Splitter(Context& context, Range range, Child& root, uint64_t size)
        : context_(context), range_(range), root_(root), size_(size) {}

    // Raises std::bad_alloc and leaves the tree as it was, but for the number of slots.
    void split(DataNode& leaf, uint64_t key) {
        find(key);
        gather(child_of(&leaf));
        ++context_.splits;
        uint64_t parts = 2;
        if (logs())
            while (parts * 2 * context_.settings.new_fragments <= leaf.slots) parts *= 2;
        if (path_.empty() || !sideways(parts)) down(parts);
    }

private:
    struct Stop {
        InnerNode* node;
        Range range;
        Builder::Block block;  // slots of the next child
    };

    bool logs() const { return context_.settings.leaves == Leaves::fragmented_log; }

    void find(uint64_t key) {
        Range range = range_;
        for (Child at = root_; !is_leaf(at);) {
            InnerNode* node = inner_of(at);
            const uint64_t slot = node->model(key);
            uint64_t from, to;
            slots_of(*node, slot, from, to);
            at = node->child[slot];
            path_.push_back({node, range, {from, to - from}});
            range = range_of(*node, range, from, to);
        }
        reach_ = range;
    }

    // All keys below a child, in order, with payloads in the same order for gapped arrays.
    void gather(Child child) {
        if (!is_leaf(child)) {
            const InnerNode& node = *inner_of(child);
            for (uint64_t s = 0; s < node.slots; ++s)
                if (s + 1 == node.slots || node.child[s + 1] != node.child[s]) gather(node.child[s]);
            return;
        }
        const DataNode& leaf = *leaf_of(child);
        if (!logs()) {
            each_item(context_, leaf, [&](uint64_t key, uint64_t payload) {
                keys_.push_back(key);
                payloads_.push_back(payload);
            });
            return;
        }
        for (uint32_t f = 0; f < leaf.slots; ++f) {
            const Fragment& fragment = leaf.fragments[f];
            const size_t from = keys_.size();
            keys_.insert(keys_.end(), fragment.keys, fragment.keys + fragment.filled);
            std::sort(keys_.begin() + ptrdiff_t(from), keys_.end());
        }
    }

    // Puts the keys below `old`, in the order of arrival, into logs that have room for them.
    template <typename Target>
    void refill(Child old, Target&& target) {
        if (!logs()) return;
        if (!is_leaf(old)) {
            const InnerNode& node = *inner_of(old);
            for (uint64_t s = 0; s < node.slots; ++s)
                if (s + 1 == node.slots || node.child[s + 1] != node.child[s]) refill(node.child[s], target);
            return;
        }
        each_item(context_, *leaf_of(old), [&](uint64_t key, uint64_t payload) { add(*target(key), key, payload); });
    }

    const uint64_t* payloads() const { return logs() ? nullptr : payloads_.data(); }

    // Over the leaf's slots in its parent, which gets more of them where that divides the keys.
    bool sideways(uint64_t parts) {
        Stop& at = path_.back();
        InnerNode& node = *at.node;
        for (unsigned times = 6; at.block.width < parts && times; --times) {
            if ((at.block.width << times) > parts || !may_widen(node, times, parts) || !divides(node, times)) continue;
            widen(context_, node, times);
            at.block = {at.block.slot << times, at.block.width << times};
            break;
        }
        const uint64_t width = at.block.width;
        if (width < 2) return false;
        std::vector<Child> out(width);
        const Child old = node.child[at.block.slot];
        uint64_t made;
        try {
            made = Builder(context_, size_).fill(node, reach_, at.block, keys_.data(), payloads(), keys_.size(),
                                                 std::max<uint64_t>(1, width / parts), out.data());
        } catch (...) {
            drop_children(context_, out.data(), width);
            throw;
        }
        refill(old, [&](uint64_t key) { return descend(out[node.model(key) - at.block.slot], key); });
        std::copy(out.begin(), out.end(), node.child + at.block.slot);
        node.children += made - 1;
        drop(context_, old);
        return true;
    }

    // Whether 2^times as many slots leave none with nearly all keys of the leaf.
    bool divides(const InnerNode& node, unsigned times) const {
        Model model = node.model;
        model.after = uint8_t(model.after - times);
        return Builder::fullest(model, keys_.data(), keys_.size()) <= keys_.size() - (keys_.size() + 15) / 16;
    }

    // Over a new inner node. Where that has happened below an ancestor to as many keys as it was made with, and the path
    // is long, its whole subtree is built anew: keys that arrive in order, or ever closer, make no long paths.
    void down(uint64_t parts) {
        for (const Stop& each : path_) each.node->deepened += keys_.size();
        for (size_t i = 0; i < path_.size() && path_.size() > DEEP; ++i)
            if (path_[i].node->deepened > path_[i].node->built) {
                keys_.clear();
                payloads_.clear();
                const Child old = child_of(path_[i].node);
                gather(old);
                const Range range = path_[i].range;
                path_.resize(i);
                return replace(old, Builder(context_, size_).build(range, keys_.data(), payloads(), keys_.size()));
            }
        const Child old = path_.empty() ? root_ : path_.back().node->child[path_.back().block.slot];
        replace(old, Builder(context_, size_).build_inner(reach_, keys_.data(), payloads(), keys_.size(), parts));
    }

    void replace(Child old, Child made) {
        refill(old, [&](uint64_t key) { return descend(made, key); });
        if (path_.empty()) {
            root_ = made;
        } else {
            const Stop& at = path_.back();
            std::fill_n(at.node->child + at.block.slot, at.block.width, made);
        }
        drop(context_, old);
    }

    Context& context_;
    Range range_;
    Child& root_;
    uint64_t size_;
    std::vector<Stop> path_;
    Range reach_{0, 0};
    std::vector<uint64_t> keys_, payloads_;
};

}  // namespace inside
