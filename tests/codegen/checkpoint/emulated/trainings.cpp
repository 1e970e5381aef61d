// trainings SEEDS [LINE]: all ranks of a plan train and copy their states, in another order of events for each seed. Waits
// of the line LINE are left out. Prints how many seeds ended with a wrong byte, an own copy too early, or none at all.
#include <cstdint>
#include <algorithm>
#include <cstdio>

#include "treadle_transfers.h"

using namespace treadle;

constexpr int RANKS = MACHINES * DEVICES, VERSIONS = 4;

static char value(int rank, uint64_t version, size_t at) { return rank * 31 + version * 101 + at * 7 + at / 256; }

struct Rank {
    int number, reached = -1;
    ncclComm communicator;
    cudaStream_t queue, training;
    std::vector<char> state, host;
    std::unique_ptr<Transfers> transfers;

    explicit Rank(int number) : number(number), communicator{number}, state(STATE_BYTES), host(2 * COPIES * STATE_BYTES) {
        require(cudaStreamCreateWithFlags(&queue, 0));
        require(cudaStreamCreateWithFlags(&training, 0));
        transfers = std::make_unique<Transfers>(number, &communicator, queue);
        transfers->pin(host.data(), host.size());
        update(0);
    }
    void begin(uint64_t version) {
        char *places[COPIES];
        for (int round = 0; round < COPIES; ++round) places[round] = host.data() + (version % 2 * COPIES + round) * STATE_BYTES;
        // Segments end in the middle of pieces, at other places on each rank.
        const size_t cut = STATE_BYTES / 3 + number;
        const Segment segments[] = {{state.data(), cut}, {state.data() + cut, STATE_BYTES - cut}};
        transfers->begin(segments, 2, places, training);
    }
    void update(uint64_t version) {
        emulated::then(training, [=] {
            for (size_t at = 0; at < STATE_BYTES; ++at) state[at] = value(number, version, at);
        });
    }
    void reach(int message) {
        emulated::then(queue, [=] { reached = message; });
    }
    bool right(uint64_t version) const {
        transfers->wait();
        for (int round = 0; round < COPIES; ++round)
            for (size_t at = 0; at < STATE_BYTES; ++at) {
                const int owner = round ? RECEIVES[number / DEVICES][round] * DEVICES + number % DEVICES : number;
                if (host[(version % 2 * COPIES + round) * STATE_BYTES + at] != value(owner, version, at)) return false;
            }
        return true;
    }
};

static bool train(unsigned seed) {
    emulated::streams.clear();
    emulated::posted.clear();
    emulated::start(seed);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int number = 0; number < RANKS; ++number) ranks.push_back(std::make_unique<Rank>(number));
    bool good = true;
    emulated::on_copy = [&](const char *to) {
        for (auto &rank : ranks) {
            const ptrdiff_t at = to - rank->host.data();
            if (at < 0 || at >= ptrdiff_t(rank->host.size()) || at / STATE_BYTES % COPIES) continue;
            for (const Own &own : OWN)
                if (own.offset == at % STATE_BYTES && own.bytes) good &= rank->reached >= own.message;
        }
    };
    try {
        for (uint64_t version = 0; version < VERSIONS; ++version) {
            for (auto &rank : ranks) {
                emulated::then(rank->queue, [&] { rank->reached = -1; });
                rank->begin(version);
                for (int message = 0; message < MESSAGES; ++message) {
                    rank->transfers->release(message);
                    rank->reach(message);
                    rank->transfers->message(message);
                }
                rank->reach(MESSAGES);
                rank->transfers->drain(rank->training);
                rank->update(version + 1);
            }
            for (auto &rank : ranks) good &= rank->right(version);
        }
    } catch (const std::exception &) {
        good = false;
    }
    for (auto stream : emulated::streams) stream->queued.clear();
    return good;
}

int main(int count, char **arguments) {
    if (count > 2) emulated::ignored_line = std::atoi(arguments[2]);
    int wrong = 0;
    for (int seed = 0; seed < std::atoi(arguments[1]); ++seed) wrong += !train(seed);
    std::printf("%d\n", wrong);
}
