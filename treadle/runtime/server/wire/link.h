// The way between a core and one worker, or the server of another rack: a stream, or rings and the memory around them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "chunk.h"
#include "rings.h"
#include "streams.h"

namespace treadle {

// A worker's arena, as long as any core of the job uses it.
struct Mapping {
    char *data;
    size_t bytes;

    Mapping(char *data, size_t bytes) : data(data), bytes(bytes) {}
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() { munmap(data, bytes); }

    Arena &head() const { return *reinterpret_cast<Arena *>(data); }
    bool holds(const void *place) const { return place >= data && place < data + bytes; }
};

// The settings of an optimizer that one worker sent, the two latest with the first version that they are for.
struct SettingsTurns {
    struct Turn {
        bool there = false;
        uint64_t step = 0;
        std::vector<double> numbers;
    };
    Turn turns[2];

    explicit SettingsTurns(size_t numbers) {
        for (Turn &turn : turns) turn.numbers.resize(numbers);
    }

    void put(uint64_t step, const double *numbers) {
        if (turns[0].there && turns[1].there && step < std::min(turns[0].step, turns[1].step)) return;
        Turn *place = nullptr;
        for (Turn &turn : turns)
            if (turn.there && turn.step == step) place = &turn;
        if (!place) place = !turns[0].there || (turns[1].there && turns[0].step < turns[1].step) ? &turns[0] : &turns[1];
        place->there = true;
        place->step = step;
        std::copy_n(numbers, place->numbers.size(), place->numbers.begin());
    }

    // Those for `step`; null where there are none.
    const double *at(uint64_t step) const {
        const Turn *best = nullptr;
        for (const Turn &turn : turns)
            if (turn.there && turn.step <= step && (!best || turn.step > best->step)) best = &turn;
        return best ? best->numbers.data() : nullptr;
    }
    const Turn *exactly(uint64_t step) const {
        for (const Turn &turn : turns)
            if (turn.there && turn.step == step) return &turn;
        return nullptr;
    }
};

struct Link {
    const int sender;  // a worker, or `workers` + a rack
    int file = -1;
    FrameReader reader;
    Block scratch;            // a body that is added as soon as it is whole, or is dropped
    char *into = nullptr;     // where the body on its way goes
    bool kept = false;        // whether it may stay there
    bool readable = true, writable = true;
    std::string reason;       // why a frame is refused

    std::shared_ptr<Mapping> arena;  // null for a stream
    RingReader in;
    RingWriter out;
    char *gradients = nullptr, *values = nullptr;
    double *turns[2] = {};  // settings, by step & 1
    uint64_t silent_since = 0;  // since when entries wait for the worker's bell; 0 where none does

    std::vector<double> numbers;  // settings on their way
    SettingsTurns settings;

    bool dirty = false;           // in the list of those that have something to send
    std::vector<char> rest;       // what the socket did not take of the frame that it has begun
    size_t rest_at = 0;
    uint64_t deadline = 0;        // of a link that ends, for the text that says why
    bool said = false;            // whether that text has left

    Link(int sender, size_t chunks, size_t numbers) : sender(sender), numbers(numbers), settings(numbers), order(chunks), queued(chunks) {}
    Link(const Link &) = delete;
    Link &operator=(const Link &) = delete;
    ~Link() {
        if (file >= 0) close(file);
        if (out.bell >= 0) close(out.bell);
    }

    // Chunks whose value (or sum) is to be sent; each is in it once, as what it has when it leaves.
    bool idle() const { return first == last && rest_at == rest.size(); }
    size_t waiting() const { return last - first; }
    int32_t front(size_t place) const { return order[(first + place) % order.size()]; }
    void put(int32_t chunk) {
        if (queued[size_t(chunk)]) return;
        queued[size_t(chunk)] = 1;
        order[last++ % order.size()] = chunk;
    }
    void pop() { queued[size_t(order[first++ % order.size()])] = 0; }

  private:
    std::vector<int32_t> order;
    std::vector<char> queued;
    size_t first = 0, last = 0;
};

}  // namespace treadle
