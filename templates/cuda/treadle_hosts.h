// Ranks on other hosts, for ranks that are processes. Each of their arenas has a stand-in here, in which kernels store
// as they do in the arenas of ranks on this host. What is stored there goes over a stream socket, sent by the thread
// that stores it, from where it lies; a thread for each peer puts what arrives into the arena of the rank here. So a
// wait sees no difference. Sockets to ranks on this host carry no data: they only show that the rank is there.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "treadle_types.h"

namespace treadle::process {

inline void sleep_ns(long nanoseconds) {
    const timespec time{nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&time, nullptr);
}

inline uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

enum FrameKind : uint32_t {
    DATA = 0x7472dd01,  // `bytes` for offset `at`, which a signal follows
    FLAGGED_DATA,       // the same, of words that contain their own flags
    SIGNAL,             // the counter at offset `at` becomes `value`
    GIVEN_UP,           // the run was given up, `value` is the abort word
    GOODBYE,            // this rank takes part in no run after the first `value`
};

struct Frame {
    uint32_t kind;
    uint64_t at, bytes, value;
    uint64_t due_ns;  // not visible earlier: where a lab stands for a slower network
};

class Hosts {
  public:
    // By rank: `files` are sockets, -1 for this rank; `remote` says which are on other hosts. `own` is the arena of this
    // rank, of `bytes` like all of them.
    Hosts(const int32_t *files, const uint8_t *remote, int ranks, char *own, size_t bytes, uint64_t latency_ns)
        : own_(own), bytes_(bytes), stride_((bytes + PAGE - 1) / PAGE * PAGE), latency_ns_(latency_ns) {
        for (int rank = 0; rank < ranks; ++rank)
            if (remote[rank]) remote_.push_back(rank);
        void *memory = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::runtime_error("no memory for the arenas of ranks on other hosts");
        base_ = static_cast<char *>(memory);
        for (int rank = 0; rank < ranks; ++rank) {
            peers_.push_back(std::make_unique<Peer>());
            peers_.back()->rank = rank;
            peers_.back()->file = files[rank];
        }
    }

    ~Hosts() {
        closing_ = true;
        for (auto &peer : peers_) {
            if (peer->file < 0) continue;
            Frame frame{};
            frame.kind = GOODBYE;
            frame.value = finished_;
            write(*peer, frame, nullptr);
            shutdown(peer->file, SHUT_RDWR);
        }
        for (auto &peer : peers_)
            if (peer->receiver.joinable()) peer->receiver.join();
        munmap(base_, size());
    }
    Hosts(const Hosts &) = delete;

    // `words` are the abort words of this host, set when a rank is lost or another host gives up.
    void start(const std::vector<uint32_t *> &words) {
        words_ = words;
        for (auto &peer : peers_) {
            if (peer->file < 0) continue;
            const int unlimited = -1;
            setsockopt(peer->file, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unlimited, sizeof unlimited);
            const timeval tick{0, 100000};
            setsockopt(peer->file, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick);
            setsockopt(peer->file, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
            peer->receiver = std::thread([this, &peer = *peer] { receive(peer); });
        }
    }

    // The stand-in of the arena of a rank on another host; null for one on this host.
    char *arena(int rank) const {
        for (size_t i = 0; i < remote_.size(); ++i)
            if (remote_[i] == rank) return base_ + i * stride_;
        return nullptr;
    }

    bool covers(const void *address) const { return size_t(static_cast<const char *>(address) - base_) < size(); }

    // Sends what lies at an address of a stand-in. `flagged`: no signal follows.
    void deliver(const void *from, int64_t bytes, bool flagged) {
        put(flagged ? FLAGGED_DATA : DATA, from, uint64_t(bytes), 0);
    }
    void signal(const uint64_t *flag, uint64_t value) { put(SIGNAL, flag, 0, value); }

    void begin_run() {
        ++started_;
        for (auto &peer : peers_) require(*peer);
    }
    void end_run() { ++finished_; }

    // The run ends everywhere, with the cause that came first.
    void give_up(uint32_t cause) {
        if (closing_) return;
        std::lock_guard<std::mutex> lock(telling_);
        if (given_up_) return;
        given_up_ = true;
        for (uint32_t *word : words_) set_abort(word, cause);
        Frame frame{};
        frame.kind = GIVEN_UP;
        frame.value = cause;
        for (auto &peer : peers_)
            if (peer->file >= 0 && cause != abort_word(LOST, peer->rank)) write(*peer, frame, nullptr);
    }

    // Returns once the others know of a run that was given up.
    void settle() { std::lock_guard<std::mutex> lock(telling_); }

  private:
    static constexpr size_t PAGE = 4096;
    static constexpr int PATIENCE_TICKS = 10;  // of a send, once the run is given up
    static constexpr uint32_t SILENT_MS = 4000;

    struct Peer {
        int rank = -1, file = -1;
        bool broken = false;
        std::mutex sending;
        std::thread receiver;
        std::atomic<uint64_t> runs{UINT64_MAX};  // in which it takes part
    };

    size_t size() const { return (remote_.size() + 1) * stride_; }

    void put(FrameKind kind, const void *from, uint64_t bytes, uint64_t value) {
        const size_t offset = size_t(static_cast<const char *>(from) - base_);
        Peer &peer = *peers_[size_t(remote_[offset / stride_])];
        Frame frame{};
        frame.kind = kind;
        frame.at = offset % stride_;
        frame.bytes = bytes;
        frame.value = value;
        if (latency_ns_) frame.due_ns = now_ns() + latency_ns_;
        if (!write(peer, frame, from)) lose(peer.rank);
    }

    // False when the peer does not take it any more.
    bool write(Peer &peer, Frame frame, const void *data) {
        std::lock_guard<std::mutex> lock(peer.sending);
        if (peer.broken) return false;
        iovec parts[2] = {{&frame, sizeof frame}, {const_cast<void *>(data), size_t(frame.bytes)}};
        msghdr text{};
        text.msg_iov = parts;
        text.msg_iovlen = frame.bytes ? 2 : 1;
        for (int ticks = 0; text.msg_iovlen;) {
            const ssize_t done = sendmsg(peer.file, &text, MSG_NOSIGNAL | (frame.kind == DATA ? MSG_MORE : 0));
            if (done < 0 && errno == EINTR) continue;
            if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !unanswered(peer)) {
                if ((!given_up_ && !closing_) || ++ticks < PATIENCE_TICKS) continue;
            }
            if (done < 0) {
                peer.broken = true;
                return false;
            }
            size_t left = size_t(done);
            while (text.msg_iovlen && left >= text.msg_iov->iov_len) {
                left -= text.msg_iov->iov_len;
                ++text.msg_iov;
                --text.msg_iovlen;
            }
            if (text.msg_iovlen) {
                text.msg_iov->iov_base = static_cast<char *>(text.msg_iov->iov_base) + left;
                text.msg_iov->iov_len -= left;
            }
        }
        return true;
    }

