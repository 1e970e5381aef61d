// Arithmetic of generated expressions, on packs of elements and on scalars alike. 16-bit floats are computed in fp32 and
// rounded after every operation. No operation is contracted with another one (no fused multiply-add): so an expression
// has the same value in every kernel that computes it.
#pragma once
#include <cmath>
#include <type_traits>

#include "treadle_fusion.h"

namespace treadle {

#ifdef __CUDACC__
using f16 = __half;
using bf16 = __nv_bfloat16;
TREADLE_DEVICE float widen(f16 x) { return __half2float(x); }
TREADLE_DEVICE float widen(bf16 x) { return __bfloat162float(x); }
TREADLE_DEVICE void narrow(f16 &to, float x) { to = __float2half_rn(x); }
TREADLE_DEVICE void narrow(bf16 &to, float x) { to = __float2bfloat16_rn(x); }
TREADLE_DEVICE void narrow(f16 &to, double x) { to = __double2half(x); }
TREADLE_DEVICE void narrow(bf16 &to, double x) { to = __double2bfloat16(x); }
TREADLE_DEVICE float sum(float x, float y) { return __fadd_rn(x, y); }
TREADLE_DEVICE float difference(float x, float y) { return __fsub_rn(x, y); }
TREADLE_DEVICE float product(float x, float y) { return __fmul_rn(x, y); }
TREADLE_DEVICE double sum(double x, double y) { return __dadd_rn(x, y); }
TREADLE_DEVICE double difference(double x, double y) { return __dsub_rn(x, y); }
TREADLE_DEVICE double product(double x, double y) { return __dmul_rn(x, y); }
#else
struct f16 {
    uint16_t pattern;
};
struct bf16 {
    uint16_t pattern;
};
// A double to be rounded to 16 bits: towards the odd one of its two neighbours, so that rounding again changes nothing.
inline float nearly(double x) {
    const float f = float(x);
    if (double(f) == x || x != x || bits<uint32_t>(f) & 1) return f;
    return std::nextafterf(f, x > double(f) ? INFINITY : -INFINITY);
}
inline float widen(f16 x) { return Half::widen(x.pattern); }
inline float widen(bf16 x) { return Brain::widen(x.pattern); }
inline void narrow(f16 &to, float x) { to.pattern = Half::narrow(x); }
inline void narrow(bf16 &to, float x) { to.pattern = Brain::narrow(x); }
inline void narrow(f16 &to, double x) { narrow(to, nearly(x)); }
inline void narrow(bf16 &to, double x) { narrow(to, nearly(x)); }
#endif

// Other types are computed in as they are. Integers wrap around.
template <class T>
TREADLE_DEVICE T widen(T x) {
    return x;
}
template <class T>
TREADLE_DEVICE void narrow(T &to, T x) {
    to = x;
}
#ifndef __CUDACC__
inline float sum(float x, float y) { return x + y; }
inline float difference(float x, float y) { return x - y; }
inline float product(float x, float y) { return x * y; }
inline double sum(double x, double y) { return x + y; }
inline double difference(double x, double y) { return x - y; }
inline double product(double x, double y) { return x * y; }
#endif
TREADLE_DEVICE int32_t sum(int32_t x, int32_t y) { return int32_t(uint32_t(x) + uint32_t(y)); }
TREADLE_DEVICE int32_t difference(int32_t x, int32_t y) { return int32_t(uint32_t(x) - uint32_t(y)); }
TREADLE_DEVICE int32_t product(int32_t x, int32_t y) { return int32_t(uint32_t(x) * uint32_t(y)); }
TREADLE_DEVICE int64_t sum(int64_t x, int64_t y) { return int64_t(uint64_t(x) + uint64_t(y)); }
TREADLE_DEVICE int64_t difference(int64_t x, int64_t y) { return int64_t(uint64_t(x) - uint64_t(y)); }
TREADLE_DEVICE int64_t product(int64_t x, int64_t y) { return int64_t(uint64_t(x) * uint64_t(y)); }

template <class T>
TREADLE_DEVICE T power(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
        T result = 1;
        for (T i = 0; i < y; ++i) result = product(result, x);
        return result;
    } else {
        return std::pow(x, y);
    }
}

