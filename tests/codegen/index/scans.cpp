// The two scans of unsorted keys, on blocks of all small sizes with equal keys behind the last one.
#include <cstdio>
#include <random>

#include "treadle_index.hpp"

int main() {
    using namespace treadle::inside;
    if (!has_avx2()) return std::puts("same"), 0;
    std::mt19937_64 random(1);
    for (uint32_t n = 0; n < 200; ++n)
        for (int round = 0; round < 200; ++round) {
            std::vector<uint64_t> keys(n + 16);
            for (uint64_t& each : keys) each = random() % (round % 2 ? 3 : 300) << (round % 40);
            const uint64_t key = keys[random() % keys.size()];
            if (find_avx2(keys.data(), n, key) != find_scalar(keys.data(), n, key)) return std::puts("differ"), 1;
        }
    std::puts("same");
}
