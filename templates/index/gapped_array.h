// Gapped arrays: keys in order near the slot that a linear model names (ALEX; MAPLE, "Gapped Array").
namespace inside {

inline size_t gapped_bytes(uint32_t slots) { return size_t(slots) * 16 + (slots + 63) / 64 * 8; }

inline uint32_t gapped_slots(uint64_t keys, double fill) {
    const uint64_t slots = uint64_t(std::ceil(double(keys) / fill));
    return uint32_t(slots < LEAST_SLOTS ? LEAST_SLOTS : slots);
}

// Slots and what operations are expected to cost.
struct GappedPlan {
    Model model;
    uint32_t slots;
    double search, shifts;

    double cost(double insert_share) const { return SEARCH_COST * search + SHIFT_COST * shifts * insert_share; }
};

// Calls visit(i, slot) for each key: its predicted slot or the next free one, so that the rest still fits.
template <typename Visit>
void place(const Model& model, uint32_t slots, const uint64_t* keys, uint64_t n, Visit&& visit) {
    uint64_t free = 0;
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t at = model(keys[i]);
        at = at < free ? free : at;
        const uint64_t last = slots - (n - i);
        at = at > last ? last : at;
        visit(i, uint32_t(at));
        free = at + 1;
    }
}

// Expected iterations of a search: log2 of the error. Expected shifts of an insert: a quarter of the dense region that
// it falls into (ALEX, cost model). `used` slots are for these keys, the others for larger ones.
inline GappedPlan planned(const uint64_t* keys, uint64_t n, uint32_t slots, uint32_t used) {
    GappedPlan plan{Model(), slots, 0, 0};
    if (!n) return plan;
    plan.model = fitted(keys, n, used, slots);
    double search = 0, shifts = 0;
    uint64_t product = 1, region = 0;  // the logarithm of a product of up to 2 numbers below 2^21
    uint32_t last = NO_SLOT;
    place(plan.model, slots, keys, n, [&](uint64_t i, uint32_t at) {
        const uint64_t wanted = plan.model(keys[i]);
        product *= (wanted > at ? wanted - at : at - wanted) + 1;
        if (product >> 40) {
            search += std::log2(double(product));
            product = 1;
        }
        if (at != last + 1 && last != NO_SLOT) {
            shifts += double(region) * double(region) / 4;
            region = 0;
        }
        ++region;
        last = at;
    });
    shifts += double(region) * double(region) / 4;
    plan.search = (search + std::log2(double(product))) / double(n);
    plan.shifts = shifts / slots;
    return plan;
}

inline GappedPlan planned(const uint64_t* keys, uint64_t n, uint32_t slots) { return planned(keys, n, slots, slots); }

// Whether nearly all inserts came above all keys.
inline bool appends(const DataNode& node) { return 10 * node.beyond > 9 * node.inserts; }

inline void drop_gapped(Memory& memory, DataNode& node) noexcept {
    if (node.keys) memory.give(node.keys, gapped_bytes(node.slots));
    node.keys = nullptr;
}

// Raises std::bad_alloc before it changes the node.
inline void fill_gapped(Memory& memory, DataNode& node, const GappedPlan& plan, const uint64_t* keys,
                        const uint64_t* payloads, uint64_t n) {
    uint64_t* block = static_cast<uint64_t*>(memory.take(gapped_bytes(plan.slots)));
    drop_gapped(memory, node);
    node.model = plan.model;
    node.slots = plan.slots;
    node.keys = block;
    node.payloads = block + plan.slots;
    node.occupied = block + 2 * size_t(plan.slots);
    node.count = n;
    node.inserts = node.shifts = node.beyond = node.searches = node.searched = 0;
    node.expected_search = float(plan.search);
    node.expected_shifts = float(plan.shifts);
    std::memset(node.occupied, 0, (plan.slots + 63) / 64 * 8);
    uint32_t free = 0;
    place(plan.model, plan.slots, keys, n, [&](uint64_t i, uint32_t at) {
        for (; free < at; ++free) node.keys[free] = keys[i];
        node.keys[at] = keys[i];
        node.payloads[at] = payloads[i];
        set(node.occupied, at);
        free = at + 1;
    });
    for (; free < plan.slots; ++free) node.keys[free] = UINT64_MAX;
}

// First slot whose key is larger, from the predicted one by exponential search; adds the doublings to `iterations`.
inline uint32_t upper_bound(const DataNode& node, uint64_t key, uint64_t& iterations) {
    const uint64_t* keys = node.keys;
    const uint32_t from = uint32_t(node.model(key));
    uint32_t bound = 1, low, length;
    if (keys[from] <= key) {
        const uint32_t size = node.slots - from;
        while (bound < size && keys[from + bound] <= key) {
            bound *= 2;
            ++iterations;
        }
        low = from + bound / 2;
        length = from + (bound < size ? bound : size) - low;
    } else {
        while (bound < from && keys[from - bound] > key) {
            bound *= 2;
            ++iterations;
        }
        low = from - (bound < from ? bound : from);
        length = from - bound / 2 - low;
    }
    while (length) {  // the answer lies in low .. low + length
        const uint32_t half = length / 2;
        const bool right = keys[low + half] <= key;
        low = right ? low + half + 1 : low;
        length = right ? length - half - 1 : half;
    }
    return low;
}

// The slot of a key, or NO_SLOT. `above` is the slot after it: the first one with a larger key.
inline uint32_t slot_of(const DataNode& node, uint64_t key, uint32_t above) {
    if (!above || node.keys[above - 1] != key) return NO_SLOT;
    if (key != UINT64_MAX) return above - 1;
    const uint32_t last = previous_slot(node.occupied, node.slots, true);  // gaps at the end look like this key
    return last != NO_SLOT && node.keys[last] == key ? last : NO_SLOT;
}

