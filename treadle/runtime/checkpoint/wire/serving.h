// A stream to the holder, served by a thread: pieces go where they belong, whole versions are given to whoever wants them.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include <poll.h>

#include "held.h"
#include "sending.h"

namespace treadle {

// Lines for whoever runs the holder; the first of them where they are not fetched.
struct Reports {
    void put(const std::string &line) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (lines.size() < MOST) lines.push_back(line);
    }
    std::vector<std::string> take() {
        const std::lock_guard<std::mutex> lock(mutex);
        return std::move(lines);
    }

  private:
    static constexpr size_t MOST = 1000;
    std::mutex mutex;
    std::vector<std::string> lines;
};

using States = std::vector<std::unique_ptr<HeldState>>;

enum class Found { ABSENT, DAMAGED, WHOLE };

struct Verified {
    Found found;
    std::string why;  // it is not whole
};

// Reads a whole version again and calls `use` where every piece is as it arrived; else it is dropped and reported.
template <class Use>
Verified verified(HeldState &state, uint64_t version, Reports &reports, Use &&use) {
    const std::string name = "version " + std::to_string(version);
    Verified result{Found::ABSENT, name + " is not there"};
    state.read(version, [&](const Half &half) {
        const uint64_t at = state.damaged_at(half);
        if (at < half.bytes) {
            result = {Found::DAMAGED, name + " is damaged in the piece at byte " + std::to_string(at)};
        } else {
            result = {Found::WHOLE, {}};
            use(half);
        }
    });
    if (result.found == Found::DAMAGED) {
        state.drop(version);
        reports.put(state.name() + ": " + result.why);
    }
    return result;
}

class Stream final : public Filler {
  public:
    const int file;
    const uint64_t epoch;
    const std::string name;  // of the other end
    std::thread thread;

    Stream(States &states, Reports &reports, int file, uint64_t order, uint64_t epoch, const std::string &name)
        : Filler(order), file(file), epoch(epoch), name(name), states(states), reports(reports) {}
    ~Stream() {
        if (thread.joinable()) thread.join();
        close(file);
    }

    bool over() const { return ended; }

    // The other end is told why.
    void cut(const std::string &why) override {
        {
            const std::lock_guard<std::mutex> lock(cutting);
            if (cut_why.empty()) cut_why = why;
        }
        is_cut = true;
        shutdown(file, SHUT_RD);
    }
    // It is not, if it takes no data.
    void cut_now(const std::string &why) {
        cut(why);
        shutdown(file, SHUT_RDWR);
    }

    // Until the stream ends.
    void serve() {
        const std::string why = follow(-1, true);
        if (!why.empty()) {
            Frame frame = make_frame(REFUSED, reader.frame.machine, reader.frame.device, reader.frame.version);
            answer(frame, why);
        }
        finish(why);
    }

    // Takes one version that the other end gives: empty, or why there is none.
    std::string take(const HeldState &state, uint64_t version, int timeout_ms) {
        const Frame wanted = make_frame(WANT, state.machine, state.device, version);
        std::string why;
        if (sending.start(wanted), sending.write(file, 0) != Moved::WHOLE)
            why = name + " " + sending.why;
        else
            why = follow(timeout_ms, false);
        finish({});
        return why;
    }

  private:
    States &states;
    Reports &reports;
    FrameReaderOf<Frame> reader;
    Sending sending;
    std::mutex cutting;
    std::string cut_why;  // under it
    std::atomic<bool> is_cut{false}, ended{false};
    HeldState *state = nullptr;  // of the frame that is read
    std::string refused;
    std::string text;  // of the other end
    bool committed = false;

    // Handles frames until the stream ends or a version is whole (`answers` not), and says why that is an error.
    std::string follow(int timeout_ms, bool answers) {
        while (!is_cut) {
            const Moved moved = reader.next(file, [&](const Frame &frame, char *&into) { return place(frame, into, answers); });
            if (is_cut) break;
            if (moved == Moved::WAITS) {
                pollfd wait{file, POLLIN, 0};
                if (poll(&wait, 1, timeout_ms) == 0) return name + " sent nothing for " + std::to_string(timeout_ms / 1000) + " s";
                continue;
            }
            if (moved == Moved::ENDED) {
                closed = reader.why;
                return answers ? std::string() : name + " " + reader.why;
            }
            if (moved == Moved::BROKEN) return refused.empty() ? name + " " + reader.why : refused;
            if (reader.frame.op == REFUSED && !answers) return name + ": " + text;
            const std::string why = handle(reader.frame, answers);
            if (!why.empty() || (!answers && committed)) return why;
        }
        const std::lock_guard<std::mutex> lock(cutting);
        return cut_why;
    }

    std::string closed;  // how the other end ended the stream

