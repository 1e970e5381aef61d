// One way from a worker to one core of a server: a stream of its own, or a pair of rings in the worker's arena.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

#include "client_keys.h"
#include "places.h"
#include "rings.h"
#include "streams.h"

namespace treadle {

using Settings = std::shared_ptr<const std::vector<double>>;

struct Item {
    uint32_t chunk;
    uint16_t op, flags;
    uint64_t step;
    Settings settings;  // of SETTINGS
};

// What all lanes of a worker share. Only the thread that moves them touches `awaited`.
struct Ground {
    Keys keys;
    Places places;
    std::vector<uint32_t> key, lane;  // of each chunk
    std::vector<uint8_t> awaited;     // whether a value of the chunk is to come
    ArenaParts parts;
    int64_t groups;
    char *arena = nullptr;

    explicit Ground(const Layout &layout)
        : keys(layout),
          places(layout.chunks, layout.chunk_elements, layout.chunk_key, layout.key_type),
          key(layout.chunk_key, layout.chunk_key + layout.chunks),
          lane(size_t(layout.chunks)),
          awaited(size_t(layout.chunks)),
          parts(std::accumulate(layout.slots, layout.slots + layout.servers, int64_t(0)), layout.groups, places.total),
          groups(layout.groups) {}

    const char *gradient(uint32_t chunk) const { return arena + parts.gradients + places.offset[chunk]; }
    char *value(uint32_t chunk) const { return arena + parts.values + places.offset[chunk]; }
    void left(const Item &item) {
        if (item.op == PUSH) keys.close(key[item.chunk]);
    }
    void came(uint32_t chunk) {
        awaited[chunk] = 0;
        keys.close(key[chunk]);
    }
};

// Requests in their order: [gone, fed) are on their way, [fed, end) are not.
struct Items {
    std::vector<Item> list;
    size_t gone = 0, fed = 0;

    bool waiting() const { return fed < list.size(); }
    void forget() {
        if (gone < list.size() / 2) return;
        list.erase(list.begin(), list.begin() + int64_t(gone));
        fed -= gone;
        gone = 0;
    }
};

constexpr int ROUNDS = 16;  // frames of one lane before the next one is looked at

struct Lane {
    uint32_t number;  // among all lanes
    int server, slot;
    Items items;
    std::vector<int64_t> due;  // of each key: bytes or entries of values that are to come here before it can be done
    std::string why;           // why it ended

    Lane(uint32_t lane, int of_server, int of_slot, size_t keys) : number(lane), server(of_server), slot(of_slot), due(keys) {}
    Lane(const Lane &) = delete;
    virtual ~Lane() = default;

    virtual bool send(Ground &ground) = 0;                                // true when something left
    virtual bool receive(Ground &ground) = 0;                             // true when something came
    virtual int64_t size(const Ground &ground, uint32_t chunk) const = 0;  // what it counts for in `due`
    virtual bool sleep() = 0;                                             // false when there is something to do
    virtual void awake() {}
    virtual bool lingers() const { return false; }  // whether it waits for what rings no bell

    void await(Ground &ground, uint32_t chunk) {
        ground.awaited[chunk] = 1;
        due[ground.key[chunk]] += size(ground, chunk);
    }

  protected:
    void came(Ground &ground, uint32_t chunk) {
        due[ground.key[chunk]] -= size(ground, chunk);
        ground.came(chunk);
    }

    // How much must come before any key can be done: until then the thread need not wake up.
    int64_t soonest() const {
        int64_t least = 0;
        for (const int64_t each : due)
            if (each && (!least || each < least)) least = each;
        return least ? least : 1;
    }

    bool refuse(const std::string &reason) {
        why = "server " + std::to_string(server) + " " + reason + " (core slot " + std::to_string(slot) + ")";
        return false;
    }

    // Whether a value of this chunk may come here.
    bool expected(const Ground &ground, uint32_t chunk) const {
        return chunk < ground.key.size() && ground.lane[chunk] == number && ground.awaited[chunk];
    }
};

struct StreamLane : Lane {
    int file;
    bool readable = true, writable = true;  // as far as known: the socket says when it becomes so again

    StreamLane(uint32_t lane, int of_server, int of_slot, size_t keys, int its_file) : Lane(lane, of_server, of_slot, keys), file(its_file) {}
    ~StreamLane() override { close(file); }

    bool send(Ground &ground) override {
        if (!writable || items.gone == items.list.size()) return false;
        bool moved = false;
        while (feed(ground)) {
            const uint64_t before = writer.sent;
            const Moved result = writer.write(file);
            for (uint64_t count = writer.sent - before; count; --count) {
                ground.left(items.list[items.gone]);
                items.list[items.gone++].settings.reset();
                moved = true;
            }
            items.forget();
            if (result == Moved::WHOLE) continue;
            writable = false;
            // What the server said before it ended the stream is still to be read.
            if (result == Moved::ENDED && !receive(ground) && why.empty()) refuse(writer.why);
            break;
        }
        return moved;
    }

