// Keys are loaded, inserted, looked up, scanned, erased and passed over in ascending order.
// Planned for books, mostly inserts
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "treadle_index.hpp"

namespace {

int mistakes = 0;

void expect(bool holds, const char* what) {
    if (!holds && ++mistakes <= 10) std::printf("wrong: %s\n", what);
}

std::uint64_t payload_of(std::uint64_t key) { return key * 3 + 1; }

}  // namespace

int main(int argc, char** argv) {
    const std::uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000000;

    // As planned: fragmented log 64/128/8. The share of inserts is that of the planned operations.
    treadle::Settings settings = treadle::default_settings();
    settings.insert_share = 1500.0 / 2000.0;
    treadle::Index index(settings);

    // Load sorted keys at once: much faster than one by one.
    std::vector<std::uint64_t> keys, payloads;
    for (std::uint64_t place = 0; place < count; ++place) {
        keys.push_back(10 * place);
        payloads.push_back(payload_of(10 * place));
    }
    expect(index.bulk_load(keys.data(), payloads.data(), keys.size()), "bulk_load of ascending keys");

    // Insert keys between them; a key that is there already stays as it is.
    for (std::uint64_t place = 0; place < count; ++place) {
        expect(index.insert(10 * place + 5, payload_of(10 * place + 5)), "insert of a new key");
        expect(!index.insert(10 * place, 0), "insert of a key that is there");
    }

    // Look up.
    std::uint64_t payload = 0;
    for (std::uint64_t key = 0; key < 10 * count; ++key) {
        const bool there = index.lookup(key, &payload);
        expect(there == (key % 5 == 0), "lookup finds what was inserted");
        expect(!there || payload == payload_of(key), "lookup returns the payload");
    }

    // Scan: up to 4 keys from 12 on, in ascending order.
    std::uint64_t found[4], values[4];
    const std::size_t scanned = index.scan(12, 4, found, values);
    for (std::size_t place = 0; place < scanned; ++place) {
        expect(found[place] == 15 + 5 * place && values[place] == payload_of(found[place]), "scan in ascending order");
    }

    // Erase the inserted keys again, then pass over what is left.
    for (std::uint64_t place = 0; place < count; ++place) {
        expect(index.erase(10 * place + 5), "erase of a key that is there");
    }
    std::uint64_t next = 0;
    for (auto at = index.begin(); at != index.end(); ++at) {
        expect(at.key() == next && at.payload() == payload_of(next), "all keys in ascending order");
        next += 10;
    }
    expect(next == 10 * count, "iteration reaches the last key");

    if (const char* broken = index.broken()) expect(false, broken);
    std::printf("%zu keys, %zu bytes, %d mistakes\n", index.size(), index.bytes(), mistakes);
    return mistakes == 0 ? 0 : 1;
}
