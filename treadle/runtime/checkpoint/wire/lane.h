// The path of a rank's state to one of its holders: a thread that sends pieces as they are released, or copies them into
// the memory of its own agent and says so.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "crc_join.h"
#include "sending.h"

namespace treadle {

constexpr uint64_t FRAME_BYTES = 1 << 20;  // of a piece at most, which are summed and then sent while they are in a cache
constexpr uint64_t SUMMED = 1 << 18;       // the same where they are copied

inline uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

// A piece as it is planned, and when what happened to it.
struct PieceTimes {
    int32_t copy, span;
    uint64_t offset, bytes;
    uint64_t released, begun, sent, taken;
};

// What all lanes of a sender share, under its mutex; the segments only change while no lane sends.
struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    uint32_t machine = 0, device = 0;
    size_t window = 1;  // pieces of a lane that are in flight at once
    uint64_t version = 0, bytes = 0;
    std::vector<Segment> segments;
};

enum class LaneState : int32_t { IDLE, SENDING, LOST };

class Lane {
  public:
    const int copy;
    const std::string name;  // of the holder
    LaneState state = LaneState::IDLE;  // these four under the mutex
    std::string why;
    bool begun = false;     // whether the holder has answered that the version begins
    uint64_t verified = 0;  // bytes of all versions