template <class T>
TREADLE_DEVICE T opposite(T x) {
    if constexpr (std::is_integral_v<T>)
        return difference(T(0), x);
    else
        return -x;
}
template <class T>
TREADLE_DEVICE T magnitude(T x) {
    if constexpr (std::is_integral_v<T>)
        return x < 0 ? opposite(x) : x;
    else
        return std::fabs(x);
}
template <class T>
TREADLE_DEVICE T complement(T x) {
    return ~x;
}
TREADLE_DEVICE bool complement(bool x) { return !x; }

// What an operation is computed in.
template <class T>
using Computed = decltype(widen(T{}));

template <class To, class From>
TREADLE_DEVICE To convert(From x) {
    To to;
    if constexpr (std::is_same_v<To, From>) {
        to = x;
    } else if constexpr (std::is_same_v<To, f16> || std::is_same_v<To, bf16>) {
        if constexpr (std::is_same_v<Computed<From>, float>)
            narrow(to, widen(x));
        else
            narrow(to, double(x));
    } else if constexpr (std::is_same_v<To, bool>) {
        to = widen(x) != Computed<From>(0);
    } else {
        to = To(widen(x));
    }
    return to;
}

// Element i of a pack; a scalar is the same for every i.
template <class T>
struct Element {
    using type = T;
    static constexpr int N = 0;
};
template <class T, int M>
struct Element<Pack<T, M>> {
    using type = T;
    static constexpr int N = M;
};
template <class T>
TREADLE_DEVICE T element(const T &x, int) {
    return x;
}
template <class T, int N>
TREADLE_DEVICE T element(const Pack<T, N> &x, int i) {
    return x[i];
}

template <int... N>
TREADLE_BOTH constexpr int largest() {
    int most = 0;
    ((most = N > most ? N : most), ...);
    return most;
}

// f of every element of packs and scalars; a scalar when all of them are.
template <class To, class F, class... X>
TREADLE_DEVICE auto each(F f, const X &...x) {
    constexpr int N = largest<Element<X>::N...>();
    if constexpr (N == 0) {
        return convert<To>(f(widen(x)...));
    } else {
        Pack<To, N> result;
        TREADLE_UNROLL
        for (int i = 0; i < N; ++i) result[i] = convert<To>(f(widen(element(x, i))...));
        return result;
    }
}

template <class To, class X>
TREADLE_DEVICE auto cast(const X &x) {
    return each<To>([](auto a) { return a; }, x);
}

// The operations of programs. Both operands of a binary one have the same type, comparisons give bool.
namespace op {

#define TREADLE_UNARY(name, value)                                                        \
    template <class A>                                                                    \
    TREADLE_DEVICE auto name(const A &x) {                                                \
        return each<typename Element<A>::type>([](auto a) { return decltype(a)(value); }, x); \
    }
#define TREADLE_BINARY(name, value)                                                                  \
    template <class A, class B>                                                                      \
    TREADLE_DEVICE auto name(const A &x, const B &y) {                                               \
        return each<typename Element<A>::type>([](auto a, auto b) { return decltype(a)(value); }, x, y); \
    }
#define TREADLE_COMPARISON(name, value)                                        \
    template <class A, class B>                                                \
    TREADLE_DEVICE auto name(const A &x, const B &y) {                         \
        return each<bool>([](auto a, auto b) { return bool(value); }, x, y);   \
    }

TREADLE_UNARY(neg, opposite(a))
TREADLE_UNARY(abs, magnitude(a))
TREADLE_UNARY(sqrt, std::sqrt(a))
TREADLE_UNARY(rsqrt, decltype(a)(1) / std::sqrt(a))
TREADLE_UNARY(exp, std::exp(a))
TREADLE_UNARY(log, std::log(a))
TREADLE_UNARY(tanh, std::tanh(a))
TREADLE_UNARY(sigmoid, decltype(a)(1) / sum(decltype(a)(1), std::exp(-a)))
TREADLE_UNARY(silu, a / sum(decltype(a)(1), std::exp(-a)))
TREADLE_UNARY(gelu, product(product(decltype(a)(0.5), a), sum(decltype(a)(1), std::erf(product(a, decltype(a)(0.70710678118654752440))))))
TREADLE_UNARY(relu, a < decltype(a)(0) ? decltype(a)(0) : a)
TREADLE_UNARY(not_, complement(a))

TREADLE_BINARY(add, sum(a, b))
TREADLE_BINARY(sub, difference(a, b))
TREADLE_BINARY(mul, product(a, b))
TREADLE_BINARY(div, a / b)
TREADLE_BINARY(pow, power(a, b))
TREADLE_BINARY(max, a != a || a > b ? a : b)
TREADLE_BINARY(min, a != a || a < b ? a : b)
TREADLE_BINARY(and_, a & b)
TREADLE_BINARY(or_, a | b)
TREADLE_BINARY(xor_, a ^ b)

TREADLE_COMPARISON(eq, a == b)
TREADLE_COMPARISON(ne, a != b)
TREADLE_COMPARISON(lt, a < b)
TREADLE_COMPARISON(le, a <= b)
TREADLE_COMPARISON(gt, a > b)
TREADLE_COMPARISON(ge, a >= b)

#undef TREADLE_UNARY
#undef TREADLE_BINARY
#undef TREADLE_COMPARISON

template <class C, class A, class B>
TREADLE_DEVICE auto where(const C &condition, const A &x, const B &y) {
    return each<typename Element<A>::type>([](auto c, auto a, auto b) { return c ? a : b; }, condition, x, y);
}

}  // namespace op

