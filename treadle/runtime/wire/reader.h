// Frames from a socket that never blocks, as they come: heads and bodies with their sums, bodies right where they belong.
//
// A Frame is a plain struct that begins with its magic number, Frame::MARK, says how many `bytes` its body has and what
// its `body_sum` is, and ends with `head_sum`, the sum of all in front of that.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

#include "crc.h"

namespace treadle {

template <class Frame>
uint32_t sum_of_head(const Frame &frame) {
    return crc32c(0, &frame, offsetof(Frame, head_sum));
}

enum class Moved {
    WHOLE,   // read: a frame is there; written: all frames have left
    WAITS,   // for the socket
    ENDED,   // the other end is gone
    BROKEN,  // the other end sent what is no frame, or one that is refused
};

// What an error of a socket says of its other end.
inline const char *ended_by(int error) {
    if (error == 0) return "closed its stream";
    if (error == ECONNRESET || error == EPIPE) return "reset its stream";
    if (error == ETIMEDOUT || error == EHOSTUNREACH) return "does not answer";
    return std::strerror(error);
}

template <class Frame>
struct FrameReaderOf {
    Frame frame{};              // the last that was whole, or whose body is on its way
    const char *why = nullptr;  // behind ENDED and BROKEN: what the other end did

    // Reads on. `place(frame, into)` is asked once for each head: it sets where the body belongs and gives null, or
    // gives the reason why the frame is refused.
    template <class Place>
    Moved next(int file, Place &&place) {
        for (;;) {
            if (!opened && ahead_bytes == sizeof ahead) {
                frame = ahead;
                ahead_bytes = 0;
                if (frame.magic != Frame::MARK) return broken("sent what is no frame");
                if (frame.head_sum != sum_of_head(frame)) return broken("sent a head with a wrong sum");
                into = nullptr;
                if (const char *refused = place(const_cast<const Frame &>(frame), into)) return broken(refused);
                opened = true;
                got = 0;
                sum = 0;
            }
            if (opened && got == frame.bytes) {
                opened = false;
                if (sum != frame.body_sum) return broken("sent a body with a wrong sum");
                return Moved::WHOLE;
            }
            const Moved moved = read(file);
            if (moved != Moved::WHOLE) return moved;
        }
    }

    // Bytes of a frame that is not whole.
    size_t begun() const { return ahead_bytes + (opened ? sizeof(Frame) + got : 0); }

  private:
    Frame ahead{};
    size_t ahead_bytes = 0;
    bool opened = false;
    char *into = nullptr;
    size_t got = 0;
    uint32_t sum = 0;

    // The rest of the body and the head behind it, in one call.
    Moved read(int file) {
        const size_t rest = opened ? frame.bytes - got : 0;
        iovec parts[2] = {{into + got, rest}, {reinterpret_cast<char *>(&ahead) + ahead_bytes, sizeof ahead - ahead_bytes}};
        msghdr message{};
        message.msg_iov = rest ? parts : parts + 1;
        message.msg_iovlen = rest ? 2 : 1;
        ssize_t count;
        do count = recvmsg(file, &message, MSG_DONTWAIT);
        while (count < 0 && errno == EINTR);
        if (count <= 0) {
            if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Moved::WAITS;
            why = ended_by(count < 0 ? errno : 0);
            return Moved::ENDED;
        }
        const size_t part = size_t(count) < rest ? size_t(count) : rest;
        if (part) {
            sum = crc32c(sum, into + got, part);
            got += part;
        }
        ahead_bytes += size_t(count) - part;
        return Moved::WHOLE;
    }

    Moved broken(const char *reason) {
        why = reason;
        return Moved::BROKEN;
    }
};

}  // namespace treadle