inline const uint64_t* find_gapped(const DataNode& node, uint64_t key, bool monitored) {
    __builtin_prefetch(node.payloads + node.model(key));
    uint64_t iterations = 0;
    const uint32_t at = slot_of(node, key, upper_bound(node, key, iterations));
    if (monitored) {
        node.searches += iterations;
        ++node.searched;
    }
    return at == NO_SLOT ? nullptr : node.payloads + at;
}

inline void put(DataNode& node, uint32_t at, uint64_t key, uint64_t payload) {
    node.keys[at] = key;
    node.payloads[at] = payload;
    set(node.occupied, at);
}

// Moves keys by one slot so that slot `above` or the one below becomes free; returns that slot. The nearest gap gets
// the last of the moved keys, the right one of two.
inline uint32_t make_gap(DataNode& node, uint32_t above) {
    const uint32_t right = next_slot(node.occupied, node.slots, above, false);
    const uint32_t left = previous_slot(node.occupied, above, false);
    if (right != NO_SLOT && (left == NO_SLOT || right - above <= above - 1 - left)) {
        const uint32_t moved = right - above;
        std::memmove(node.keys + above + 1, node.keys + above, size_t(moved) * 8);
        std::memmove(node.payloads + above + 1, node.payloads + above, size_t(moved) * 8);
        set(node.occupied, right);
        node.shifts += moved;
        return above;
    }
    const uint32_t moved = above - 1 - left;
    std::memmove(node.keys + left, node.keys + left + 1, size_t(moved) * 8);
    std::memmove(node.payloads + left, node.payloads + left + 1, size_t(moved) * 8);
    set(node.occupied, left);
    node.shifts += moved;
    return above - 1;
}

// Whether the averages since the node was built are above what is expected and allowed (MAPLE, Msi and Msh).
inline bool over_thresholds(const DataNode& node, const Settings& settings) {
    const double search = node.searched ? double(node.searches) / double(node.searched) : 0;
    const double shifts = node.inserts ? double(node.shifts) / double(node.inserts) : 0;
    return search > std::max(double(node.expected_search), settings.most_search) ||
           shifts > std::max(double(node.expected_shifts), settings.most_shifts);
}

// Whether ALEX's cost model wants the node split: operations cost far more than expected, or inserts shift many keys.
inline bool costs_too_much(const DataNode& node, double insert_share) {
    if (!node.inserts) return false;
    const double shifts = double(node.shifts) / double(node.inserts);
    const double spent = SEARCH_COST * double(node.searches) / double(node.searched) + SHIFT_COST * shifts * insert_share;
    const double expected = SEARCH_COST * node.expected_search + SHIFT_COST * node.expected_shifts * insert_share;
    return shifts > MANY_SHIFTS || (spent > SEARCH_COST && spent > DEVIATION * expected);
}

// Whether operations have cost what a new leaf does: a leaf of many keys is not built anew for a few inserts.
inline bool is_paid(const DataNode& node) {
    return SEARCH_COST * double(node.searches) + SHIFT_COST * double(node.shifts) >= REBUILD_COST * double(node.count);
}

inline bool is_full(const DataNode& node) { return double(node.count) >= MOST_FILL * node.slots; }

inline Outcome insert_gapped(const Context& context, DataNode& node, uint64_t key, uint64_t payload) {
    const uint64_t before = node.searches;
    uint32_t above = upper_bound(node, key, node.searches);
    if (slot_of(node, key, above) != NO_SLOT || is_full(node)) {
        const bool present = slot_of(node, key, above) != NO_SLOT;
        node.searches = before;
        return present ? Outcome::present : Outcome::full;
    }
    ++node.searched;
    ++node.inserts;
    if (key == UINT64_MAX) {  // behind the last key
        const uint32_t last = previous_slot(node.occupied, node.slots, true);
        above = last == NO_SLOT ? 0 : last + 1;
    }
    uint32_t at;
    if (above < node.slots && !is_set(node.occupied, above)) {
        const uint32_t following = next_slot(node.occupied, node.slots, above, true);
        const uint32_t end = following == NO_SLOT ? node.slots : following;
        node.beyond += following == NO_SLOT;
        const uint32_t wanted = uint32_t(node.model(key));
        at = wanted < above ? above : wanted >= end ? end - 1 : wanted;
        for (uint32_t gap = above; gap < at; ++gap) node.keys[gap] = key;
    } else {
        node.beyond += above == node.slots;
        at = make_gap(node, above);
    }
    put(node, at, key, payload);
    ++node.count;
    if (node.inserts % CHECKED_INSERTS || !is_paid(node)) return Outcome::inserted;
    const bool due = context.has(COST_MODEL_ONLY) ? double(node.shifts) > MANY_SHIFTS * double(node.inserts)
                                                  : over_thresholds(node, context.settings);
    return due ? Outcome::due : Outcome::inserted;
}

inline bool erase_gapped(DataNode& node, uint64_t key) {
    uint64_t unused = 0;
    const uint32_t at = slot_of(node, key, upper_bound(node, key, unused));
    if (at == NO_SLOT) return false;
    clear(node.occupied, at);
    --node.count;
    const uint64_t next = at + 1 < node.slots ? node.keys[at + 1] : UINT64_MAX;
    for (uint32_t gap = at + 1; gap-- > 0 && !is_set(node.occupied, gap);) node.keys[gap] = next;
    return true;
}

}  // namespace inside
