// Which slots of a gapped array hold keys.
namespace inside {

constexpr uint32_t NO_SLOT = UINT32_MAX;

inline bool is_set(const uint64_t* bits, uint32_t at) { return bits[at >> 6] >> (at & 63) & 1; }
inline void set(uint64_t* bits, uint32_t at) { bits[at >> 6] |= uint64_t(1) << (at & 63); }
inline void clear(uint64_t* bits, uint32_t at) { bits[at >> 6] &= ~(uint64_t(1) << (at & 63)); }

// First slot from `at` on whose bit is `value`; NO_SLOT where there is none below `slots`.
inline uint32_t next_slot(const uint64_t* bits, uint32_t slots, uint32_t at, bool value) {
    if (at >= slots) return NO_SLOT;
    const uint64_t flip = value ? 0 : ~uint64_t(0);
    uint64_t word = (bits[at >> 6] ^ flip) & (~uint64_t(0) << (at & 63));
    for (uint32_t i = at >> 6;; word = bits[i] ^ flip) {
        if (word) {
            const uint32_t found = (i << 6) + uint32_t(__builtin_ctzll(word));
            return found < slots ? found : NO_SLOT;
        }
        if (++i >= (slots + 63) >> 6) return NO_SLOT;
    }
}

// Last slot below `end` whose bit is `value`.
inline uint32_t previous_slot(const uint64_t* bits, uint32_t end, bool value) {
    if (!end) return NO_SLOT;
    const uint64_t flip = value ? 0 : ~uint64_t(0);
    uint32_t i = (end - 1) >> 6;
    uint64_t word = (bits[i] ^ flip) & (~uint64_t(0) >> (63 - ((end - 1) & 63)));
    while (!word) {
        if (!i) return NO_SLOT;
        word = bits[--i] ^ flip;
    }
    return (i << 6) + 63 - uint32_t(__builtin_clzll(word));
}

}  // namespace inside