    // What was begun is lost.
    void finish(const std::string &why) {
        for (const auto &each : states) {
            const Half lost = each->abandon(*this);
            if (lost.phase != Phase::FILLING) continue;
            const std::string how = why.empty() ? name + " " + (closed.empty() ? "stopped" : closed) : why;
            reports.put(each->name() + ": " + how + ", with " + std::to_string(lost.got) + " of " + std::to_string(lost.bytes) + " bytes of version " + std::to_string(lost.version));
        }
        ended = true;
    }

    HeldState *find(const Frame &frame) const {
        for (const auto &each : states)
            if (each->machine == frame.machine && each->device == frame.device) return each.get();
        return nullptr;
    }

    const char *refuse(const std::string &why) {
        refused = why;
        return refused.c_str();
    }

    // Where the body of a frame belongs.
    const char *place(const Frame &frame, char *&into, bool answers) {
        if (frame.op == REFUSED && !answers) {
            if (frame.bytes > LONGEST_TEXT) return refuse("the text of a refusal is too long");
            text.resize(size_t(frame.bytes));
            into = text.data();
            return nullptr;
        }
        const bool known = answers ? frame.op >= BEGIN && frame.op <= WANT : frame.op == BEGIN || frame.op == PIECE || frame.op == COMMIT;
        if (!known) return refuse("a frame of kind " + std::to_string(frame.op) + " is not expected here");
        state = find(frame);
        if (!state) return refuse("the state of machine " + std::to_string(frame.machine) + ", device " + std::to_string(frame.device) + " is not held here");
        if (frame.op == PIECE && frame.bytes != frame.length) return refuse("a piece says two lengths");
        if (frame.op != PIECE && frame.bytes) return refuse("a frame of kind " + std::to_string(frame.op) + " has a body");
        if (frame.op != PIECE) return nullptr;
        const std::string why = state->place(*this, frame.version, frame.offset, frame.length, into);
        return why.empty() ? nullptr : refuse(why);
    }

    // A frame is there, whole.
    std::string handle(const Frame &frame, bool answers) {
        std::string why;
        Frame reply = make_frame(TAKEN, frame.machine, frame.device, frame.version, frame.offset, frame.length);
        if (frame.op == BEGIN) {
            reply.op = BEGUN;
            why = state->begin(*this, frame.version, frame.length, reply.offset);
        } else if (frame.op == PIECE) {
            state->took(*this, frame.version, {frame.offset, frame.length, frame.body_sum});
        } else if (frame.op == PLACED) {
            char *at;
            why = state->place(*this, frame.version, frame.offset, frame.length, at);
            if (why.empty()) state->took(*this, frame.version, {frame.offset, frame.length, frame.flags & UNSUMMED ? crc32c(0, at, size_t(frame.length)) : frame.sum});
        } else if (frame.op == COMMIT) {
            reply.op = DONE;
            why = state->commit(*this, frame.version, frame.length, frame.sum);
            committed = why.empty();
            if (!why.empty()) reports.put(state->name() + " from " + name + ": " + why);
        } else {
            return give(frame);
        }
        if (!why.empty() || !answers) return why;
        return answer(reply, {});
    }

    // A whole version, or where it is.
    std::string give(const Frame &frame) {
        std::string gone;
        const Verified result = verified(*state, frame.version, reports, [&](const Half &half) {
            if (frame.flags & HERE) {
                gone = answer(make_frame(FOUND, frame.machine, frame.device, frame.version, half.at, half.bytes, half.sum), {});
                return;
            }
            gone = answer(make_frame(BEGIN, frame.machine, frame.device, frame.version, 0, half.bytes), {});
            for (const HeldPiece &piece : half.pieces) {
                if (!gone.empty()) return;
                Frame head = make_frame(PIECE, frame.machine, frame.device, frame.version, piece.offset, piece.bytes);
                head.bytes = piece.bytes;
                head.body_sum = piece.sum;
                sending.start(head, [&](auto &&add) { add(Segment{state->data + half.at + piece.offset, piece.bytes}); });
                gone = send();
            }
            if (gone.empty()) gone = answer(make_frame(COMMIT, frame.machine, frame.device, frame.version, 0, half.bytes, half.sum), {});
        });
        return result.found == Found::WHOLE ? gone : answer(make_frame(REFUSED, frame.machine, frame.device, frame.version), result.why);
    }

    // Sends a frame without a body, or with a text.
    std::string answer(Frame frame, const std::string &words) {
        frame.bytes = std::min(words.size(), LONGEST_TEXT);
        frame.body_sum = crc32c(0, words.data(), size_t(frame.bytes));
        sending.start(frame, [&](auto &&add) {
            if (frame.bytes) add(Segment{words.data(), frame.bytes});
        });
        return send();
    }
    std::string send() { return sending.write(file, 0) == Moved::WHOLE ? std::string() : name + " " + sending.why; }
};

}  // namespace treadle
