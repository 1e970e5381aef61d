// One class for both kinds of leaves, so that an operation is a branch and not a virtual call.
namespace inside {

// A part of the keys of a fragmented log in the order of arrival: 21 bytes. No keys are no block.
struct __attribute__((packed)) Fragment {
    uint64_t* keys;
    uint64_t* values;
    uint32_t filled;
    uint8_t exponent;  // room for 2 to this power keys, and not more than fragment_keys
};
static_assert(sizeof(Fragment) == 21, "overhead of a fragment");

enum class Dispatch : uint8_t { gapped_array, fragmented_log, virtual_call };

struct Context;
struct DataNode;

// The other kind of dispatch, to compare with.
struct Calls {
    virtual const uint64_t* find(const Context&, const DataNode&, uint64_t key) const = 0;
    virtual Outcome insert(Context&, DataNode&, uint64_t key, uint64_t payload) const = 0;
    virtual bool erase(Context&, DataNode&, uint64_t key) const = 0;

protected:
    ~Calls() = default;
};

struct alignas(64) DataNode {
    Model model;
    uint32_t slots;  // of the gapped array, or fragments
    Dispatch dispatch;
    bool roomy;  // a gapped array with slots left for larger keys
    union {
        uint64_t* keys;  // a gap holds the key that follows it, or UINT64_MAX
        Fragment* fragments;
    };
    uint64_t* payloads;
    uint64_t* occupied;  // bitmap
    // not read by lookups
    uint64_t count;  // keys
    uint64_t inserts, shifts;
    uint64_t beyond;  // inserts above all other keys
    mutable uint64_t searches, searched;  // iterations, and operations that made them
    float expected_search, expected_shifts;
    const Calls* calls;
};

// What all nodes of an index share.
struct Context {
    Settings settings;
    bool avx2;
    Memory memory;
    uint64_t expansions = 0, splits = 0, growths = 0, multiplications = 0;

    explicit Context(const Settings& of) : settings(of), avx2(!(of.flags & NO_AVX2) && has_avx2()) {}
    bool has(uint32_t flag) const { return settings.flags & flag; }
    uint32_t find(const uint64_t* keys, uint32_t n, uint64_t key) const {
        return avx2 ? find_avx2(keys, n, key) : find_scalar(keys, n, key);
    }
};

}  // namespace inside
