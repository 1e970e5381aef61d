// One frame on its way, its body gathered from where its bytes lie.
#pragma once

#include <vector>

#include "frame.h"

namespace treadle {

// Bytes of a state that lie in a row.
struct Segment {
    const char *data;
    uint64_t bytes;
};

struct Sending {
    const char *why = nullptr;  // behind ENDED

    // Begins a frame where none is on its way; its head gets its sum. `body` adds Segments to the list.
    template <class Body>
    void start(const Frame &frame, Body &&body) {
        head = frame;
        head.head_sum = sum_of_head(head);
        parts.clear();
        parts.push_back({&head, sizeof head});
        body([this](const Segment &part) { parts.push_back({const_cast<char *>(part.data), size_t(part.bytes)}); });
        at = 0;
    }
    void start(const Frame &frame) {
        start(frame, [](auto &&) {});
    }

    bool active() const { return at < parts.size(); }

    // Lets leave what the socket takes; it waits for the socket itself without MSG_DONTWAIT in `flags`.
    Moved write(int file, int flags) {
        while (active()) {
            msghdr message{};
            message.msg_iov = &parts[at];
            message.msg_iovlen = std::min(parts.size() - at, BATCH);
            const ssize_t count = sendmsg(file, &message, flags | MSG_NOSIGNAL);
            if (count < 0) {
                if (errno == EINTR) continue;
                const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
                if (full && flags & MSG_DONTWAIT) return Moved::WAITS;
                why = full ? "takes no data" : ended_by(errno);
                return Moved::ENDED;
            }
            advance(size_t(count));
        }
        return Moved::WHOLE;
    }

  private:
    static constexpr size_t BATCH = 64;  // parts of one system call
    Frame head{};
    std::vector<iovec> parts;
    size_t at = 0;

    void advance(size_t count) {
        while (at < parts.size() && count >= parts[at].iov_len) count -= parts[at++].iov_len;
        if (!count) return;
        parts[at].iov_base = static_cast<char *>(parts[at].iov_base) + count;
        parts[at].iov_len -= count;
    }
};

}  // namespace treadle
