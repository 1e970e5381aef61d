// Inner nodes: a linear model over a power of two of child slots; a child takes one or more consecutive slots.
namespace inside {

// The lowest bit of a child says that it is a leaf.
using Child = uintptr_t;

struct InnerNode {
    Model model;
    uint64_t slots;
    uint64_t children;  // distinct ones
    uint64_t built;     // keys below it when it was made
    uint64_t deepened;  // keys of leaves below it that became inner nodes
    Child* child;
};

inline bool is_leaf(Child child) { return child & 1; }
inline DataNode* leaf_of(Child child) { return reinterpret_cast<DataNode*>(child - 1); }
inline InnerNode* inner_of(Child child) { return reinterpret_cast<InnerNode*>(child); }
inline Child child_of(DataNode* node) { return reinterpret_cast<Child>(node) + 1; }
inline Child child_of(InnerNode* node) { return reinterpret_cast<Child>(node); }

// Where this key would be.
inline DataNode* descend(Child at, uint64_t key) {
    while (!is_leaf(at)) {
        const InnerNode* node = inner_of(at);
        at = node->child[node->model(key)];
    }
    return leaf_of(at);
}

// The slots from .. to - 1 of the child at a slot: a power of two of them, from a multiple of that on.
inline void slots_of(const InnerNode& node, uint64_t slot, uint64_t& from, uint64_t& to) {
    uint64_t width = 1;
    for (; width < node.slots; width *= 2) {
        const uint64_t wider = slot & ~(2 * width - 1);
        if (node.child[wider] != node.child[slot] || node.child[wider + 2 * width - 1] != node.child[slot]) break;
    }
    from = slot & ~(width - 1);
    to = from + width;
}

// The keys that slots from .. to - 1 of an inner node get, of those that reach it at all.
inline Range range_of(const InnerNode& node, Range all, uint64_t from, uint64_t to) {
    return {from ? node.model.first_key(from) : all.first, to < node.slots ? node.model.first_key(to) - 1 : all.last};
}

// A node whose slots are all empty. Raises std::bad_alloc.
inline InnerNode* new_inner(Context& context, const Model& model, uint64_t slots) {
    InnerNode* node = new (context.memory.take(sizeof(InnerNode))) InnerNode{model, slots, 0, 0, 0, nullptr};
    try {
        node->child = static_cast<Child*>(context.memory.take(slots * sizeof(Child)));
    } catch (...) {
        context.memory.give(node, sizeof(InnerNode));
        throw;
    }
    std::memset(node->child, 0, slots * sizeof(Child));
    return node;
}

void drop(Context& context, Child child) noexcept;

// Each distinct child; empty slots are left out.
inline void drop_children(Context& context, const Child* child, uint64_t slots) noexcept {
    for (uint64_t s = 0; s < slots; ++s)
        if (child[s] && (s + 1 == slots || child[s + 1] != child[s])) drop(context, child[s]);
}

inline void drop(Context& context, Child child) noexcept {
    if (is_leaf(child)) return drop_leaf(context, leaf_of(child));
    InnerNode* node = inner_of(child);
    drop_children(context, node->child, node->slots);
    context.memory.give(node->child, node->slots * sizeof(Child));
    context.memory.give(node, sizeof(InnerNode));
}

// 2^times as many slots, so that each child takes as many times its slots. Raises std::bad_alloc and changes nothing.
inline void widen(Context& context, InnerNode& node, unsigned times) {
    const uint64_t slots = node.slots << times;
    Child* child = static_cast<Child*>(context.memory.take(slots * sizeof(Child)));
    for (uint64_t s = 0; s < slots; ++s) child[s] = node.child[s >> times];
    context.memory.give(node.child, node.slots * sizeof(Child));
    node.child = child;
    node.slots = slots;
    node.model.after = uint8_t(node.model.after - times);
}

// Whether the node may have that many slots for `more` further children: every slot has a key, and few repeat.
inline bool may_widen(const InnerNode& node, unsigned times, uint64_t more) {
    const uint64_t slots = node.slots << times;
    return slots <= MOST_CHILDREN && slots - 1 <= node.model.span && times <= node.model.after &&
           slots <= SPARE_SLOTS * (node.children + more);
}

}  // namespace inside
