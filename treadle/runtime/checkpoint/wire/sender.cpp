// The sender of a rank: a lane to each holder of its state, and the calls by which Python runs it.
#include <chrono>

#include "lane.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

constexpr int FAILED_CALL = -1;

static thread_local std::string message;

struct LaneReport {
    int32_t state, unused;
    uint64_t verified;
    char why[496];
};

struct Sender {
    Shared shared;
    const uint64_t most;                             // bytes of the state, as planned
    const std::vector<std::vector<PieceTimes>> planned;  // of each copy
    std::vector<std::unique_ptr<Lane>> lanes;        // null for a holder that has none yet

    Sender(uint64_t most, std::vector<std::vector<PieceTimes>> planned) : most(most), planned(std::move(planned)), lanes(this->planned.size()) {}

    bool busy() const {
        return std::any_of(lanes.begin(), lanes.end(), [](auto &lane) { return lane && lane->state == LaneState::SENDING; });
    }

    template <class Act>
    void each(Act &&act) {
        for (auto &lane : lanes)
            if (lane) act(*lane);
    }
};

static int failed(const std::string &why) {
    message = why;
    return FAILED_CALL;
}

static Sender &at(void *handle) { return *static_cast<Sender *>(handle); }

}  // namespace treadle

using namespace treadle;

TREADLE_API const char *sender_message() { return message.c_str(); }

// `pieces`: those of copy 0, the own one, and of `copies` - 1 others, each in the order in which they leave.
TREADLE_API void *sender_open(uint32_t machine, uint32_t device, int copies, uint64_t bytes, int window, const PieceTimes *pieces, int64_t count) {
    std::vector<std::vector<PieceTimes>> planned;
    planned.resize(size_t(copies));
    for (int64_t piece = 0; piece < count; ++piece) planned[size_t(pieces[piece].copy)].push_back(pieces[piece]);
    auto sender = std::make_unique<Sender>(bytes, std::move(planned));
    sender->shared.machine = machine, sender->shared.device = device;
    sender->shared.window = size_t(window);
    return sender.release();
}

TREADLE_API void sender_close(void *sender) { delete static_cast<Sender *>(sender); }

// A new lane for a copy, in place of one that is lost, over a file that stays open until that lane is gone.
TREADLE_API void sender_lane(void *sender, int copy, int file, void *memory, const char *name) {
    std::unique_ptr<Lane> &place = at(sender).lanes[size_t(copy)];
    place.reset();
    place = std::make_unique<Lane>(at(sender).shared, copy, file, static_cast<char *>(memory), name, at(sender).planned[size_t(copy)]);
}

TREADLE_API int sender_begin(void *handle, uint64_t version, const Segment *segments, int64_t count) {
    Sender &sender = at(handle);
    const std::lock_guard<std::mutex> lock(sender.shared.mutex);
    if (sender.busy()) return failed("version " + std::to_string(sender.shared.version) + " is not drained yet");
    uint64_t bytes = 0;
    for (int64_t part = 0; part < count; ++part) bytes += segments[part].bytes;
    if (bytes > sender.most) return failed("a state of " + std::to_string(bytes) + " bytes, where the plan says at most " + std::to_string(sender.most));
    sender.shared.version = version;
    sender.shared.bytes = bytes;
    sender.shared.segments.assign(segments, segments + count);
    sender.each([](Lane &lane) { lane.begin(); });
    return 0;
}

// Returns when every lane that sends has begun, or after `timeout_ms`.
TREADLE_API void sender_begun(void *handle, int timeout_ms) {
    Sender &sender = at(handle);
    std::unique_lock<std::mutex> lock(sender.shared.mutex);
    sender.shared.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&sender] {
        return std::all_of(sender.lanes.begin(), sender.lanes.end(), [](auto &lane) { return !lane || lane->begun || lane->state != LaneState::SENDING; });
    });
}

// Pieces of spans up to this one may leave; `own` are those of copy 0, whose spans are messages.
TREADLE_API void sender_release(void *handle, int32_t span, int own) {
    Sender &sender = at(handle);
    const std::lock_guard<std::mutex> lock(sender.shared.mutex);
    sender.each([&](Lane &lane) {
        if ((lane.copy == 0) == (own != 0)) lane.release(span);
    });
}

// Returns when no lane sends; those that do after `timeout_ms` are lost.
TREADLE_API void sender_drain(void *handle, int timeout_ms) {
    Sender &sender = at(handle);
    std::vector<std::pair<Lane *, std::string>> late;
    {
        std::unique_lock<std::mutex> lock(sender.shared.mutex);
        sender.each([](Lane &lane) { lane.release(INT32_MAX); });
        sender.shared.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&sender] { return !sender.busy(); });
        sender.each([&](Lane &lane) {
            if (lane.state != LaneState::SENDING) return;
            const std::string done = std::to_string(lane.pieces_taken()) + " of " + std::to_string(lane.times().size());
            late.emplace_back(&lane, "has taken " + done + " pieces of version " + std::to_string(sender.shared.version) + " within " + std::to_string(timeout_ms / 1000) + "." + std::to_string(timeout_ms / 100 % 10) + " s");
        });
    }
    for (auto &each : late) each.first->stop(each.second);
}

TREADLE_API void sender_report(void *handle, int copy, LaneReport *report) {
    Sender &sender = at(handle);
    const std::lock_guard<std::mutex> lock(sender.shared.mutex);
    *report = {};
    report->state = int32_t(LaneState::LOST);
    const Lane *const lane = sender.lanes[size_t(copy)].get();
    if (!lane) return;
    report->state = int32_t(lane->state);
    report->verified = lane->verified;
    lane->why.copy(report->why, sizeof report->why - 1);
}

// The pieces of all copies, of which up to `most` are written; their count.
TREADLE_API int64_t sender_times(void *handle, PieceTimes *found, int64_t most) {
    Sender &sender = at(handle);
    const std::lock_guard<std::mutex> lock(sender.shared.mutex);
    int64_t count = 0;
    sender.each([&](Lane &lane) {
        for (const PieceTimes &piece : lane.times())
            if (count++ < most) found[count - 1] = piece;
    });
    return count;
}

TREADLE_API uint32_t sender_sum(uint32_t before, const void *data, uint64_t bytes) { return crc32c(before, data, size_t(bytes)); }

TREADLE_API uint32_t sender_joined(uint32_t first, uint32_t second, uint64_t bytes) { return crc_joined(first, second, bytes); }