// Elements `index(i)` of a tensor that is broadcast, for i from `global` on. The first time that a rank reads one counts
// as traffic: among its first COUNTED elements, after which they repeat.
template <class T, int N, int64_t COUNTED, class Index>
TREADLE_DEVICE Pack<T, N> gather(const T *from, int64_t global, [[maybe_unused]] int64_t local, Index index) {
    Pack<T, N> values;
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) {
        values[i] = from[index(global + i)];
#ifdef TREADLE_COUNT
        const bool first = local + i == 0 || index(global + i) != index(global + i - 1);
        if (first && local + i < COUNTED) count(&Counts::loaded, &Counts::loaded_bytes, 1, sizeof(T));
#endif
    }
    return values;
}

// The same where it is the last EXTENT elements that repeat: those of a pack lie side by side if EXTENT allows.
template <class T, int N, int64_t EXTENT, int64_t COUNTED>
TREADLE_DEVICE Pack<T, N> repeat(const T *from, int64_t global, [[maybe_unused]] int64_t local) {
#ifndef TREADLE_COUNT
    if (EXTENT % N == 0 && global % N == 0) return load_again<T, N>(from + global % EXTENT);
#endif
    return gather<T, N, COUNTED>(from, global, local, [](int64_t i) { return i % EXTENT; });
}

// Rows of ROW elements of x in the order of an index; at(i) is where element i of x lies in memory.
template <class T, int N, int64_t ROW, class I, class At>
TREADLE_DEVICE Pack<T, N> permute(const T *x, const I *order, int64_t global, [[maybe_unused]] int64_t local, At at) {
    Pack<T, N> values;
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) {
        values[i] = x[at(int64_t(order[(global + i) / ROW]) * ROW + (global + i) % ROW)];
#ifdef TREADLE_COUNT
        count(&Counts::loaded, &Counts::loaded_bytes, 1, sizeof(T));
        if ((global + i) % ROW == 0 || local + i == 0) count(&Counts::loaded, &Counts::loaded_bytes, 1, sizeof(I));
#endif
    }
    return values;
}

// A pack of what may be a scalar.
template <class T, int N, class X>
TREADLE_DEVICE Pack<T, N> spread(const X &x) {
    Pack<T, N> pack;
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) pack[i] = element(x, i);
    return pack;
}

// Which of the tensors that make up a dimension an index of it falls in; tensor k ends before `ends[k]`.
TREADLE_DEVICE int64_t part_of(const int64_t *ends, int parts, int64_t index) {
    int first = 0, last = parts - 1;
    while (first < last) {
        const int middle = (first + last) / 2;
        if (index < ends[middle])
            last = middle;
        else
            first = middle + 1;
    }
    return first;
}

}  // namespace treadle
