// CRC-32C, as the processor counts it where this is compiled for one that does, from tables elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE4_2__) && defined(__x86_64__)
#include <nmmintrin.h>
#define TREADLE_CRC_EIGHT(sum, word) uint32_t(_mm_crc32_u64(sum, word))
#define TREADLE_CRC_ONE(sum, byte) _mm_crc32_u8(sum, byte)
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define TREADLE_CRC_EIGHT(sum, word) __crc32cd(sum, word)
#define TREADLE_CRC_ONE(sum, byte) __crc32cb(sum, byte)
#endif

namespace treadle {

using CrcTable = std::array<uint32_t, 256>;

constexpr CrcTable crc_of_bytes() {
    CrcTable table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (sum & 1 ? 0x82F63B78u : 0);
        table[byte] = sum;
    }
    return table;
}

constexpr CrcTable CRC_OF_BYTES = crc_of_bytes();

// What a sum becomes behind `zeros` zero bytes, from a table for each of its bytes.
using CrcTables = std::array<CrcTable, 4>;

constexpr CrcTables crc_behind_zeros(size_t zeros) {
    // A sum is linear in its bits: those of the single bits make up all others.
    uint32_t bits[32]{};
    for (int bit = 0; bit < 32; ++bit) {
        bits[bit] = uint32_t(1) << bit;
        for (size_t zero = 0; zero < zeros; ++zero) bits[bit] = CRC_OF_BYTES[bits[bit] & 255] ^ (bits[bit] >> 8);
    }
    CrcTables tables{};
    for (int place = 0; place < 4; ++place)
        for (uint32_t byte = 0; byte < 256; ++byte)
            for (int bit = 0; bit < 8; ++bit)
                if (byte >> bit & 1) tables[size_t(place)][byte] ^= bits[8 * place + bit];
    return tables;
}

constexpr uint32_t crc_from(const CrcTables &tables, uint32_t sum) {
    return tables[0][sum & 255] ^ tables[1][sum >> 8 & 255] ^ tables[2][sum >> 16 & 255] ^ tables[3][sum >> 24];
}

#ifdef TREADLE_CRC_EIGHT

constexpr size_t CRC_LANE = 512;  // bytes that each of three sums runs over, as the processor adds three in the time of one
constexpr CrcTables CRC_BEHIND_LANE = crc_behind_zeros(CRC_LANE);

inline uint64_t crc_word(const unsigned char *data) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return word;
}

inline uint32_t crc_of(uint32_t sum, const unsigned char *data, size_t bytes) {
    for (; bytes >= 3 * CRC_LANE; data += 3 * CRC_LANE, bytes -= 3 * CRC_LANE) {
        uint32_t second = 0, third = 0;
        for (size_t at = 0; at < CRC_LANE; at += 8) {
            if (at % 64 == 0)  // what is not in a cache yet comes in time
                for (size_t lane = 0; lane < 3; ++lane) __builtin_prefetch(data + at + (6 + lane) * CRC_LANE);
            sum = TREADLE_CRC_EIGHT(sum, crc_word(data + at));
            second = TREADLE_CRC_EIGHT(second, crc_word(data + CRC_LANE + at));
            third = TREADLE_CRC_EIGHT(third, crc_word(data + 2 * CRC_LANE + at));
        }
        sum = crc_from(CRC_BEHIND_LANE, crc_from(CRC_BEHIND_LANE, sum) ^ second) ^ third;
    }
    for (; bytes >= 8; data += 8, bytes -= 8) sum = TREADLE_CRC_EIGHT(sum, crc_word(data));
    for (; bytes; ++data, --bytes) sum = TREADLE_CRC_ONE(sum, *data);
    return sum;
}

#else

constexpr CrcTables CRC_FOUR = crc_behind_zeros(4);

inline uint32_t crc_of(uint32_t sum, const unsigned char *data, size_t bytes) {
    for (; bytes >= 4; data += 4, bytes -= 4)
        sum = crc_from(CRC_FOUR, sum ^ (data[0] | data[1] << 8 | data[2] << 16 | uint32_t(data[3]) << 24));
    for (; bytes; ++data, --bytes) sum = CRC_OF_BYTES[(sum ^ *data) & 255] ^ (sum >> 8);
    return sum;
}

#endif

// The sum of what stands behind data whose sum is `before`, 0 at the begin.
inline uint32_t crc32c(uint32_t before, const void *data, size_t bytes) {
    return ~crc_of(~before, static_cast<const unsigned char *>(data), bytes);
}

}  // namespace treadle