    // Whether a host has left what was sent to it unanswered for seconds; idle ones the kernel asks itself. One that
    // answers, but whose rank takes nothing, is only late. What comes from a host need not acknowledge anything.
    static bool unanswered(const Peer &peer) {
        tcp_info seen{};
        socklen_t bytes = sizeof seen;
        if (getsockopt(peer.file, IPPROTO_TCP, TCP_INFO, &seen, &bytes)) return false;
        if (std::min(seen.tcpi_last_ack_recv, seen.tcpi_last_data_recv) < SILENT_MS) return false;
        return (seen.tcpi_unacked && seen.tcpi_retransmits > 1) || seen.tcpi_probes > 1;
    }

    static bool read(const Peer &peer, void *to, size_t bytes) {
        for (char *at = static_cast<char *>(to); bytes;) {
            const ssize_t done = recv(peer.file, at, bytes, MSG_WAITALL);
            if (done < 0 && (errno == EINTR || ((errno == EAGAIN || errno == EWOULDBLOCK) && !unanswered(peer)))) continue;
            if (done <= 0) return false;
            at += done;
            bytes -= size_t(done);
        }
        return true;
    }

    void receive(Peer &peer) {
        std::vector<uint64_t> words;
        Frame frame;
        while (read(peer, &frame, sizeof frame)) {
            const bool fits = frame.at <= bytes_ && frame.bytes <= bytes_ - frame.at;
            char *const to = own_ + frame.at;
            if (frame.kind == DATA && fits) {
                if (!read(peer, to, frame.bytes)) break;
            } else if (frame.kind == FLAGGED_DATA && fits && frame.at % 8 == 0 && frame.bytes % 8 == 0) {
                words.resize(frame.bytes / 8);
                if (!read(peer, words.data(), frame.bytes)) break;
                await(frame.due_ns);
                for (size_t i = 0; i < words.size(); ++i)
                    __atomic_store_n(reinterpret_cast<uint64_t *>(to) + i, words[i], __ATOMIC_RELEASE);
            } else if (frame.kind == SIGNAL && frame.at % 8 == 0 && frame.at + 8 <= bytes_) {
                await(frame.due_ns);
                __atomic_store_n(reinterpret_cast<uint64_t *>(to), frame.value, __ATOMIC_RELEASE);
            } else if (frame.kind == GIVEN_UP) {
                give_up(uint32_t(frame.value));
            } else if (frame.kind == GOODBYE) {
                peer.runs = frame.value;
                require(peer);
                return;
            } else {
                break;
            }
        }
        lose(peer.rank);
    }

    static void await(uint64_t due_ns) {
        for (uint64_t now; due_ns && (now = now_ns()) < due_ns;) sleep_ns(long(due_ns - now));
    }

    // A peer that said goodbye must be needed no more.
    void require(const Peer &peer) {
        if (started_ > peer.runs) lose(peer.rank);
    }

    void lose(int rank) { give_up(abort_word(LOST, rank)); }

    char *own_, *base_ = nullptr;
    size_t bytes_, stride_;
    uint64_t latency_ns_;
    std::vector<uint32_t *> words_;
    std::vector<int> remote_;  // ranks on other hosts, in the order of their stand-ins
    std::vector<std::unique_ptr<Peer>> peers_;
    std::mutex telling_;
    std::atomic<bool> given_up_{false}, closing_{false};
    std::atomic<uint64_t> started_{0}, finished_{0};
};

}  // namespace treadle::process
