// How elements lie in the slots of a connection, by protocol (CoCoNet, section 5.2).
#pragma once
#include "treadle_fusion.h"

namespace treadle {

// Elements in a slot: bare, with one flag per message.
struct SimpleSlots {
    static constexpr bool FLAGGED = false, LINES = false;
    template <class T, int PACK>
    TREADLE_BOTH static constexpr int64_t bytes(int64_t count) { return count * sizeof(T); }

    template <class T, int PACK, int N>
    static TREADLE_DEVICE bool receive(const Task &, const char *slot, int64_t i, int64_t, uint64_t, Pack<T, N> &pack) {
        pack = *reinterpret_cast<const Pack<T, N> *>(slot + i * sizeof(T));
        return true;
    }
    template <class T, int PACK, int N>
    static TREADLE_DEVICE void send(char *slot, int64_t i, int64_t, uint64_t, const Pack<T, N> &pack) {
        *reinterpret_cast<Pack<T, N> *>(slot + i * sizeof(T)) = pack;
    }
};

// Packets of 4 bytes of data and a 4-byte flag; a pack is whole packets, and so is each element behind the last pack.
struct LLSlots {
    static constexpr bool FLAGGED = true, LINES = false;
    template <class T, int N>
    static constexpr int PACKETS = (sizeof(T) * N + 3) / 4;
    template <class T, int PACK>
    TREADLE_BOTH static constexpr int64_t bytes(int64_t count) {
        return 8 * (count / PACK * PACKETS<T, PACK> + count % PACK * PACKETS<T, 1>);
    }

    // Never 0, which is what fresh slots hold; an old message of a slot has a smaller number.
    static TREADLE_DEVICE uint32_t flag(uint64_t message) { return uint32_t((message - 1) % 0xffffffffu) + 1; }

    template <class T, int PACK>
    static TREADLE_DEVICE int64_t at(int64_t i, int64_t count) {
        const int64_t packed = count / PACK * PACK;
        return i < packed ? bytes<T, PACK>(i) : bytes<T, PACK>(packed) + 8 * (i - packed) * PACKETS<T, 1>;
    }
    template <class T, int PACK, int N>
    static TREADLE_DEVICE bool receive(const Task &task, const char *slot, int64_t i, int64_t count, uint64_t message,
                                       Pack<T, N> &pack) {
        Word<4 * PACKETS<T, N>> words;
        bool good = true;
        TREADLE_UNROLL
        for (int k = 0; k < PACKETS<T, N>; ++k)
            good = good && load_packet(task, slot + at<T, PACK>(i, count) + 8 * k, flag(message), words.part[k]);
        memcpy(&pack, &words, sizeof(T) * N);
        return good;
    }
    template <class T, int PACK, int N>
    static TREADLE_DEVICE void send(char *slot, int64_t i, int64_t count, uint64_t message, const Pack<T, N> &pack) {
        Word<4 * PACKETS<T, N>> words{};
        memcpy(&words, &pack, sizeof(T) * N);
        TREADLE_UNROLL
        for (int k = 0; k < PACKETS<T, N>; ++k)
            store_packet(slot + at<T, PACK>(i, count) + 8 * k, words.part[k], flag(message));
    }
};

// Lines of 120 bytes of data and an 8-byte flag. PACKS packs go together: of the eight threads that move a line, thread k
// has packs k and 8 + k, the last thread pack 7 alone. Packs of 16 bytes take two lines, where the halves of pack 7 lie
// next to the flags; smaller ones have 8 bytes each in one. So what a thread has received it also computes and sends.
struct LL128Slots {
    static constexpr bool FLAGGED = true, LINES = true;
    static constexpr int PACKS = 2 * LINE_THREADS - 1;
    // How many of the eight threads a thread stands for: all where it is the only one of its block.
    static constexpr int PLAYED = MAX_THREADS == 1 ? LINE_THREADS : 1;
    static constexpr int OWN = 2 * PLAYED;  // packs of a thread

