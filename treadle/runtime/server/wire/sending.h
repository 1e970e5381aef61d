// What a core sends: the newest value of each chunk that someone waits for, straight from the weights.
#pragma once

#include "part.h"

namespace treadle {

// Stores past the cache come before what follows, for other processors too.
inline void stores_before() {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

// The value of a chunk (or its sum, for the server that owns it) is to go to a worker or to the server of a rack.
inline void Part::queue(int sender, Chunk &chunk) {
    Link *const link = links[size_t(sender)].get();
    if (!link) return;
    link->put(place[size_t(chunk.number)]);
    if (link->arena && send_ring(*link)) return;
    if (!std::exchange(link->dirty, true)) to_flush.push_back(link);
}

inline void Part::flush() {
    for (size_t next = 0; next < to_flush.size(); ++next) {
        Link *const link = to_flush[next];
        if (!link) continue;
        link->dirty = false;
        send(*link);
    }
    to_flush.clear();
    full_rings = false;
    for (const auto &link : links) {
        if (!link || !link->arena || link->idle()) continue;
        full_rings = true;
        link->dirty = true;
        to_flush.push_back(link.get());
    }
}

inline void Part::send_on() {
    for (const auto &link : links)
        if (link && !link->arena && link->writable && !link->idle() && !std::exchange(link->dirty, true)) to_flush.push_back(link.get());
    if (!leaving.empty()) let_go();
}

inline void Part::send(Link &link) {
    if (link.arena) {
        send_ring(link);
    } else if (link.writable) {
        send_stream(link);
    }
}

// The value as it travels.
inline const void *Part::value_of(Link &link, Chunk &chunk) {
    const float *const weights = store.weights_of(chunk, chunk.version);
    const int type = model.type[size_t(chunk.key)];
    if (peer(link) || type == FLOAT32) return weights;
    if (formed != chunk.number || formed_version != chunk.version) kernels::to_type(store.form, weights, chunk.elements, type);
    formed = chunk.number;
    formed_version = chunk.version;
    return store.form;
}

// A frame and its body, as they are now.
inline Frame Part::message(Link &link, Chunk &chunk, const void *&body) {
    if (peer(link) && !model.mine(chunk.number)) {
        const bool empty = chunk.local.empty == chunk.local.senders;
        const uint32_t bytes = empty ? 0 : uint32_t(4 * chunk.elements);
        body = store.sums + chunk.at;
        return make_frame(PUSH_PULL, empty ? EMPTY : 0, uint32_t(chunk.number), chunk.version + 1, bytes, crc32c(0, body, bytes));
    }
    const bool same = !peer(link) || model.type[size_t(chunk.key)] == FLOAT32;
    const uint32_t bytes = peer(link) ? uint32_t(4 * chunk.elements) : model.places.bytes[size_t(chunk.number)];
    body = value_of(link, chunk);
    uint32_t sum = chunk.body_sum;
    if (!same || chunk.summed != chunk.version) sum = crc32c(0, body, bytes);
    if (same) chunk.summed = chunk.version, chunk.body_sum = sum;
    return make_frame(VALUE, 0, uint32_t(chunk.number), chunk.version, bytes, sum);
}

// Several frames in a call. What the socket does not take of the frame that it has begun is kept aside, since weights
// may change before it goes on.
inline bool Part::send_stream(Link &link) {
    constexpr size_t BATCH = 16;
    constexpr uint64_t ENOUGH = 256 << 10;
    if (!send_rest(link)) return false;
    while (link.waiting()) {
        Frame frames[BATCH];
        iovec parts[2 * BATCH];
        size_t count = 0, ready = 0;
        for (uint64_t bytes = 0; count < BATCH && count < link.waiting() && bytes < ENOUGH; ++count) {
            Chunk &chunk = chunks[size_t(link.front(count))];
            const bool formed_one = !peer(link) && model.type[size_t(chunk.key)] != FLOAT32;
            if (formed_one && count) break;
            const void *body;
            frames[count] = message(link, chunk, body);
            parts[ready++] = {&frames[count], sizeof(Frame)};
            if (frames[count].bytes) parts[ready++] = {const_cast<void *>(body), frames[count].bytes};
            bytes += sizeof(Frame) + frames[count].bytes;
            if (formed_one) {
                ++count;
                break;
            }
        }
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = ready;
        ssize_t sent;
        do sent = sendmsg(link.file, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link.writable = false;
            return false;
        }
        if (sent < 0) {
            lose(link, ended_by(errno));
            return false;
        }
        slot.count(BYTES_OUT, uint64_t(sent));
        size_t left = size_t(sent), part = 0;
        for (size_t frame = 0; frame < count && left; ++frame) {
            Chunk &chunk = chunks[size_t(link.front(0))];
            log(SENT, chunk, link.sender, frames[frame].step);
            slot.count(FRAMES_OUT, 1);
            link.pop();
            for (const size_t end = part + (frames[frame].bytes ? 2 : 1); part < end; ++part) {
                const size_t gone = std::min(left, parts[part].iov_len);
                const char *const from = static_cast<const char *>(parts[part].iov_base);
                link.rest.insert(link.rest.end(), from + gone, from + parts[part].iov_len);
                left -= gone;
            }
        }
        if (!send_rest(link)) return false;
    }
    return true;
}

// False where something of it is left, or the link is gone.
inline bool Part::send_rest(Link &link) {
    while (link.rest_at < link.rest.size()) {
        const ssize_t sent = ::send(link.file, link.rest.data() + link.rest_at, link.rest.size() - link.rest_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            link.writable = false;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
            if (!link.deadline) lose(link, ended_by(errno));
            return false;
        }
        slot.count(BYTES_OUT, uint64_t(sent));
        link.rest_at += size_t(sent);
    }
    link.rest.clear();
    link.rest_at = 0;
    return true;
}

// Where the worker reads it. False where its ring is full.
inline bool Part::send_ring(Link &link) {
    for (; link.waiting() && !link.out.full(); link.pop()) {
        Chunk &chunk = chunks[size_t(link.front(0))];
        const int type = model.type[size_t(chunk.key)];
        const float *const weights = fresh == &chunk ? store.fresh[0] : store.weights_of(chunk, chunk.version);
        char *const to = link.values + model.places.offset[size_t(chunk.number)];
        if (past_cache && type == FLOAT32) {
            kernels::stream(reinterpret_cast<float *>(to), weights, chunk.elements);
        } else {
            kernels::to_type(to, weights, chunk.elements, type);
        }
        stores_before();
        link.out.add({uint32_t(chunk.number), VALUE, 0, chunk.version});
        if (!link.silent_since) link.silent_since = slot.now;
        slot.count(BYTES_OUT, model.places.bytes[size_t(chunk.number)]);
        slot.count(FRAMES_OUT, 1);
        log(SENT, chunk, link.sender, chunk.version);
    }
    return link.waiting() == 0;
}

// A worker that sleeps is woken for what has come within SILENCE_NS, or as soon as this core has nothing else to do.
inline void Part::ring_bells(bool idle) {
    for (const auto &link : links) {
        if (!link || !link->silent_since || (!idle && slot.now < link->silent_since + SILENCE_NS)) continue;
        link->silent_since = 0;
        link->out.wake();
    }
}

// A text to a worker, behind the frame that has begun; then nothing more. Rings carry no text: control does.
inline void Part::fail(Link &link, const std::string &why) {
    report_lost(link.sender, why);
    std::unique_ptr<Link> own = release(link);
    if (own->arena) {
        if (!own->out.full()) {
            own->out.add({0, FAILED, 0, 0});
            own->out.wake();
        }
        dead.push_back(std::move(own));
        return;
    }
    const std::string text = name_of(own->sender) + " " + why;
    const Frame frame = make_frame(FAILED, 0, 0, 0, uint32_t(text.size()), crc32c(0, text.data(), text.size()));
    const char *const head = reinterpret_cast<const char *>(&frame);
    own->rest.insert(own->rest.end(), head, head + sizeof frame);
    own->rest.insert(own->rest.end(), text.begin(), text.end());
    own->deadline = now_ns() + 2000000000u;
    leaving.push_back(std::move(own));
    let_go();
}

// Sends links that end their last words, and takes in what is on its way to them, so that these are not lost with it.
inline void Part::let_go() {
    for (auto &link : leaving) {
        if (send_rest(*link) && !std::exchange(link->said, true)) shutdown(link->file, SHUT_WR);
        char waste[4096];
        ssize_t count;
        do count = recv(link->file, waste, sizeof waste, MSG_DONTWAIT);
        while (count > 0);
        const bool ended = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
        if (ended || slot.now > link->deadline) dead.push_back(std::move(link));
    }
    leaving.erase(std::remove(leaving.begin(), leaving.end(), nullptr), leaving.end());
}

}  // namespace treadle
