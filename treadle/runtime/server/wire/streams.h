// Frames on a socket that never blocks: as much of them as it gives or takes, from and to the buffers themselves.
#pragma once

#include <vector>

#include "frame.h"
#include "reader.h"

namespace treadle {

inline Frame make_frame(uint16_t op, uint16_t flags, uint32_t chunk, uint64_t step, uint32_t bytes, uint32_t body_sum) {
    Frame frame{MAGIC, op, flags, chunk, bytes, step, body_sum, 0};
    frame.head_sum = sum_of_head(frame);
    return frame;
}

using FrameReader = FrameReaderOf<Frame>;

// Frames in the order in which they leave; their bodies stay where they are and as they are until then.
struct FrameWriter {
    uint64_t queued = 0, sent = 0;  // frames so far; `sent` counts whole ones
    const char *why = nullptr;

    explicit FrameWriter(size_t most) : heads(most), bodies(most) {}

    bool empty() const { return queued == sent; }
    size_t room() const { return heads.size() - size_t(queued - sent); }

    // Adds one where there is room. `body` may be null for a frame without one.
    void put(const Frame &frame, const void *body) {
        const size_t place = size_t(queued++ % heads.size());
        heads[place] = frame;
        bodies[place] = static_cast<const char *>(body);
    }

    // Lets leave what the socket takes: WHOLE when nothing is left, WAITS or ENDED otherwise.
    Moved write(int file) {
        while (!empty()) {
            iovec parts[2 * BATCH];
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = gather(parts);
            const ssize_t count = sendmsg(file, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (count < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::WAITS;
                why = ended_by(errno);
                return Moved::ENDED;
            }
            advance(size_t(count));
        }
        return Moved::WHOLE;
    }

  private:
    static constexpr uint64_t BATCH = 16;  // frames of one system call
    std::vector<Frame> heads;
    std::vector<const char *> bodies;
    size_t done = 0;  // bytes of the frame `sent` that have left

    size_t gather(iovec *parts) {
        size_t count = 0, skip = done;
        for (uint64_t at = sent; at < queued && at < sent + BATCH; ++at) {
            const size_t place = size_t(at % heads.size());
            if (skip < sizeof(Frame)) {
                parts[count++] = {reinterpret_cast<char *>(&heads[place]) + skip, sizeof(Frame) - skip};
                skip = 0;
            } else
                skip -= sizeof(Frame);
            if (heads[place].bytes > skip) parts[count++] = {const_cast<char *>(bodies[place]) + skip, heads[place].bytes - skip};
            skip = 0;
        }
        return count;
    }

    void advance(size_t count) {
        done += count;
        while (sent < queued) {
            const size_t whole = sizeof(Frame) + heads[size_t(sent % heads.size())].bytes;
            if (done < whole) return;
            done -= whole;
            ++sent;
        }
    }
};

}  // namespace treadle
