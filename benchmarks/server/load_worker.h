// A worker that lives through a job: it pushes, waits, compares, and now and then dies in some way and comes back.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "load_api.h"
#include "load_reference.h"
#include "streams.h"

namespace load {

// A job on its servers: one for all workers, one for each rack, or shards that all workers reach.
struct Served {
    Case job;
    Reference reference;
    std::vector<void *> servers;
    std::vector<int> numbers;                      // of the job on each server
    std::vector<std::atomic<uint64_t>> lost;       // how often each server lost each worker
    std::mutex &lock;                              // calls of servers come one at a time
    std::atomic<uint64_t> compared{0}, deaths{0};  // values, and workers that came back

    Served(const Case &made, std::vector<void *> all, std::mutex &calls)
        : job(made), reference(job), servers(std::move(all)), numbers(servers.size()), lost(servers.size() * size_t(job.everyone())), lock(calls) {}
    std::atomic<uint64_t> &losses(size_t server, int worker) { return lost[server * size_t(job.everyone()) + size_t(worker)]; }
};

[[noreturn]] inline void fail(const Case &job, const std::string &what) {
    std::fprintf(stderr, "%s: %s\n", said(job).c_str(), what.c_str());
    std::fflush(stderr);
    _exit(1);
}

class Worker {
  public:
    Worker(Served &served, int number)
        : served_(served), job_(served.job), number_(number), random_(mixed(job_.seed, 77, number)),
          first_server_(job_.racks > 1 ? number / job_.workers : 0), last_server_(job_.racks > 1 ? first_server_ + 1 : int(served.servers.size())) {}

    void live() {
        connect();
        for (int step = 1; step <= job_.steps; ++step) {
            step_ = step;
            while (mortal(job_, number_) && chance(random_, job_.deaths)) {
                push(step, int(between(random_, 0, keys())));
                die();
                connect();
                served_.deaths += 1;
            }
            push(step, keys());
            wait(step);
        }
    }

    // The weights that are left, of an asynchronous job once all its workers are done; then the worker leaves.
    void leave(bool last) {
        if (last) {
            for (int key = 0; key < keys(); ++key) call(client_push(client_, key, 0, treadle::PULL, 0), "client_push");
            for (int key = 0; key < keys(); ++key) arrived(key, 0);
            compare([this](int64_t element) { return served_.reference.last(element); });
        }
        client_close(client_);
    }

  private:
    int keys() const { return int(job_.key_elements.size()); }
    int place() const { return number_ - (job_.racks > 1 ? first_server_ * job_.workers : 0); }

    void call(int result, const char *what) {
        if (result < 0) fail(job_, std::string(what) + " of worker " + std::to_string(number_) + ": " + client_message());
    }

    // A client with streams to every core of its servers, or with rings where it has one server.
    void connect() {
        const std::vector<int32_t> one(size_t(job_.chunks())), slots(size_t(last_server_ - first_server_), job_.cores);
        treadle::Layout layout{};
        layout.keys = keys(), layout.servers = int32_t(slots.size()), layout.groups = GROUPS, layout.chunks = job_.chunks();
        layout.chunk_elements = job_.chunk_elements.data(), layout.chunk_key = job_.chunk_key.data();
        layout.chunk_server = slots.size() == 1 ? one.data() : job_.chunk_server.data();
        layout.chunk_slot = job_.chunk_slot.data(), layout.slots = slots.data(), layout.key_type = job_.key_type.data();
        client_ = client_open(&layout);
        if (!client_) fail(job_, std::string("client_open: ") + client_message());
        rings_ = chance(random_, 0.4);
        for (int server = first_server_; server < last_server_; ++server) {
            if (rings_) share(server);
            for (int slot = 0; !rings_ && slot < job_.cores; ++slot) call(client_stream(client_, server - first_server_, slot, stream(server, slot)), "client_stream");
        }
    }

    void share(int server) {
        void *const handle = served_.servers[size_t(server)];
        std::vector<int> theirs, ours, slots(size_t(job_.cores));
        std::iota(slots.begin(), slots.end(), 0);
        for (const int slot : slots) theirs.push_back(dup(server_bell(handle, slot))), ours.push_back(dup(client_bell(client_)));
        const int first = (server - first_server_) * job_.cores, file = dup(client_memfd(client_));
        const std::lock_guard<std::mutex> guard(served_.lock);
        if (server_arena(handle, served_.numbers[size_t(server)], place(), first, job_.cores, slots.data(), file, ours.data()))
            fail(job_, std::string("server_arena: ") + server_message(handle));
        call(client_rings(client_, server - first_server_, theirs.data()), "client_rings");
    }

    // The worker's end of a stream to a core of a server.
    int stream(int server, int slot) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail(job_, "socketpair");
        const std::lock_guard<std::mutex> guard(served_.lock);
        if (server_stream(served_.servers[size_t(server)], served_.numbers[size_t(server)], place(), slot, ends[0]) < 0)
            fail(job_, std::string("server_stream: ") + server_message(served_.servers[size_t(server)]));
        return ends[1];
    }