    template <class T, int N>
    static constexpr int HEIGHT = sizeof(T) * N > 8 ? 2 : 1;  // lines of PACKS packs
    // Lines of `packs` packs.
    template <class T, int N>
    TREADLE_BOTH static constexpr int64_t lines(int64_t packs) { return (packs + PACKS - 1) / PACKS * HEIGHT<T, N>; }

    // Lines of whole packs, then those of the elements behind them.
    template <class T, int PACK>
    TREADLE_BOTH static constexpr int64_t bytes(int64_t count) {
        return LINE * (lines<T, PACK>(count / PACK) + lines<T, 1>(count % PACK));
    }

    static TREADLE_DEVICE int lane(int own) { return PLAYED == 1 ? thread() % LINE_THREADS : own / 2; }
    // Which of the PACKS this thread's packs are; no less than PACKS for one that the last thread does not have.
    static TREADLE_DEVICE int number(int own) { return own % 2 * LINE_THREADS + lane(own); }

    template <class T, int N>
    static TREADLE_DEVICE bool receive(const Task &task, const char *slot, int64_t line, bool active, uint64_t message,
                                       Pack<T, N> (&pack)[OWN]) {
        uint64_t word[HEIGHT<T, N>][PLAYED][2];
        TREADLE_UNROLL
        for (int k = 0; k < HEIGHT<T, N>; ++k)
            if (!load(task, reinterpret_cast<const Line *>(slot) + line + k, active, message, word[k])) return false;
        TREADLE_UNROLL
        for (int own = 0; own < OWN; ++own) {
            const auto &first = word[0][own / 2];
            if constexpr (HEIGHT<T, N> == 1) {
                memcpy(&pack[own], &first[own % 2], sizeof pack[own]);
            } else {
                const auto &second = word[1][own / 2];
                const bool last = lane(own) == LINE_THREADS - 1;
                const uint64_t whole[2] = {own % 2 ? second[0] : first[0], own % 2 ? second[1] : last ? second[0] : first[1]};
                memcpy(&pack[own], whole, sizeof pack[own]);
            }
        }
        return true;
    }
    template <class T, int N>
    static TREADLE_DEVICE void send(char *slot, int64_t line, bool active, uint64_t message, const Pack<T, N> (&pack)[OWN]) {
        uint64_t word[HEIGHT<T, N>][PLAYED][2] = {};
        TREADLE_UNROLL
        for (int own = 0; own < OWN; ++own) {
            if constexpr (HEIGHT<T, N> == 1) {
                memcpy(&word[0][own / 2][own % 2], &pack[own], sizeof pack[own]);
            } else {
                static_assert(sizeof pack[own] == 16);
                uint64_t whole[2];
                memcpy(whole, &pack[own], sizeof whole);
                auto &first = word[0][own / 2], &second = word[1][own / 2];
                const bool last = lane(own) == LINE_THREADS - 1;
                if (own % 2 == 0) {
                    first[0] = whole[0];
                    first[1] = second[0] = whole[1];  // the latter only stays for the last thread
                } else {
                    second[0] = last ? second[0] : whole[0];
                    second[1] = whole[1];
                }
            }
        }
        TREADLE_UNROLL
        for (int k = 0; k < HEIGHT<T, N>; ++k) store(reinterpret_cast<Line *>(slot) + line + k, active, message, word[k]);
    }

  private:
    template <int LANES>
    static TREADLE_DEVICE bool load(const Task &task, const Line *line, bool active, uint64_t message, uint64_t (&word)[LANES][2]) {
        if constexpr (LANES == 1)
            return load_line(task, line, active, lane(0), message, word[0]);
        else
            return load_line(task, line, message, word);
    }
    template <int LANES>
    static TREADLE_DEVICE void store(Line *line, bool active, uint64_t message, uint64_t (&word)[LANES][2]) {
        if constexpr (LANES == 1)
            store_line(line, active, lane(0), message, word[0]);
        else
            store_line(line, message, word);
    }
};

}  // namespace treadle
