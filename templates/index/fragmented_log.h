// Fragmented logs: unsorted fragments over consecutive parts of the node's keys (MAPLE, "Fragmented Log").
namespace inside {

inline uint32_t capacity(uint8_t exponent, uint32_t most) {
    if (!exponent) return 0;
    return exponent > 31 || (1u << exponent) > most ? most : 1u << exponent;
}

// Smallest power of two that holds the keys, at least FIRST_CAPACITY.
inline uint8_t exponent_of(uint64_t keys) {
    if (!keys) return 0;
    if (keys <= FIRST_CAPACITY) keys = FIRST_CAPACITY;
    return uint8_t(64 - __builtin_clzll(keys - 1));
}

// Keys, then values; a scan reads keys in fours and stays inside.
inline size_t fragment_bytes(uint8_t exponent, uint32_t most) { return size_t(capacity(exponent, most)) * 16; }

// A block for `keys` keys, which are not there yet. Raises std::bad_alloc.
inline Fragment empty_fragment(Context& context, uint64_t keys) {
    Fragment made{nullptr, nullptr, 0, exponent_of(keys)};
    if (!keys) return made;
    const uint32_t most = context.settings.fragment_keys;
    made.keys = static_cast<uint64_t*>(context.memory.take(fragment_bytes(made.exponent, most)));
    made.values = made.keys + capacity(made.exponent, most);
    return made;
}

inline void drop_fragment(Context& context, const Fragment& fragment) noexcept {
    if (fragment.keys) context.memory.give(fragment.keys, fragment_bytes(fragment.exponent, context.settings.fragment_keys));
}

inline void drop_fragments(Context& context, Fragment* fragments, uint32_t count) noexcept {
    if (!fragments) return;
    for (uint32_t f = 0; f < count; ++f) drop_fragment(context, fragments[f]);
    context.memory.give(fragments, count * sizeof(Fragment));
}

inline void append(Fragment& fragment, uint64_t key, uint64_t payload) {
    fragment.keys[fragment.filled] = key;
    fragment.values[fragment.filled] = payload;
    ++fragment.filled;
}

// Fragments with blocks for the counts of keys, all empty.
inline Fragment* empty_fragments(Context& context, const uint32_t* counts, uint32_t fragments) {
    Fragment* made = static_cast<Fragment*>(context.memory.take(fragments * sizeof(Fragment)));
    std::memset(static_cast<void*>(made), 0, fragments * sizeof(Fragment));
    try {
        for (uint32_t f = 0; f < fragments; ++f) made[f] = empty_fragment(context, counts[f]);
    } catch (...) {
        drop_fragments(context, made, fragments);
        throw;
    }
    return made;
}

// All lines of memory that a scan of the fragment reads, at once.
inline void prefetch(const Fragment& fragment, uint32_t filled) {
    for (uint32_t i = 0; i < filled && i < 64; i += 8) __builtin_prefetch(fragment.keys + i);
}

inline const uint64_t* find_logged(const Context& context, const DataNode& node, uint64_t key) {
    const Fragment& fragment = node.fragments[node.model(key)];
    const uint32_t filled = fragment.filled;
    if (!filled) return nullptr;
    prefetch(fragment, filled);
    const uint32_t at = context.find(fragment.keys, filled, key);
    return at < filled ? fragment.values + at : nullptr;
}

// Case 1 of an overflow: twice the room, up to fragment_keys.
inline void grow(Context& context, Fragment& fragment) {
    const uint32_t most = context.settings.fragment_keys;
    Fragment larger = fragment;
    ++larger.exponent;
    if (!fragment.exponent) larger.exponent = exponent_of(FIRST_CAPACITY);
    larger.keys = static_cast<uint64_t*>(context.memory.take(fragment_bytes(larger.exponent, most)));
    larger.values = larger.keys + capacity(larger.exponent, most);
    if (fragment.keys) {
        std::memcpy(larger.keys, fragment.keys, size_t(fragment.filled) * 8);
        std::memcpy(larger.values, fragment.values, size_t(fragment.filled) * 8);
        drop_fragment(context, fragment);
        ++context.growths;
    }
    fragment = larger;
}

inline Outcome insert_logged(Context& context, DataNode& node, uint64_t key, uint64_t payload) {
    Fragment& fragment = node.fragments[node.model(key)];
    const uint32_t filled = fragment.filled;
    __builtin_prefetch(fragment.values + filled, 1);
    prefetch(fragment, filled);
    if (filled && !context.has(UNIQUE_INSERTS) && context.find(fragment.keys, filled, key) < filled)
        return Outcome::present;
    const uint32_t room = capacity(fragment.exponent, context.settings.fragment_keys);
    if (filled == room) {
        if (room == context.settings.fragment_keys) return Outcome::full;
        grow(context, fragment);
    }
    append(fragment, key, payload);
    ++node.count;
    return Outcome::inserted;
}

inline bool erase_logged(Context& context, DataNode& node, uint64_t key) {
    Fragment& fragment = node.fragments[node.model(key)];
    const uint32_t filled = fragment.filled;
    const uint32_t at = filled ? context.find(fragment.keys, filled, key) : 0;
    if (at == filled) return false;
    --node.count;
    const uint32_t last = --fragment.filled;
    fragment.keys[at] = fragment.keys[last];
    fragment.values[at] = fragment.values[last];
    if (!last) {
        drop_fragment(context, fragment);
        fragment = Fragment{};
    }
    return true;
}

// How often the fragments must be doubled so that this key fits into its one; 0 where no allowed number does it.
inline unsigned doublings_for(const Context& context, const DataNode& node, uint64_t key) {
    const Fragment& fragment = node.fragments[node.model(key)];
    Model model = node.model;
    unsigned times = 0;
    for (uint64_t f = node.slots; 2 * f <= context.settings.most_fragments && model.after; f *= 2) {
        ++times;
        --model.after;
        const uint64_t mine = model(key);
        uint32_t with = 0;
        for (uint32_t i = 0; i < fragment.filled; ++i) with += model(fragment.keys[i]) == mine;
        if (with < context.settings.fragment_keys) return times;
    }
    return 0;
}

// Case 2: 2^times as many fragments, each divided by the model with as many times the slope.
inline void multiply(Context& context, DataNode& node, unsigned times) {
    Model model = node.model;
    model.after = uint8_t(model.after - times);
    const uint32_t fragments = node.slots << times;
    std::vector<uint32_t> counts(fragments);
    for (uint32_t f = 0; f < node.slots; ++f)
        for (uint32_t i = 0; i < node.fragments[f].filled; ++i) ++counts[model(node.fragments[f].keys[i])];
    Fragment* made = empty_fragments(context, counts.data(), fragments);
    for (uint32_t f = 0; f < node.slots; ++f)
        for (uint32_t i = 0; i < node.fragments[f].filled; ++i) {
            const uint64_t key = node.fragments[f].keys[i];
            append(made[model(key)], key, node.fragments[f].values[i]);
        }
    drop_fragments(context, node.fragments, node.slots);
    node.fragments = made;
    node.slots = fragments;
    node.model = model;
    ++context.multiplications;
}

// Model and number of keys of each fragment of a new node.
struct LogPlan {
    Model model;
    std::vector<uint32_t> counts;  // empty where no allowed number of fragments suffices
};

// With the fewest of nf, 2 nf, 4 nf ... fragments, none of which is to hold too many of the keys, which ascend.
inline LogPlan counted(const Settings& settings, const Model& model, const uint64_t* keys, uint64_t n) {
    unsigned times = 0;
    const uint64_t enough = 4 * n + settings.new_fragments;  // more of them would be mostly empty
    while ((uint64_t(settings.new_fragments) << times) * 2 <= std::min<uint64_t>(settings.most_fragments, enough) &&
           times < model.after)
        ++times;
    LogPlan plan{model, std::vector<uint32_t>(settings.new_fragments << times)};
    plan.model.after = uint8_t(model.after - times);
    for (uint64_t i = 0; i < n; ++i) ++plan.counts[plan.model(keys[i])];
    auto fits = [&](uint32_t count) { return count <= settings.fragment_keys; };
    if (!std::all_of(plan.counts.begin(), plan.counts.end(), fits)) return {model, {}};
    for (; times; --times) {
        std::vector<uint32_t> half(plan.counts.size() / 2);
        for (size_t f = 0; f < half.size(); ++f) half[f] = plan.counts[2 * f] + plan.counts[2 * f + 1];
        if (!std::all_of(half.begin(), half.end(), fits)) break;
        plan.counts = std::move(half);
        ++plan.model.after;
    }
    return plan;
}

// By least squares, or by equal parts of the keys that are there, whichever needs fewer fragments.
inline LogPlan planned_log(const Settings& settings, Range range, const uint64_t* keys, uint64_t n) {
    if (n < 2) return counted(settings, Model::over(range, settings.new_fragments), keys, n);
    LogPlan line = counted(settings, fitted(keys, n, settings.new_fragments, settings.new_fragments), keys, n);
    if (line.counts.size() == settings.new_fragments) return line;
    LogPlan parts = counted(settings, Model::over({keys[0], keys[n - 1]}, settings.new_fragments), keys, n);
    const bool better = !parts.counts.empty() && (line.counts.empty() || parts.counts.size() < line.counts.size());
    return better ? parts : line;
}

}  // namespace inside
