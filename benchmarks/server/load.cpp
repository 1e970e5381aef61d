// Random jobs on real servers and clients in one process, for sanitizers: load SECONDS [SEED] [WORKERS].
//
// A round opens one or two servers and puts one to three jobs on them, each with its own workers: random keys, chunks,
// types, optimizers, orders, synchronous and asynchronous, rings and streams, deaths and returns, frames that are none.
// Every value that a worker gets, and every snapshot, is compared with a plain reference. The first line that is wrong
// ends it with exit code 1 and the number of its round, which is its seed.
#include "load_worker.h"

#include <memory>

namespace load {
namespace {

// What is told of one server: losses are counted, copies compared and released.
void follow(void *server, size_t place, std::vector<std::unique_ptr<Served>> &jobs, std::atomic<bool> &over) {
    treadle::Event events[16];
    while (!over) {
        const int count = server_events(server, events, 16, 20);
        for (int each = 0; each < count; ++each) {
            const treadle::Event &event = events[each];
            for (std::unique_ptr<Served> &served : jobs) {
                if (place >= served->servers.size() || served->numbers[place] != event.job) continue;
                const Case &job = served->job;
                if (event.what == treadle::LOST) served->losses(place, event.worker) += 1;
                if (event.what != treadle::SNAPSHOT) continue;
                std::vector<float> found(job.elements);
                if (server_copy(server, event.job, event.step, 0, found.data(), nullptr)) fail(job, std::string("server_copy: ") + server_message(server));
                for (int64_t i = 0; i < job.elements; ++i)
                    if (!served->reference.close(found[i], served->reference.weight(int(event.step), i), treadle::FLOAT32))
                        fail(job, "another snapshot of version " + std::to_string(event.step));
                server_release(server, event.job);
            }
        }
    }
}

void add(Served &served, size_t place) {
    const Case &job = served.job;
    std::vector<int32_t> slots(job.chunk_slot);
    for (size_t chunk = 0; chunk < slots.size(); ++chunk)
        if (job.racks == 1 && job.chunk_server[chunk] != int32_t(place)) slots[chunk] = -1;
    double numbers[GROUPS * treadle::NUMBERS];
    settings(job, 1, numbers);
    treadle::Job made{};
    made.name = job.name.c_str();
    made.workers = job.workers, made.racks = job.racks, made.rack = job.racks > 1 ? int32_t(place) : 0;
    made.keys = int32_t(job.key_elements.size()), made.groups = GROUPS, made.chunks = job.chunks();
    made.chunk_elements = job.chunk_elements.data(), made.chunk_key = job.chunk_key.data(), made.chunk_slot = slots.data();
    made.chunk_owner = job.racks > 1 ? job.chunk_owner.data() : nullptr;
    made.key_type = job.key_type.data(), made.key_group = job.key_group.data(), made.settings = numbers;
    made.optimizer = job.optimizer, made.synchronous = job.synchronous, made.arrival_order = job.arrival_order;
    made.wide = job.wide, made.bypass = job.bypass, made.snapshot_every = job.snapshot_every;
    const int number = server_add_job(served.servers[place], &made);
    if (number < 0) fail(job, std::string("server_add_job: ") + server_message(served.servers[place]));
    served.numbers[place] = number;
    std::vector<float> weights(job.elements);
    for (int64_t i = 0; i < job.elements; ++i) weights[i] = first_weight(job, i);
    if (server_load(served.servers[place], number, 0, weights.data(), nullptr, nullptr)) fail(job, std::string("server_load: ") + server_message(served.servers[place]));
}

void join_racks(Served &served) {
    for (int slot = 0; slot < served.job.cores; ++slot) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail(served.job, "socketpair");
        server_peer(served.servers[0], served.numbers[0], 1, slot, ends[0]);
        server_peer(served.servers[1], served.numbers[1], 0, slot, ends[1]);
    }
}

struct Tally {
    uint64_t rounds = 0, jobs = 0, compared = 0, deaths = 0;
};

void live(Served &served) {
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> lives;
    for (int number = 0; number < served.job.everyone(); ++number) workers.push_back(std::make_unique<Worker>(served, number));
    for (std::unique_ptr<Worker> &worker : workers) lives.emplace_back([&worker] { worker->live(); });
    for (std::thread &each : lives) each.join();
    for (std::unique_ptr<Worker> &worker : workers) worker->leave(!served.job.synchronous && worker == workers.front());
}

void take_turn(uint64_t seed, int most_workers, Tally &tally) {
    Random random(seed);
    std::vector<std::unique_ptr<Served>> jobs;
    const int cores = int(between(random, 1, 3)), count = int(between(random, 1, 3));
    std::vector<void *> servers;
    std::mutex calls;
    for (int each = 0; each < 2; ++each) {
        servers.push_back(server_open(cores, std::vector<int32_t>(cores, -1).data()));
        if (!servers.back()) std::fprintf(stderr, "%s\n", server_message(nullptr)), _exit(1);
    }
    for (int each = 0; each < count; ++each) {
        const Case job = random_case(seed, mixed(seed, each, 5), cores, most_workers);
        jobs.push_back(std::make_unique<Served>(job, std::vector<void *>(servers.begin(), servers.begin() + std::max(job.racks, job.servers)), calls));
        Served &served = *jobs.back();
        for (size_t place = 0; place < served.servers.size(); ++place) add(served, place);
        if (job.racks > 1) join_racks(served);
    }
    std::atomic<bool> over{false};
    std::vector<std::thread> followers, lives;
    for (size_t place = 0; place < servers.size(); ++place) followers.emplace_back([&, place] { follow(servers[place], place, jobs, over); });
    for (std::unique_ptr<Served> &served : jobs) lives.emplace_back([&served] { live(*served); });
    for (std::thread &each : lives) each.join();
    over = true;
    for (std::thread &each : followers) each.join();
    for (void *server : servers) server_close(server);
    tally.rounds += 1, tally.jobs += jobs.size();
    for (std::unique_ptr<Served> &served : jobs) tally.compared += served->compared, tally.deaths += served->deaths;
}

}  // namespace
}  // namespace load

int main(int count, char **words) {
    const double seconds = count > 1 ? std::atof(words[1]) : 5;
    uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1;
    const int workers = count > 3 ? std::atoi(words[3]) : 8;
    const auto begin = std::chrono::steady_clock::now();
    load::Tally tally;
    do load::take_turn(seed++, workers, tally);
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds);
    std::printf("{\"rounds\": %llu, \"jobs\": %llu, \"compared\": %llu, \"deaths\": %llu}\n", static_cast<unsigned long long>(tally.rounds),
                static_cast<unsigned long long>(tally.jobs), static_cast<unsigned long long>(tally.compared), static_cast<unsigned long long>(tally.deaths));
}
