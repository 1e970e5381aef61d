// Sums, minima and maxima of two runs of elements, as PyTorch has them on a CPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace treadle {

using Combine = void (*)(char *to, const char *one, const char *other, int64_t bytes);

// Whole numbers wrap around, as in PyTorch.
template <class V>
V sum(V a, V b) {
    if constexpr (std::is_integral_v<V>)
        return V(std::make_unsigned_t<V>(a) + std::make_unsigned_t<V>(b));
    else
        return a + b;
}

struct Half { uint16_t bits; };
struct Brain { uint16_t bits; };

#ifdef __FLT16_MAX__
inline float wide(Half h) {
    _Float16 value;
    std::memcpy(&value, &h.bits, 2);
    return float(value);
}
inline Half half(float f) {
    const _Float16 value = _Float16(f);
    Half h;
    std::memcpy(&h.bits, &value, 2);
    return h;
}
#else
inline float number(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}
// A half is a float whose exponent is 112 smaller; products with powers of two take subnormal ones along.
inline float wide(Half h) {
    const uint32_t sign = uint32_t(h.bits & 0x8000u) << 16, rest = uint32_t(h.bits & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) return number(sign | 0x70000000u | rest);  // infinite, or not a number
    return number(sign | bits_of(number(rest) * 0x1p112f));
}
inline Half half(float f) {
    const uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return {uint16_t(sign | 0x7e00u | (rest >> 13 & 0x3ffu))};
    if (rest >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};
    if (rest < 0x38800000u) return {uint16_t(sign | (bits_of(number(rest) + 0.5f) - 0x3f000000u))};
    const uint32_t even = rest + 0xfffu + (rest >> 13 & 1);
    return {uint16_t(sign | (even - 0x38000000u) >> 13)};
}
#endif
inline float wide(Brain b) {
    const uint32_t bits = uint32_t(b.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline Brain brain(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t(bits >> 16 | 0x40)};
    bits += 0x7fffu + (bits >> 16 & 1);
    return {uint16_t(bits >> 16)};
}
template <class T> struct As { static T in(T x) { return x; } static T out(T x) { return x; } };
template <> struct As<Half> { static float in(Half x) { return wide(x); } static Half out(float x) { return half(x); } };
template <> struct As<Brain> { static float in(Brain x) { return wide(x); } static Brain out(float x) { return brain(x); } };

// NaN goes through minima and maxima, as in PyTorch.
template <class V> V least(V a, V b) { return a != a ? a : b != b ? b : b < a ? b : a; }
template <class V> V most(V a, V b) { return a != a ? a : b != b ? b : a < b ? b : a; }

template <class T, int OP>
void combine(char *to, const char *one, const char *other, int64_t bytes) {
    T *const t = reinterpret_cast<T *>(to);
    const T *const a = reinterpret_cast<const T *>(one), *const b = reinterpret_cast<const T *>(other);
    const int64_t count = bytes / int64_t(sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
        const auto x = As<T>::in(a[i]), y = As<T>::in(b[i]);
        t[i] = As<T>::out(OP == 0 ? sum(x, y) : OP == 1 ? least(x, y) : most(x, y));
    }
}

template <class T>
Combine combine_of(int operation) {
    return operation == 0 ? combine<T, 0> : operation == 1 ? combine<T, 1> : combine<T, 2>;
}
Combine combine_of(int dtype, int operation) {
    switch (dtype) {
        case 0: return combine_of<float>(operation);
        case 1: return combine_of<double>(operation);
        case 2: return combine_of<Half>(operation);
        case 3: return combine_of<Brain>(operation);
        case 4: return combine_of<int32_t>(operation);
        case 5: return combine_of<int64_t>(operation);
        default: return nullptr;
    }
}

}  // namespace treadle
