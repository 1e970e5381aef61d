// Operations of a leaf: a branch, or a virtual call where that was asked for.
namespace inside {

struct GappedCalls final : Calls {
    const uint64_t* find(const Context& context, const DataNode& node, uint64_t key) const override {
        return find_gapped(node, key, context.has(MONITOR_LOOKUPS));
    }
    Outcome insert(Context& context, DataNode& node, uint64_t key, uint64_t payload) const override {
        return insert_gapped(context, node, key, payload);
    }
    bool erase(Context&, DataNode& node, uint64_t key) const override { return erase_gapped(node, key); }
};

struct LogCalls final : Calls {
    const uint64_t* find(const Context& context, const DataNode& node, uint64_t key) const override {
        return find_logged(context, node, key);
    }
    Outcome insert(Context& context, DataNode& node, uint64_t key, uint64_t payload) const override {
        return insert_logged(context, node, key, payload);
    }
    bool erase(Context& context, DataNode& node, uint64_t key) const override { return erase_logged(context, node, key); }
};

inline const Calls* calls_of(Leaves leaves) {
    static const GappedCalls gapped;
    static const LogCalls logged;
    if (leaves == Leaves::gapped_array) return &gapped;
    return &logged;
}

inline const uint64_t* find(const Context& context, const DataNode& node, uint64_t key) {
    if (node.dispatch == Dispatch::fragmented_log) return find_logged(context, node, key);
    if (node.dispatch == Dispatch::gapped_array) return find_gapped(node, key, context.has(MONITOR_LOOKUPS));
    return node.calls->find(context, node, key);
}

// `full` where nothing was inserted: the node must be changed first. May raise std::bad_alloc, and changes nothing then.
inline Outcome insert(Context& context, DataNode& node, uint64_t key, uint64_t payload) {
    if (node.dispatch == Dispatch::fragmented_log) return insert_logged(context, node, key, payload);
    if (node.dispatch == Dispatch::gapped_array) return insert_gapped(context, node, key, payload);
    return node.calls->insert(context, node, key, payload);
}

inline bool erase(Context& context, DataNode& node, uint64_t key) {
    if (node.dispatch == Dispatch::fragmented_log) return erase_logged(context, node, key);
    if (node.dispatch == Dispatch::gapped_array) return erase_gapped(node, key);
    return node.calls->erase(context, node, key);
}

// A leaf without keys or memory for them.
inline DataNode* new_leaf(Context& context) {
    DataNode* node = new (context.memory.take(sizeof(DataNode))) DataNode();
    node->calls = calls_of(context.settings.leaves);
    node->dispatch = context.has(VIRTUAL_LEAVES) ? Dispatch::virtual_call
                     : context.settings.leaves == Leaves::fragmented_log ? Dispatch::fragmented_log
                                                                         : Dispatch::gapped_array;
    return node;
}

inline void drop_leaf(Context& context, DataNode* node) noexcept {
    if (context.settings.leaves == Leaves::fragmented_log)
        drop_fragments(context, node->fragments, node->slots);
    else
        drop_gapped(context.memory, *node);
    context.memory.give(node, sizeof(DataNode));
}

// Calls visit(key, payload) for each key: in order for gapped arrays, fragment after fragment for logs.
template <typename Visit>
void each_item(const Context& context, const DataNode& node, Visit&& visit) {
    if (context.settings.leaves == Leaves::fragmented_log) {
        for (uint32_t f = 0; f < node.slots; ++f) {
            const Fragment& fragment = node.fragments[f];
            for (uint32_t i = 0; i < fragment.filled; ++i) visit(fragment.keys[i], fragment.values[i]);
        }
        return;
    }
    for (uint32_t at = 0; (at = next_slot(node.occupied, node.slots, at, true)) != NO_SLOT; ++at)
        visit(node.keys[at], node.payloads[at]);
}

// Writes up to `count` items from key `from` on, in order, and returns how many; a touched fragment is sorted aside.
inline size_t scan_leaf(const Context& context, const DataNode& node, uint64_t from, size_t count, uint64_t* keys,
                        uint64_t* payloads, std::vector<Item>& aside) {
    size_t written = 0;
    if (context.settings.leaves == Leaves::fragmented_log) {
        for (uint64_t f = node.model(from); f < node.slots && written < count; ++f) {
            const Fragment& fragment = node.fragments[f];
            aside.clear();
            for (uint32_t i = 0; i < fragment.filled; ++i)
                if (fragment.keys[i] >= from) aside.push_back({fragment.keys[i], fragment.values[i]});
            const size_t some = std::min(aside.size(), count - written);
            std::partial_sort(aside.begin(), aside.begin() + ptrdiff_t(some), aside.end());
            for (size_t i = 0; i < some; ++i, ++written) {
                keys[written] = aside[i].key;
                payloads[written] = aside[i].payload;
            }
        }
        return written;
    }
    uint64_t unused = 0;
    // a slot of `from` itself or of a gap that looks like it, or the first with a larger key
    uint32_t at = from ? upper_bound(node, from - 1, unused) : 0;
    for (; written < count && (at = next_slot(node.occupied, node.slots, at, true)) != NO_SLOT; ++at, ++written) {
        keys[written] = node.keys[at];
        payloads[written] = node.payloads[at];
    }
    return written;
}

}  // namespace inside