    // `memory`: of the agent on this host, null for a stream to another. The file stays open and the
    // caller's, who closes it later.
    Lane(Shared &shared, int copy, int file, char *memory, const std::string &name, std::vector<PieceTimes> planned)
        : copy(copy), name(name), shared(shared), file(file), memory(memory), planned(std::move(planned)), bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), thread([this] { run(); }) {}
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;
    ~Lane() {
        stop("is no longer used");
        close(bell);
    }

    // A version of shared.bytes begins. Under the mutex, like all up to stop().
    void begin() {
        if (state == LaneState::LOST) return;
        pieces.clear();
        for (PieceTimes piece : planned) {
            if (piece.offset >= shared.bytes) continue;
            piece.bytes = std::min(piece.bytes, shared.bytes - piece.offset);
            pieces.push_back(piece);
        }
        released = taken = 0;
        acknowledged = 0;
        begun = false;
        state = LaneState::SENDING;
        ring();
    }

    void release(int32_t span) {
        if (state != LaneState::SENDING) return;
        const uint64_t now = now_ns();
        const size_t before = released;
        while (released < pieces.size() && pieces[released].span <= span) pieces[released++].released = now;
        if (released > before) ring();
    }

    size_t pieces_taken() const { return taken; }
    const std::vector<PieceTimes> &times() const { return pieces; }

    // Ends the thread: it no longer reads the state afterwards. Not under the mutex.
    void stop(const std::string &reason) {
        {
            const std::lock_guard<std::mutex> lock(shared.mutex);
            if (state != LaneState::LOST) why = name + " " + reason;
            state = LaneState::LOST;
        }
        ring();
        if (thread.joinable()) thread.join();
        shutdown(file, SHUT_RDWR);
    }

  private:
    Shared &shared;
    const int file;
    char *const memory;
    const std::vector<PieceTimes> planned;
    const int bell;
    std::vector<PieceTimes> pieces;  // of this version; the thread writes the times of those that are released
    size_t released = 0, taken = 0;
    uint64_t acknowledged = 0;  // bytes of the piece behind those that are taken

    // Only for the thread
    FrameReaderOf<Frame> reader;
    Sending sending;
    std::string text;
    size_t next = 0;             // piece
    uint64_t framed = 0;         // bytes of it
    bool last_on_way = false;    // whether `sending` ends the piece before the next one
    bool asked = false, placed = false, committed = false;
    uint64_t half = 0;           // where it begins in `memory`
    uint32_t sum = 0;            // of all pieces so far
    bool sends = false;
    std::thread thread;  // the last member: it uses all others

    void ring() {
        const uint64_t one = 1;
        (void)!write(bell, &one, sizeof one);
    }

    void run() {
        std::string reason;
        while (reason.empty()) {
            pollfd waits[2] = {{file, short(POLLIN | (sending.active() ? POLLOUT : 0)), 0}, {bell, POLLIN, 0}};
            poll(waits, 2, -1);
            uint64_t rung;
            (void)!read(bell, &rung, sizeof rung);
            reason = hear();
            if (reason.empty()) reason = move();
            if (reason == STOPPED) return;
        }
        const std::lock_guard<std::mutex> lock(shared.mutex);
        if (state == LaneState::LOST) return;
        why = name + " " + reason;
        if (state == LaneState::SENDING) why += " after " + std::to_string(taken) + " of " + std::to_string(pieces.size()) + " pieces of version " + std::to_string(shared.version);
        state = LaneState::LOST;
        shared.changed.notify_all();
    }

    // Reads what the holder has answered.
    std::string hear() {
        for (;;) {
            const Moved moved = reader.next(file, [this](const Frame &frame, char *&into) -> const char * {
                if (frame.bytes > LONGEST_TEXT) return "sent an answer that is too long";
                text.resize(size_t(frame.bytes));
                into = text.data();
                return nullptr;
            });
            if (moved == Moved::WAITS) return {};
            if (moved != Moved::WHOLE) return reader.why;
            const std::lock_guard<std::mutex> lock(shared.mutex);
            switch (reader.frame.op) {
            case BEGUN:
                half = reader.frame.offset;
                placed = begun = true;
                shared.changed.notify_all();
                break;
            case TAKEN:
                if (taken >= pieces.size() || pieces[taken].offset + acknowledged != reader.frame.offset) return "answered for another piece";
                verified += reader.frame.length;
                acknowledged += reader.frame.length;
                if (acknowledged < pieces[taken].bytes) break;
                pieces[taken++].taken = now_ns();
                acknowledged = 0;
                break;
            case DONE:
                if (state == LaneState::SENDING) state = LaneState::IDLE;
                sends = false;
                shared.changed.notify_all();
                break;
            case REFUSED: return "refuses: " + text;
            default: return "sent an answer that is none";
            }
        }
    }

    // Sends what may leave now.
    std::string move() {
        for (;;) {
            if (sending.active()) {
                const Moved moved = sending.write(file, MSG_DONTWAIT);
                if (moved == Moved::WAITS) return stopped() ? STOPPED : std::string();
                if (moved == Moved::ENDED) {
                    const std::string answered = hear();  // it may have said why
                    return answered.empty() ? sending.why : answered;
                }
                if (last_on_way) stamp(next - 1, &PieceTimes::sent);
                last_on_way = false;
            }
            size_t may;
            bool all;
            {
                const std::lock_guard<std::mutex> lock(shared.mutex);
                if (state == LaneState::LOST) return STOPPED;
                if (state == LaneState::IDLE) return {};
                if (!sends) restart();
                may = std::min(released, taken + shared.window);
                all = next == pieces.size();
            }
            if (!asked) {
                asked = true;
                sending.start(frame(BEGIN, 0, shared.bytes));
            } else if (memory && !placed) {
                return {};
            } else if (next < may) {
                put();
            } else if (all && !committed) {
                committed = true;
                sending.start(frame(COMMIT, 0, shared.bytes, sum));
            } else {
                return {};
            }
        }
    }

    void restart() {
        sends = true;
        next = 0;
        framed = 0;
        sum = 0;
        asked = placed = committed = false;
    }

    bool stopped() {
        const std::lock_guard<std::mutex> lock(shared.mutex);
        return state == LaneState::LOST;
    }

    // Sums the next bytes of a piece, and copies them where the holder has this host's memory.
    void put() {
        const uint64_t whole = pieces[next].bytes, offset = pieces[next].offset + framed, bytes = std::min(FRAME_BYTES, whole - framed);
        if (!framed) stamp(next, &PieceTimes::begun);
        uint32_t its = 0;
        uint64_t at = offset;
        each_part(offset, bytes, [&](const Segment &part) {
            for (uint64_t done = 0; done < part.bytes; done += SUMMED) {
                const size_t count = size_t(std::min(SUMMED, part.bytes - done));
                its = crc32c(its, part.data + done, count);
                if (memory) std::memcpy(memory + half + at, part.data + done, count);
                at += count;
            }
        });
        sum = crc_joined(sum, its, bytes);
        framed += bytes;
        if (framed == whole) {
            ++next;
            framed = 0;
            last_on_way = true;
        }
        if (memory) {
            sending.start(frame(PLACED, offset, bytes, its));
            return;
        }
        Frame head = frame(PIECE, offset, bytes, its);
        head.bytes = bytes;
        head.body_sum = its;
        sending.start(head, [&](auto &&add) { each_part(offset, bytes, add); });
    }

    // The bytes of a piece where they lie.
    template <class Use>
    void each_part(uint64_t offset, uint64_t bytes, Use &&use) const {
        for (const Segment &segment : shared.segments) {
            if (!bytes) return;
            if (offset >= segment.bytes) {
                offset -= segment.bytes;
                continue;
            }
            const uint64_t count = std::min(bytes, segment.bytes - offset);
            use(Segment{segment.data + offset, count});
            bytes -= count;
            offset = 0;
        }
    }

    Frame frame(Op op, uint64_t offset, uint64_t length, uint32_t its = 0) const { return make_frame(op, shared.machine, shared.device, shared.version, offset, length, its); }

    void stamp(size_t number, uint64_t PieceTimes::*when) {
        const std::lock_guard<std::mutex> lock(shared.mutex);
        pieces[number].*when = now_ns();
    }

    inline static const std::string STOPPED = "is no longer used";
};

}  // namespace treadle
