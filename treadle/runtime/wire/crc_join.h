// The CRC-32C of data from those of its two parts, without the data.
#pragma once

#include <array>
#include <cstdint>

namespace treadle {

// Sums as polynomials, the highest bit first: a * b modulo the polynomial of CRC-32C.
constexpr uint32_t crc_product(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ (b & 1 ? 0x82F63B78u : 0);
    }
    return product;
}

// x to the powers 8, 16, 32, ...: what 1, 2, 4, ... zero bytes multiply a sum by.
using CrcPowers = std::array<uint32_t, 64>;

constexpr CrcPowers crc_powers() {
    CrcPowers powers{};
    powers[0] = 1u << 23;
    for (size_t place = 1; place < powers.size(); ++place) powers[place] = crc_product(powers[place - 1], powers[place - 1]);
    return powers;
}

constexpr CrcPowers CRC_POWERS = crc_powers();

// The sum of data whose first part has the sum `first`, and whose `bytes` behind that have `second`.
inline uint32_t crc_joined(uint32_t first, uint32_t second, uint64_t bytes) {
    for (size_t place = 0; bytes; ++place, bytes >>= 1)
        if (bytes & 1) first = crc_product(CRC_POWERS[place], first);
    return first ^ second;
}

}  // namespace treadle