    void push(int step, int some) {
        for (int64_t chunk = 0; chunk < job_.chunks(); ++chunk) {
            const int type = job_.key_type[job_.chunk_key[chunk]];
            char *at = area(0) + job_.chunk_offset[chunk];
            const bool zeros = !job_.synchronous && mortal(job_, number_);
            for (int64_t i = 0; i < job_.chunk_elements[chunk]; ++i)
                as_type(at, i, zeros ? 0 : gradient(job_, number_, step, job_.chunk_first[chunk] + i), type);
        }
        double numbers[GROUPS * treadle::NUMBERS];
        settings(job_, step, numbers);
        if (step == 1 || step % 3 == 0 || chance(random_, 0.1)) call(client_settings(client_, step, numbers, GROUPS), "client_settings");
        std::vector<int> order(keys());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random_);
        for (int each = 0; each < some; ++each) {
            if (chance(random_, 0.05)) std::this_thread::sleep_for(std::chrono::microseconds(between(random_, 1, 500)));
            const int key = order[each], none = empty(job_, number_, step, key);
            if (job_.synchronous && chance(random_, 0.2)) {
                call(client_push(client_, key, step, treadle::PUSH, none), "client_push");
                call(client_push(client_, key, step, treadle::PULL, 0), "client_push");
            } else {
                call(client_push(client_, key, step, treadle::PUSH_PULL, none), "client_push");
            }
        }
    }

    char *area(int values) {
        int64_t bytes;
        return client_arena(client_) + client_buffer(client_, values, &bytes);
    }

    void arrived(int key, int step) {
        for (int turn = 0; turn < 120; ++turn) {
            const int result = client_wait(client_, key, step, 1000);
            if (result == 0) return;
            call(result, "client_wait");
        }
        fail(job_, "worker " + std::to_string(number_) + " has waited two minutes for version " + std::to_string(step));
    }

    void wait(int step) {
        if (chance(random_, 0.5)) arrived(-1, step);
        else
            for (int key = keys(); key-- > 0;) arrived(key, step);
        if (job_.synchronous)
            compare([&](int64_t element) { return served_.reference.weight(step, element); });
    }

    template <class Expected>
    void compare(Expected expected) {
        for (int64_t chunk = 0; chunk < job_.chunks(); ++chunk) {
            const int key = job_.chunk_key[chunk], type = job_.key_type[key];
            const char *at = area(1) + job_.chunk_offset[chunk];
            for (int64_t i = 0; i < job_.chunk_elements[chunk]; ++i) {
                const float found = from_type(at, i, type), right = expected(job_.chunk_first[chunk] + i);
                if (!served_.reference.close(found, right, type))
                    fail(job_, "worker " + std::to_string(number_) + " found in step " + std::to_string(step_) + " " + std::to_string(found) + " in chunk " + std::to_string(chunk) + ", expected " + std::to_string(right));
            }
        }
        served_.compared += uint64_t(job_.elements);
    }

    // By leaving, by the server's decision, of which it reports nothing, or by a frame that is none; returns when every
    // server has lost it.
    void die() {
        std::vector<uint64_t> before;
        for (int server = first_server_; server < last_server_; ++server) before.push_back(served_.losses(size_t(server), place()));
        const bool dropped = chance(random_, 0.3);
        for (int server = first_server_; dropped && server < last_server_; ++server) {
            const std::lock_guard<std::mutex> guard(served_.lock);
            server_drop(served_.servers[size_t(server)], served_.numbers[size_t(server)], place(), "the load drops it");
        }
        client_close(client_);
        for (int server = first_server_; !dropped && server < last_server_; ++server) lose(server, before[size_t(server - first_server_)]);
        if (chance(random_, 0.4)) disturb(int(between(random_, first_server_, last_server_ - 1)));
    }

    void lose(int server, uint64_t before) {
        for (int turn = 0; served_.losses(size_t(server), place()) <= before; ++turn) {
            if (turn > 60000) fail(job_, "worker " + std::to_string(number_) + " is not lost after a minute");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    // A frame that is damaged in one place is answered with FAILED, and the stream ends.
    void disturb(int server) {
        const uint64_t before = served_.losses(size_t(server), place());
        std::vector<int> ends;
        for (int slot = 0; slot < job_.cores; ++slot) ends.push_back(stream(server, slot));
        const int slot = int(between(random_, 0, job_.cores - 1));
        std::vector<char> bytes(sizeof(treadle::Frame));
        const treadle::Frame frame = treadle::make_frame(treadle::PULL, 0, uint32_t(between(random_, 0, job_.chunks() - 1)), 1, 0, 0);
        std::memcpy(bytes.data(), &frame, sizeof frame);
        bytes[size_t(between(random_, 0, int64_t(bytes.size()) - 1))] ^= char(between(random_, 1, 255));
        if (write(ends[size_t(slot)], bytes.data(), bytes.size()) < 0) fail(job_, "a stream takes no frame");
        treadle::Frame answer{};
        if (recv(ends[size_t(slot)], &answer, sizeof answer, MSG_WAITALL) != sizeof answer || answer.op != treadle::FAILED)
            fail(job_, "a damaged frame is answered with " + std::to_string(answer.op));
        lose(server, before);
        for (const int end : ends) close(end);
    }

    Served &served_;
    const Case &job_;
    int number_;
    Random random_;
    int first_server_, last_server_;
    void *client_ = nullptr;
    bool rings_ = false;
    int step_ = 0;
};

}  // namespace load
