// A switch that reads the buffers of all ranks as one, joined, and writes to all of them at once (NVLink SHARP). On
// GPUs before sm_90 and on the host the same is done through the members' own pointers, in rank order.
#pragma once
#include "treadle_reduce.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TREADLE_MULTIMEM
#endif

namespace treadle {

// fp16 and bf16 are summed in fp32 and rounded once.
template <class T>
struct Total {
    typename T::Value value;
    TREADLE_DEVICE void begin(uint32_t part) { value = bits<typename T::Value>(part); }
    TREADLE_DEVICE void add(uint32_t part) { value = T::add(value, bits<typename T::Value>(part)); }
    TREADLE_DEVICE uint32_t end() const { return bits<uint32_t>(value); }
};

template <class Format>
struct Total<Packed<Format>> {
    float low, high;
    TREADLE_DEVICE void begin(uint32_t part) { low = first(part), high = second(part); }
    TREADLE_DEVICE void add(uint32_t part) { low += first(part), high += second(part); }
#ifdef __CUDACC__
    TREADLE_DEVICE static float first(uint32_t part) { return __low2float(bits<Format>(part)); }
    TREADLE_DEVICE static float second(uint32_t part) { return __high2float(bits<Format>(part)); }
    TREADLE_DEVICE uint32_t end() const {
        Format both;
        both.x = low, both.y = high;
        return bits<uint32_t>(both);
    }
#else
    static float first(uint32_t part) { return Format::widen(uint16_t(part)); }
    static float second(uint32_t part) { return Format::widen(uint16_t(part >> 16)); }
    uint32_t end() const { return Format::narrow(low) | uint32_t(Format::narrow(high)) << 16; }
#endif
};

// The buffers of all ranks, and the address at which a switch knows them as one, null without such a switch.
struct Members {
    char *buffer[64];
    char *multicast;
    int32_t ranks;
};
constexpr int MAX_MEMBERS = sizeof(Members::buffer) / sizeof(char *);

// The word at offset `at` of every buffer, joined in rank order.
template <class T>
TREADLE_DEVICE Word<16> joined(const Members &members, int operation, int64_t at) {
    constexpr int BATCH = 8;  // loads in flight
    Word<16> result{};
    Total<T> total[4];
    for (int from = 0; from < members.ranks; from += BATCH) {
        Word<16> word[BATCH];
        TREADLE_UNROLL
        for (int k = 0; k < BATCH; ++k)
            if (from + k < members.ranks) word[k] = load_slot(members.buffer[from + k] + at);
        TREADLE_UNROLL
        for (int k = 0; k < BATCH; ++k) {
            if (from + k >= members.ranks) continue;
            TREADLE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const uint32_t part = word[k].part[i];
                if (operation != SUM)
                    result.part[i] = from + k ? Reduction<T>::part(operation, result.part[i], part) : part;
                else if (from + k)
                    total[i].add(part);
                else
                    total[i].begin(part);
            }
        }
    }
    TREADLE_UNROLL
    for (int i = 0; i < 4; ++i)
        if (operation == SUM) result.part[i] = total[i].end();
    return result;
}

// What a switch can do: PTX has no minimum and maximum of fp32.
template <class T>
struct Switched {
    TREADLE_DEVICE static bool can(int) { return true; }
};
template <>
struct Switched<Float32> {
    TREADLE_DEVICE static bool can(int operation) { return operation == SUM; }
};

#ifdef TREADLE_MULTIMEM
#define TREADLE_LOAD_REDUCE(what) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." what " {%0, %1, %2, %3}, [%4];" \
                 : "=r"(w.part[0]), "=r"(w.part[1]), "=r"(w.part[2]), "=r"(w.part[3]) \
                 : "l"(from) \
                 : "memory")
#define TREADLE_LOAD_REDUCE_EACH(what) \
    TREADLE_UNROLL \
    for (int i = 0; i < 4; ++i) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." what " %0, [%1];" \
                 : "=r"(w.part[i]) \
                 : "l"(from + 4 * i) \
                 : "memory")

TREADLE_DEVICE void load_reduce(const char *from, int, Word<16> &w, Float32) { TREADLE_LOAD_REDUCE("add.v4.f32"); }
TREADLE_DEVICE void load_reduce(const char *from, int operation, Word<16> &w, Float16) {
    if (operation == SUM) TREADLE_LOAD_REDUCE("add.acc::f32.v4.f16x2");
    else if (operation == MIN) TREADLE_LOAD_REDUCE("min.v4.f16x2");
    else TREADLE_LOAD_REDUCE("max.v4.f16x2");
}
TREADLE_DEVICE void load_reduce(const char *from, int operation, Word<16> &w, Bfloat16) {
    if (operation == SUM) TREADLE_LOAD_REDUCE("add.acc::f32.v4.bf16x2");
    else if (operation == MIN) TREADLE_LOAD_REDUCE("min.v4.bf16x2");
    else TREADLE_LOAD_REDUCE("max.v4.bf16x2");
}
TREADLE_DEVICE void load_reduce(const char *from, int operation, Word<16> &w, Int32) {
    if (operation == SUM) {
        TREADLE_LOAD_REDUCE_EACH("add.u32");
    } else if (operation == MIN) {
        TREADLE_LOAD_REDUCE_EACH("min.s32");
    } else {
        TREADLE_LOAD_REDUCE_EACH("max.s32");
    }
}
#endif

// The same as `joined`, by the switch. Whether `Switched` can is for the caller to ask.
template <class T>
TREADLE_DEVICE Word<16> multicast_join(const Members &members, int operation, int64_t at) {
#ifdef TREADLE_MULTIMEM
    Word<16> w;
    load_reduce(members.multicast + at, operation, w, T{});
    return w;
#else
    return joined<T>(members, operation, at);
#endif
}

// Writes a word to the same place of every buffer.
TREADLE_DEVICE void spread(const Members &members, int64_t at, const Word<16> &word) {
    for (int member = 0; member < members.ranks; ++member) store_slot(members.buffer[member] + at, word);
}

TREADLE_DEVICE void multicast_spread(const Members &members, int64_t at, const Word<16> &word) {
#ifdef TREADLE_MULTIMEM
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(members.multicast + at),
                 "r"(word.part[0]), "r"(word.part[1]), "r"(word.part[2]), "r"(word.part[3])
                 : "memory");
#else
    spread(members, at, word);
#endif
}

// Orders accesses through a buffer's own address and through the switch's address of the same memory.
TREADLE_DEVICE void multicast_fence() {
#ifdef TREADLE_MULTIMEM
    asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

}  // namespace treadle
