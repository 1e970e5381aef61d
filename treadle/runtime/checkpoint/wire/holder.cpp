// The memory of an agent: states, the streams that fill them, and the calls by which Python runs it.
#include "memory.h"
#include "serving.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

constexpr int FAILED_CALL = -1;

static thread_local std::string message;

struct StateName {
    uint32_t machine, device;
};

struct HeldVersion {
    uint32_t machine, device;
    uint64_t version, bytes, at;
    uint32_t sum, unused;
};

struct Holder {
    States states;
    Reports reports;

    ~Holder() {
        stop();
        streams.clear();
    }

    // Ends all streams, and those that fetch.
    void stop() {
        const std::lock_guard<std::mutex> lock(mutex);
        closing = true;
        for (auto &stream : streams) stream->cut_now(CLOSED);
        for (Stream *stream : fetches) stream->cut_now(CLOSED);
    }

    // Empty, or why there is no memory.
    std::string take(uint64_t most) {
        uint64_t needed = 0;
        for (auto &state : states) needed += state->size();
        const std::string what = "the states of " + std::to_string(states.size()) + " devices need " + gib(needed) + " of memory";
        if (needed > most) return what + ", where " + gib(most) + " are allowed";
        const Room room = room_left();
        if (needed > room.bytes) return what + ", where " + gib(room.bytes) + " are left of the " + room.of;
        std::atomic<bool> whole{true};
        std::vector<std::thread> takers;
        for (auto &state : states)
            takers.emplace_back([&whole, &state] {
                if (!state->take()) whole = false;
            });
        for (std::thread &taker : takers) taker.join();
        return whole ? std::string() : what + ", which the system refused";
    }

    bool serve(int file, uint64_t its_epoch, const char *name) {
        const std::lock_guard<std::mutex> lock(mutex);
        streams.erase(std::remove_if(streams.begin(), streams.end(), [](auto &each) { return each->over(); }), streams.end());
        auto stream = std::make_unique<Stream>(states, reports, file, ++accepted, its_epoch, name);
        if (closing || its_epoch < epoch) return false;
        Stream *const it = stream.get();
        it->thread = std::thread([it] { it->serve(); });
        streams.push_back(std::move(stream));
        return true;
    }

    void set_epoch(uint64_t next) {
        const std::lock_guard<std::mutex> lock(mutex);
        epoch = std::max(epoch, next);
        for (auto &stream : streams)
            if (stream->epoch < epoch && !stream->over()) stream->cut("epoch " + std::to_string(epoch) + " has begun");
    }

    std::string fetch(int file, HeldState &state, uint64_t version, int timeout_ms, const char *name) {
        Stream stream(states, reports, file, 0, UINT64_MAX, name);
        {
            const std::lock_guard<std::mutex> lock(mutex);
            if (closing) return CLOSED;
            fetches.push_back(&stream);
        }
        const std::string why = stream.take(state, version, timeout_ms);
        const std::lock_guard<std::mutex> lock(mutex);
        fetches.erase(std::find(fetches.begin(), fetches.end(), &stream));
        return why;
    }

  private:
    static constexpr const char *CLOSED = "its memory is given back";
    std::mutex mutex;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<Stream *> fetches;
    uint64_t epoch = 0, accepted = 0;
    bool closing = false;
};

static int failed(const std::string &why) {
    message = why;
    return FAILED_CALL;
}

}  // namespace treadle

using namespace treadle;

TREADLE_API const char *holder_message() { return message.c_str(); }

// Null without memory.
TREADLE_API void *holder_open(const StateName *names, int count, uint64_t bytes, int halves, uint64_t most) {
    auto holder = std::make_unique<Holder>();
    for (int state = 0; state < count; ++state)
        holder->states.push_back(std::make_unique<HeldState>(names[state].machine, names[state].device, bytes, halves));
    message = holder->take(most);
    return message.empty() ? holder.release() : nullptr;
}

// Ends all streams; holder_close follows when no other call is in progress.
TREADLE_API void holder_stop(void *holder) { static_cast<Holder *>(holder)->stop(); }

TREADLE_API void holder_close(void *holder) { delete static_cast<Holder *>(holder); }

TREADLE_API int holder_memfd(void *holder, int state) { return static_cast<Holder *>(holder)->states[size_t(state)]->memfd; }

// Owns the file from now on.
TREADLE_API int holder_stream(void *holder, int file, uint64_t epoch, const char *name) {
    return static_cast<Holder *>(holder)->serve(file, epoch, name) ? 0 : failed("the stream is of an epoch that has ended");
}

TREADLE_API void holder_epoch(void *holder, uint64_t epoch) { static_cast<Holder *>(holder)->set_epoch(epoch); }

// Drops the versions of all states from `first` on.
TREADLE_API void holder_forget(void *holder, uint64_t first) {
    for (auto &state : static_cast<Holder *>(holder)->states) state->forget(first);
}

// How many whole versions there are, of which up to `most` are written, those of a state the latest first.
TREADLE_API int holder_versions(void *holder, HeldVersion *found, int most) {
    int count = 0;
    for (auto &state : static_cast<Holder *>(holder)->states)
        for (const Half &half : state->whole()) {
            if (count < most) found[count] = {state->machine, state->device, half.version, half.bytes, half.at, half.sum, 0};
            ++count;
        }
    return count;
}

// 1 where a version is there and is what arrived, 0 where it is not there, -1 where it is damaged and dropped.
TREADLE_API int holder_verify(void *handle, int state, uint64_t version) {
    Holder &holder = *static_cast<Holder *>(handle);
    const Verified result = verified(*holder.states[size_t(state)], version, holder.reports, [](const Half &) {});
    return result.found == Found::WHOLE ? 1 : result.found == Found::ABSENT ? 0 : failed(result.why);
}

// Owns the file.
TREADLE_API int holder_fetch(void *handle, int file, int state, uint64_t version, int timeout_ms, const char *name) {
    Holder &holder = *static_cast<Holder *>(handle);
    const std::string why = holder.fetch(file, *holder.states[size_t(state)], version, timeout_ms, name);
    return why.empty() ? 0 : failed(why);
}

// Lines, each with its end, as many as fit; the rest is lost.
TREADLE_API int holder_reports(void *holder, char *text, int most) {
    int count = 0;
    for (const std::string &line : static_cast<Holder *>(holder)->reports.take()) {
        if (count + int(line.size()) + 1 > most) break;
        std::memcpy(text + count, line.data(), line.size());
        count += int(line.size());
        text[count++] = '\n';
    }
    return count;
}