    bool receive(Ground &ground) override {
        if (!readable) return false;
        bool moved = false;
        for (int round = 0; round < ROUNDS; ++round) {
            const Moved result = reader.next(file, [&](const Frame &frame, char *&into) { return place(ground, frame, into); });
            if (result == Moved::WAITS) {
                readable = false;
                return moved;
            }
            if (result != Moved::WHOLE) {
                readable = false;
                return refuse(reader.why);
            }
            if (reader.frame.op == FAILED) {
                readable = false;
                return refuse("says: " + text);
            }
            came(ground, reader.frame.chunk);
            moved = true;
        }
        return moved;
    }

    int64_t size(const Ground &ground, uint32_t chunk) const override { return int64_t(sizeof(Frame)) + ground.places.bytes[chunk]; }

    bool sleep() override {
        if (readable || (writable && items.gone != items.list.size())) return false;
        const int least = int(std::clamp(soonest() - int64_t(reader.begun()), int64_t(1), int64_t(AHEAD)));
        // Streams within a host ignore it: the thread wakes up more often.
        if (least != low) setsockopt(file, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
        low = least;
        return true;
    }

  private:
    int low = 1;  // bytes that make the socket readable
    static constexpr size_t AHEAD = 256 << 10;  // bytes whose sums are counted before they leave, while the cache has them
    static constexpr uint32_t MOST_TEXT = 4096;
    FrameReader reader;
    FrameWriter writer{64};
    std::string text;

    const char *place(Ground &ground, const Frame &frame, char *&into) {
        if (frame.op == FAILED && frame.bytes <= MOST_TEXT) {
            text.resize(frame.bytes);
            into = text.data();
            return nullptr;
        }
        if (frame.op != VALUE) return "sent a frame that is none of a server's";
        if (!expected(ground, frame.chunk)) return "sent a value that was not asked for";
        if (frame.bytes != ground.places.bytes[frame.chunk]) return "sent a value of another size";
        into = ground.value(frame.chunk);
        return nullptr;
    }

    // Makes frames of the next requests; false when there is nothing to write.
    bool feed(const Ground &ground) {
        size_t ahead = 0;
        while (items.waiting() && writer.room() && ahead < AHEAD) {
            const Item &item = items.list[items.fed++];
            const void *body = nullptr;
            uint32_t bytes = 0;
            if (item.op == SETTINGS) {
                body = item.settings->data();
                bytes = uint32_t(item.settings->size() * sizeof(double));
            } else if (item.op != PULL && !(item.flags & EMPTY)) {
                body = ground.gradient(item.chunk);
                bytes = ground.places.bytes[item.chunk];
            }
            writer.put(make_frame(item.op, item.flags, item.chunk, item.step, bytes, crc32c(0, body, bytes)), body);
            ahead += bytes;
        }
        return !writer.empty();
    }
};

struct RingLane : Lane {
    RingWriter out;
    RingReader in;

    RingLane(uint32_t lane, int of_server, int of_slot, size_t keys, Rings &rings, int bell)
        : Lane(lane, of_server, of_slot, keys), out{&rings.to_server, bell}, in{&rings.to_worker} {}
    ~RingLane() override { close(out.bell); }

    bool send(Ground &ground) override {
        bool moved = false;
        for (; items.waiting() && !out.full(); ++items.fed) {
            const Item &item = items.list[items.fed];
            if (item.op == SETTINGS && !write_settings(ground, item)) break;
            out.add({item.chunk, item.op, item.flags, item.step});
            pushes += item.op == PUSH;
            moved = true;
        }
        if (moved) out.wake();
        const uint64_t waiting = out.waiting();
        while (items.fed - items.gone > waiting) {
            ground.left(items.list[items.gone]);
            pushes -= items.list[items.gone].op == PUSH;
            items.list[items.gone++].settings.reset();
            moved = true;
        }
        items.forget();
        return moved;
    }

    bool receive(Ground &ground) override {
        const uint64_t waiting = in.waiting();
        if (waiting > RING) return refuse("wrote a ring's count wrongly");
        for (uint64_t round = 0; round < waiting; ++round) {
            const Entry entry = in.front();
            in.drop();
            if (entry.op == FAILED) return refuse("ended this worker's part");
            if (entry.op != VALUE) return refuse("sent an entry that is none of a server's");
            if (!expected(ground, entry.chunk)) return refuse("sent a value that was not asked for");
            came(ground, entry.chunk);
        }
        return waiting;
    }

    int64_t size(const Ground &, uint32_t) const override { return 1; }
    bool sleep() override { return in.sleep(uint64_t(soonest())); }
    void awake() override { in.awake(); }
    bool lingers() const override { return items.waiting() || pushes; }

  private:
    int64_t pushes = 0;          // entries of PUSH that the server has not taken
    uint64_t turns[2] = {0, 0};  // entries when settings were last written there

    // False while the server may still read those that have the same place.
    bool write_settings(const Ground &ground, const Item &item) {
        uint64_t &turn = turns[item.step & 1];
        if (out.put - out.waiting() < turn) return false;
        double *const to = ground.parts.settings_of(ground.arena, number, ground.groups, item.step);
        std::memcpy(to, item.settings->data(), item.settings->size() * sizeof(double));
        turn = out.put + 1;
        return true;
    }
};

}  // namespace treadle
