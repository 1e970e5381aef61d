// Sums, minima and maxima on 32 bits at a time: one fp32 or int32, or two fp16 or bf16.
#pragma once
#include <cmath>
#include <cstring>

#include "treadle_device.h"

namespace treadle {

template <class To, class From>
TREADLE_DEVICE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

struct Float32 {
    using Value = float;
    TREADLE_DEVICE static float add(float a, float b) { return a + b; }
    TREADLE_DEVICE static float min(float a, float b) { return fminf(a, b); }
    TREADLE_DEVICE static float max(float a, float b) { return fmaxf(a, b); }
    TREADLE_DEVICE static float divide(float a, int n) { return a / n; }
};

struct Int32 {
    using Value = int32_t;
    TREADLE_DEVICE static int32_t add(int32_t a, int32_t b) { return bits<int32_t>(uint32_t(a) + uint32_t(b)); }
    TREADLE_DEVICE static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
    TREADLE_DEVICE static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }
    TREADLE_DEVICE static int32_t divide(int32_t a, int n) { return a / n; }  // towards zero
};

#ifdef __CUDACC__
template <class Pair>
struct Packed {
    using Value = Pair;
    TREADLE_DEVICE static Pair add(Pair a, Pair b) { return __hadd2(a, b); }
    TREADLE_DEVICE static Pair min(Pair a, Pair b) { return __hmin2(a, b); }
    TREADLE_DEVICE static Pair max(Pair a, Pair b) { return __hmax2(a, b); }
    TREADLE_DEVICE static Pair divide(Pair a, int n) {
        Pair result;
        result.x = __low2float(a) / n;
        result.y = __high2float(a) / n;
        return result;
    }
};
using Float16 = Packed<__half2>;
using Bfloat16 = Packed<__nv_bfloat162>;
#else
// Rounding to nearest, ties to even. A sum of two is exact enough in fp32 that rounding it once more changes nothing.
struct Half {
    static float widen(uint16_t h) {
        const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
        if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
        if (exponent == 0) return bits<float>(sign | bits<uint32_t>(float(fraction) * 0x1p-24f));
        return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
    }
    static uint16_t narrow(float f) {
        const uint32_t u = bits<uint32_t>(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffffu;
        if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00);
        if (rest >= 0x477ff000u) return uint16_t(sign | 0x7c00);
        if (rest < 0x38800000u) return uint16_t(sign | uint32_t(std::nearbyint(std::fabs(f) * 0x1p24f)));
        return uint16_t(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13));
    }
};

struct Brain {
    static float widen(uint16_t h) { return bits<float>(uint32_t(h) << 16); }
    static uint16_t narrow(float f) {
        const uint32_t u = bits<uint32_t>(f);
        if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40);
        return uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
};

template <class Format>
struct Packed {
    struct Value {
        uint16_t low, high;
    };
    template <class F>
    static Value each(Value a, Value b, F f) {
        return {Format::narrow(f(Format::widen(a.low), Format::widen(b.low))),
                Format::narrow(f(Format::widen(a.high), Format::widen(b.high)))};
    }
    static Value add(Value a, Value b) { return each(a, b, Float32::add); }
    static Value min(Value a, Value b) { return each(a, b, Float32::min); }
    static Value max(Value a, Value b) { return each(a, b, Float32::max); }
    static Value divide(Value a, int n) {
        return each(a, a, [n](float x, float) { return x / n; });
    }
};
using Float16 = Packed<Half>;
using Bfloat16 = Packed<Brain>;
#endif

// `part` joins two operands, `divide` makes a mean of a sum. The operation is the same for all threads of a launch, so
// choosing it here costs little and saves kernels.
template <class T>
struct Reduction {
    TREADLE_DEVICE static uint32_t part(int operation, uint32_t a, uint32_t b) {
        const auto x = bits<typename T::Value>(a), y = bits<typename T::Value>(b);
        return bits<uint32_t>(operation == SUM ? T::add(x, y) : operation == MIN ? T::min(x, y) : T::max(x, y));
    }
    TREADLE_DEVICE static uint32_t divide(uint32_t a, int n) {
        return bits<uint32_t>(T::divide(bits<typename T::Value>(a), n));
    }
};

// For programs that only move data.
struct NoReduction {
    TREADLE_DEVICE static uint32_t part(int, uint32_t a, uint32_t) { return a; }
    TREADLE_DEVICE static uint32_t divide(uint32_t a, int) { return a; }
};

template <class R, int N>
TREADLE_DEVICE Word<N> join(int operation, Word<N> a, const Word<N> &b) {
    TREADLE_UNROLL
    for (int i = 0; i < N / 4; ++i) a.part[i] = R::part(operation, a.part[i], b.part[i]);
    return a;
}

}  // namespace treadle
