// What goes from rank to rank: frames, each a piece of one message, over a ring of shared memory or a socket.
//
// A peer on this host has a ring in each direction; its socket only wakes it, and ends when it is gone. The frames of
// several messages may alternate, so a message that is still being computed holds up no other.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "ring.h"

namespace treadle {

enum Kind : uint32_t { DATA = 0x7472646c, LOST = 0x7472646d, WAKE = 0x7472646e };

struct Frame {
    uint32_t kind, call, tag, bytes;  // LOST: `tag` is the rank that was lost
    uint64_t total, what;           // `what` is called, the same on all ranks
};

struct Note {
    uint32_t kind, rank;
};

constexpr size_t STAGE = 256 << 10;
constexpr int64_t FRAME_BYTES = 1 << 20;

struct Lost : std::runtime_error {
    int rank;
    Lost(int rank, const std::string &what) : std::runtime_error(what), rank(rank) {}
};

inline uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

inline uint64_t whole_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct Peer {
    int rank = -1, file = -1, place = -1;  // `place` on this host's board
    Ring in, out;
    uint64_t alpha_ns = 0;

    std::vector<int> leaving;  // actions with a message to this peer that has not left, in order
    Frame frame{};             // the one on its way, of action `sending`
    int sending = -1;
    uint64_t frame_sent = 0;

    int receiving = -1;  // action that takes the rest of the frame on its way in
    int64_t rest = 0;
    uint64_t padding = 0;
    std::unique_ptr<char[]> stage;  // bytes of a socket that came with others
    size_t begin = 0, end = 0;
    bool ahead = false;    // what comes next belongs to a later call
    bool stalled = false;  // or to an action that cannot take it yet
    bool ended = false;    // its process is gone, which is no failure where nothing is missing

    [[noreturn]] void lose(const std::string &how) const { throw Lost(rank, "rank " + std::to_string(rank) + " " + how); }
};

// What was written, of `header` (from `frame_sent`) and `bytes` of `source`; 0 where there is no room.
inline uint64_t write_ring(Peer &peer, const char *source, uint64_t bytes) {
    const Ring &ring = peer.out;
    uint64_t room = ring.room(), at = ring.written(), done = 0;
    if (peer.frame_sent == 0) {
        if (room < 2 * LINE) return 0;
        std::memcpy(ring.data + at % ring.bytes, &peer.frame, sizeof(Frame));
        at += LINE, room -= LINE, done = sizeof(Frame);
    }
    uint64_t left = std::min(bytes, room);
    if (left < bytes) left = left / LINE * LINE;
    for (uint64_t moved = 0; moved < left;) {
        const uint64_t part = std::min(left - moved, ring.bytes - at % ring.bytes);
        std::memcpy(ring.data + at % ring.bytes, source + moved, part);
        at += part, moved += part;
    }
    if (left == bytes) at = whole_lines(at);
    ring.counts->written.store(at, std::memory_order_release);
    return done + left;
}

inline uint64_t write_socket(Peer &peer, const char *source, uint64_t bytes) {
    iovec parts[2];
    size_t count = 0;
    if (peer.frame_sent < sizeof(Frame))
        parts[count++] = {reinterpret_cast<char *>(&peer.frame) + peer.frame_sent, sizeof(Frame) - peer.frame_sent};
    if (bytes) parts[count++] = {const_cast<char *>(source), bytes};
    msghdr text{};
    text.msg_iov = parts;
    text.msg_iovlen = count;
    for (;;) {
        const ssize_t done = sendmsg(peer.file, &text, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done >= 0) return uint64_t(done);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) peer.lose("is gone");
    }
}

// Up to `bytes` of a socket into `to`, and what follows them up to the size of the stage into the stage, which is empty.
inline uint64_t read_socket(Peer &peer, char *to, uint64_t bytes) {
    iovec parts[2] = {{to, bytes}, {peer.stage.get(), STAGE}};
    msghdr text{};
    text.msg_iov = parts;
    text.msg_iovlen = bytes >= STAGE ? 1 : 2;
    for (;;) {
        const ssize_t done = recvmsg(peer.file, &text, MSG_DONTWAIT);
        if (done > 0) {
            const uint64_t mine = std::min(uint64_t(done), bytes);
            peer.begin = 0;
            peer.end = size_t(uint64_t(done) - mine);
            return mine;
        }
        if (done < 0 && errno == EINTR) continue;
        peer.ended = done == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return 0;
    }
}

// More of a socket behind what the stage holds. False when nothing came.
inline bool fill_stage(Peer &peer) {
    if (peer.begin) {
        std::memmove(peer.stage.get(), peer.stage.get() + peer.begin, peer.end - peer.begin);
        peer.end -= peer.begin;
        peer.begin = 0;
    }
    if (peer.end == STAGE) return false;
    for (;;) {
        const ssize_t done = recv(peer.file, peer.stage.get() + peer.end, STAGE - peer.end, MSG_DONTWAIT);
        if (done > 0) {
            peer.end += size_t(done);
            return true;
        }
        if (done < 0 && errno == EINTR) continue;
        peer.ended = done == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return false;
    }
}

}  // namespace treadle
