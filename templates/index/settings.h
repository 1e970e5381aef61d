// What an index is built with, and the constants of its structure.
enum class Leaves : uint32_t { gapped_array = 0, fragmented_log = 1 };

// Bits of Settings::flags.
constexpr uint32_t MONITOR_LOOKUPS = 1;  // lookups write their search iterations down too
constexpr uint32_t VIRTUAL_LEAVES = 2;   // leaves are reached by virtual calls instead of a branch
constexpr uint32_t UNIQUE_INSERTS = 4;   // inserted keys are promised to be new: no search for them in fragments
constexpr uint32_t NO_AVX2 = 8;
constexpr uint32_t COST_MODEL_ONLY = 16;  // gapped arrays as in ALEX: no thresholds

struct Settings {
    Leaves leaves;
    double most_search, most_shifts;                        // Msi, Msh of gapped arrays
    uint32_t fragment_keys, most_fragments, new_fragments;  // mf_size, Mnf, nf of fragmented logs
    double insert_share;                                    // of all operations, for the costs of gapped arrays
    uint32_t flags;
};

struct Counts {
    uint64_t inner_nodes, leaves, fragments, empty_fragment_slots, depth;
    uint64_t expansions, splits, growths, multiplications;  // since the index was made
    uint64_t fullest_fragment;
};

namespace inside {

// Fragmented logs.
constexpr uint32_t FIRST_CAPACITY = 2;  // keys of a new fragment; it doubles until fragment_keys

// Gapped arrays (the constants of ALEX).
constexpr double BUILT_FILL = 0.7, EXPANDED_FILL = 0.6, MOST_FILL = 0.8;
constexpr uint32_t LEAST_SLOTS = 8, MOST_SLOTS = 1u << 20;
constexpr double SEARCH_COST = 20, SHIFT_COST = 0.5, LEVEL_COST = 20, MEMORY_COST = 5e-7;  // ns, ns, ns, ns per byte
constexpr double DEVIATION = 1.5;        // a node whose operations cost this much more than expected is split
constexpr double MANY_SHIFTS = 100;      // per insert: split at once
constexpr double REBUILD_COST = 2;       // ns of a key: operations have cost this much before averages cause a rebuild
constexpr uint64_t CHECKED_INSERTS = 64;  // averages are looked at each time after this many inserts
constexpr uint64_t FEW_KEYS = 4;         // a leaf of up to this many keys needs to meet no threshold

// Inner nodes.
constexpr uint64_t MOST_CHILDREN = 1u << 20;
constexpr uint64_t KEYS_PER_SLOT = 64;   // at bulk load; neighbours share a leaf where they fit or that costs less
constexpr uint64_t SPARE_SLOTS = 4;      // an inner node doubles while it has no more slots than this for each child
constexpr size_t DEEP = 12;              // inner nodes of a path, from which on a subtree may be built anew

struct Range {
    uint64_t first, last;  // both included
};

struct Item {
    uint64_t key, payload;
};

inline bool operator<(const Item& a, const Item& b) { return a.key < b.key; }

enum class Outcome : uint8_t { inserted, present, full, due };  // due: inserted, and the leaf wants to be rebuilt

}  // namespace inside
