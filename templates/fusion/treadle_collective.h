// Collectives of typed chunks with a computation at the finishing step (CoCoNet, section 5.3). A table of moves says what
// each threadblock receives, adds, computes, writes and sends; it is the lowered program of any algorithm. Chunks are
// partial sums of type In until the computation has made elements of type Out of them.
#pragma once
#include "treadle_buckets.h"
#include "treadle_expression.h"
#include "treadle_overlap.h"
#include "treadle_slices.h"
#include "treadle_slots.h"

namespace treadle {

// What a move does besides the flow of treadle_types.h.
constexpr int32_t COMPUTE = 32;   // the computation, on what has come together
constexpr int32_t FINISHED = 64;  // what comes in is finished already
constexpr int32_t AGAIN = 128;    // what it reads of the caller's the kernel has read before, or made: no more traffic

// Where an operand lies: a tensor of the caller, by chunk, or a stage of the arena.
enum Space : int32_t { NOWHERE, IN_INPUT, IN_OUTPUT, ON_STAGE };

struct Move {
    int32_t flow, chunk, count;  // `chunk` in the whole tensor, of the first of `count`
    int32_t source_space, source, addend_space, addend, target_space, target;
    int32_t wait_block, wait_move, awaited;
};

// A threadblock of a rank. Ranks are those of the launch, areas those of the receiving rank.
struct Entry {
    int32_t first, moves, receives, sends;  // moves of each iteration, and its messages
    int32_t recv_rank, recv_block, recv_area, send_rank, send_block, send_area;
};

// What lasts in the arena of a rank, for each threadblock; all of it only grows.
struct LaneState {
    Flag filled, drained, progress;
};

struct Chunk {
    int64_t global, local, count;  // where it begins in the tensor and in the owner's slice; elements
    int32_t columns;               // width of a rectangle
    int32_t pitch = 0;             // from a row of it to the next one in the owner's slice, where that is another than in the tensor
};

// Chunks say how far element i of one lies behind its first: in the tensor, `at`, and in the owner's slice, `in_slice`.
template <class Chunks>
struct Alike {
    TREADLE_DEVICE static int64_t in_slice(const Chunk &chunk, int64_t i) { return Chunks::at(chunk, i); }
};

// Slices of neighbouring elements: PART of each owner, cut into PIECES chunks of WIDTH. An iteration moves SLICE of each.
template <int64_t SIZE, int64_t PART, int PIECES, int64_t WIDTH, int64_t SLICE>
struct BlockChunks : Alike<BlockChunks<SIZE, PART, PIECES, WIDTH, SLICE>> {
    static constexpr int64_t LONGEST = SLICE;
    static constexpr int64_t ITERATIONS = (WIDTH + SLICE - 1) / SLICE;

    TREADLE_DEVICE static Chunk of(int64_t iteration, int chunk) {
        const int64_t local = chunk % PIECES * WIDTH + iteration * SLICE, global = chunk / PIECES * PART + local;
        const int64_t count = smaller(smaller(SLICE, WIDTH - iteration * SLICE), smaller(PART - local, SIZE - global));
        return {global, local, larger(0, count), 0};
    }
    TREADLE_DEVICE static int64_t at(const Chunk &, int64_t i) { return i; }
};

// The same in rectangles of a matrix with rows of PITCH elements: PART and WIDTH are whole rows, an iteration moves ROWS x
// COLUMNS of each chunk. Columns and pitch are multiples of what a thread takes at once.
template <int64_t SIZE, int64_t PART, int PIECES, int64_t WIDTH, int64_t ROWS, int64_t COLUMNS, int64_t PITCH>
struct Rectangles : Alike<Rectangles<SIZE, PART, PIECES, WIDTH, ROWS, COLUMNS, PITCH>> {
    static constexpr int64_t LONGEST = ROWS * COLUMNS;
    static constexpr int64_t ACROSS = (PITCH + COLUMNS - 1) / COLUMNS;
    static constexpr int64_t ITERATIONS = (WIDTH / PITCH + ROWS - 1) / ROWS * ACROSS;

    TREADLE_DEVICE static Chunk of(int64_t iteration, int chunk) {
        const int64_t row = iteration / ACROSS * ROWS, column = iteration % ACROSS * COLUMNS;
        const int64_t local = chunk % PIECES * WIDTH + row * PITCH, global = chunk / PIECES * PART + local;
        const int64_t rows = smaller(smaller(ROWS, WIDTH / PITCH - row), smaller(PART - local, SIZE - global) / PITCH);
        const int64_t columns = smaller(COLUMNS, PITCH - column);
        return {global + column, local + column, larger(0, rows) * columns, int32_t(columns)};
    }
    TREADLE_DEVICE static int64_t at(const Chunk &chunk, int64_t i) {
        return uint32_t(i) / uint32_t(chunk.columns) * PITCH + uint32_t(i) % uint32_t(chunk.columns);
    }
};

// Slices of columns: ROWS of PITCH elements, PART of each row for each owner, cut into PIECES chunks of HEIGHT rows. An
// iteration moves DOWN x ACROSS of each chunk. Part and pitch are multiples of what a thread takes at once.
template <int64_t ROWS, int64_t PITCH, int64_t PART, int PIECES, int64_t HEIGHT, int64_t DOWN, int64_t ACROSS>
struct ColumnChunks {
    static constexpr int64_t LONGEST = DOWN * ACROSS;
    static constexpr int64_t BESIDE = (PART + ACROSS - 1) / ACROSS;
    static constexpr int64_t ITERATIONS = ROWS * PITCH ? (HEIGHT + DOWN - 1) / DOWN * BESIDE : 0;

    TREADLE_DEVICE static Chunk of(int64_t iteration, int chunk) {
        const int64_t first = smaller(PITCH, chunk / PIECES * PART), width = smaller(PITCH, first + PART) - first;
        const int64_t within = iteration / BESIDE * DOWN, column = iteration % BESIDE * ACROSS;
        const int64_t row = chunk % PIECES * HEIGHT + within;
        const int64_t rows = larger(0, smaller(smaller(DOWN, HEIGHT - within), ROWS - row));
        const int64_t columns = larger(0, smaller(ACROSS, width - column));
        return {row * PITCH + first + column, row * width + column, rows * columns, int32_t(larger(1, columns)), int32_t(width)};
    }
    TREADLE_DEVICE static int64_t at(const Chunk &chunk, int64_t i) {
        return uint32_t(i) / uint32_t(chunk.columns) * PITCH + uint32_t(i) % uint32_t(chunk.columns);
    }
    TREADLE_DEVICE static int64_t in_slice(const Chunk &chunk, int64_t i) {
        return int64_t(uint32_t(i) / uint32_t(chunk.columns)) * chunk.pitch + uint32_t(i) % uint32_t(chunk.columns);
    }
};

// The slices of RingSlice: an iteration is a tile.
template <int64_t SIZE, int CHANNELS, int64_t CAPACITY, int64_t ALIGN, bool RANK_MAJOR, int RANKS>
struct RingChunks : Alike<RingChunks<SIZE, CHANNELS, CAPACITY, ALIGN, RANK_MAJOR, RANKS>> {
    using Map = RingSlice<SIZE, CHANNELS, CAPACITY, ALIGN, RANK_MAJOR, RANKS>;
    static constexpr int64_t LONGEST = (CAPACITY + ALIGN - 1) / ALIGN * ALIGN;
    static constexpr int64_t ITERATIONS = (SIZE + Map::TILE - 1) / Map::TILE;

    TREADLE_DEVICE static Chunk of(int64_t iteration, int chunk) {
        const int64_t base = iteration * Map::TILE, q = Map::chunk(base);
        const int owner = chunk / CHANNELS, channel = chunk % CHANNELS;
        const int64_t global = base + Map::place(owner, channel) * q;
        return {global, base / RANKS + channel * q, larger(0, smaller(q, SIZE - global)), 0};
    }
    TREADLE_DEVICE static int64_t at(const Chunk &, int64_t i) { return i; }
};

// How two contributions become one.
struct Plus {
    template <class A>
    static TREADLE_DEVICE A join(const A &a, const A &b) { return op::add(a, b); }
};
struct Least {
    template <class A>
    static TREADLE_DEVICE A join(const A &a, const A &b) { return op::min(a, b); }
};
struct Greatest {
    template <class A>
    static TREADLE_DEVICE A join(const A &a, const A &b) { return op::max(a, b); }
};

// The type of what nothing is made of.
struct Nothing {};

// No computation.
struct Unchanged {
    struct Operands {};
    static TREADLE_DEVICE Operands operands(const Task &, int) { return {}; }
};

// Elements of one chunk in memory: in a tensor of the caller, in many tensors that make up one, or in the arena. Element i
// lies `place` behind the first one in a tensor or slice, and i behind it on a stage, which is `dense`.
template <class T>
struct Elements {
    T *data;
    bool users, dense, slice = false;
    const Scattered *scattered = nullptr;
    int64_t global = 0;  // index in scattered tensors
    mutable Cursor cursor = {};

    TREADLE_DEVICE bool there() const { return data || scattered; }

    template <int N>
    TREADLE_DEVICE Pack<T, N> load(int64_t i, int64_t place) const {
        if (scattered) return load_scattered<T, N>(*scattered, cursor, global + place);
        const T *from = data + (dense ? i : place);
        return users ? load_user<T, N>(from) : load_again<T, N>(from);
    }
    template <int N>
    TREADLE_DEVICE void store(int64_t i, int64_t place, const Pack<T, N> &pack) const {
        T *to = data + (dense ? i : place);
        if (scattered) {
            store_scattered<T, N>(*scattered, cursor, global + place, pack);
        } else if (users) {
            store_user<T, N>(to, pack);
        } else {
            store_pack(to, pack);
        }
    }
};

// What the threads of a block share. Only the first one writes it, but for `failed`.
struct Lane {
    const Entry *entry;
    LaneState *own, *receiver, *sender, *states;  // this block's, those of the other ends, those of all blocks here
    char *inbox, *outbox, *stages;
    int rank;
    int64_t iteration;
    uint64_t received, sent, rounds;  // messages and iterations since the session opened
    int32_t failed, silent;           // a wait timed out; so nothing is moved or signalled any more
};

// Everything that C says about a collective:
//   In, Out; COMPUTES: whether Finish does, TAKES: it takes the sum; Join; Slots; Chunks; PACK elements at once
//   REDUCES: whether anything is joined; RANKS of a group; BLOCKS of a rank; STRIDE: more than the moves of any block
//   LANES, INBOXES, STAGED: where states, slots and stages begin in an arena; SLOTS of a connection; SLOT_BYTES,
//   CHUNK_BYTES and STAGE_BYTES: of a message, of a chunk in it, of a staged chunk
//   INPUT, OUTPUT: buffers, -1 for none; INPUT_SLICED, OUTPUT_SLICED: whether they hold a rank's slice only
//   OUTPUT_AT: where in the arena the rank's slice of the output lies instead of in a buffer, or -1
//   INPUT_SCATTERED, OUTPUT_SCATTERED: whether they consist of many tensors
template <class C>
struct Collective {
    using In = typename C::In;
    using Out = typename C::Out;
    using Operands = typename C::Finish::Operands;
    using Slots = typename C::Slots;
    using Chunks = typename C::Chunks;

    static TREADLE_DEVICE LaneState *states(const Task &task, int rank) {
        return reinterpret_cast<LaneState *>(task.arenas[rank] + C::LANES);
    }
    static TREADLE_DEVICE char *area(const Task &task, int rank, int number) {
        return task.arenas[rank] + C::INBOXES + int64_t(number) * C::SLOTS * C::SLOT_BYTES;
    }

    static TREADLE_DEVICE void open(const Task &task, Lane &lane, const Entry *entries) {
        lane.rank = rank_of(task);
        const Entry &entry = entries[lane.rank * C::BLOCKS + block_of(task)];
        lane.entry = &entry;
        lane.states = states(task, lane.rank);
        lane.own = lane.states + block_of(task);
        lane.stages = task.arenas[lane.rank] + C::STAGED;
        if (entry.recv_rank >= 0) {
            lane.sender = states(task, entry.recv_rank) + entry.recv_block;
            lane.inbox = area(task, lane.rank, entry.recv_area);
        }
        if (entry.send_rank >= 0) {
            lane.receiver = states(task, entry.send_rank) + entry.send_block;
            lane.outbox = area(task, entry.send_rank, entry.send_area);
        }
        lane.rounds = epoch_of(task) * Chunks::ITERATIONS;
        lane.received = lane.rounds * entry.receives;
        lane.sent = lane.rounds * entry.sends;
        lane.failed = lane.silent = 0;
    }

    static TREADLE_DEVICE void run(const Task &task, Lane &lane, const Entry *entries, const Move *moves) {
        const bool first = thread() == 0;
        if (block_of(task) >= C::BLOCKS) return;
        if (first) open(task, lane, entries);
        barrier();
        const Operands operands = C::Finish::operands(task, lane.rank);
        for (int64_t iteration = 0; iteration < Chunks::ITERATIONS; ++iteration) {
            if (first) lane.iteration = iteration;
            for (int number = 0; number < lane.entry->moves; ++number)
                perform(task, lane, operands, moves[lane.entry->first + number], number);
            if (first) ++lane.rounds;
        }
    }

    static TREADLE_DEVICE void perform(const Task &task, Lane &lane, const Operands &operands, const Move &move, int number) {
        const bool first = thread() == 0;
        if (first) {
            if (!lane.failed) await(task, lane, move);
            lane.silent = lane.failed;
        }
        if (move.flow) {
            barrier();
            if (!lane.silent) {
                if (move.flow & COMPUTE) {
                    if constexpr (C::COMPUTES) all<In, Out, true>(task, lane, operands, move);
                } else if (move.flow & FINISHED) {
                    if constexpr (!std::is_same_v<Out, Nothing>) all<Out, Out, false>(task, lane, operands, move);
                } else {
                    all<In, In, false>(task, lane, operands, move);
                }
            }
            barrier();
        }
        if (first && !lane.failed) {
            if (move.flow & SEND) {
                ++lane.sent;
                if (!Slots::FLAGGED) signal_system(&lane.receiver->filled.value, lane.sent);
            }
            if (move.flow & RECEIVE) signal_system(&lane.sender->drained.value, ++lane.received);
            if (move.target_space == IN_OUTPUT)
                for (int k = 0; k < move.count; ++k) C::Done::signal(task, lane.rank, unit(lane, move, k));
            if (move.awaited) signal_rank(&lane.own->progress.value, lane.rounds * C::STRIDE + number + 1);
        }
    }

    // What other kernels call chunk k of a move in this iteration (treadle_overlap.h).
    static TREADLE_DEVICE int64_t unit(const Lane &lane, const Move &move, int k) {
        return lane.iteration * C::CHUNKS + move.chunk + k;
    }

    static TREADLE_DEVICE void await(const Task &task, Lane &lane, const Move &move) {
        bool good = true;
        if (move.source_space == IN_INPUT || move.addend_space == IN_INPUT)
            for (int k = 0; k < move.count && good; ++k) good = C::Ready::wait(task, lane.rank, unit(lane, move, k));
        if (good && move.wait_block >= 0)
            good = wait_rank(task, &lane.states[move.wait_block].progress.value, lane.rounds * C::STRIDE + move.wait_move + 1,
                             A_STEP, move.wait_block, move.wait_move);
        if (good && move.flow & RECEIVE && !Slots::FLAGGED)
            good = wait_system(task, &lane.own->filled.value, lane.received + 1, A_MESSAGE, lane.entry->recv_rank, move.chunk);
        if (good && move.flow & SEND && lane.sent >= C::SLOTS)
            good = wait_system(task, &lane.own->drained.value, lane.sent + 1 - C::SLOTS, ROOM, lane.entry->send_rank, move.chunk);
        if (!good) lane.failed = 1;
    }

    // The chunks of one message, one after the other.
    template <class From, class To, bool COMPUTES>
    static TREADLE_NOINLINE void all(const Task &task, Lane &lane, const Operands &operands, const Move &move) {
        bool good = true;
        for (int k = 0; k < move.count; ++k) {
            Piece<From, To> piece;
            const Chunk chunk = Chunks::of(lane.iteration, move.chunk + k);
            piece.chunk = chunk;
            piece.in = lane.inbox + int64_t(lane.received % C::SLOTS) * C::SLOT_BYTES + k * C::CHUNK_BYTES;
            piece.out = lane.outbox + int64_t(lane.sent % C::SLOTS) * C::SLOT_BYTES + k * C::CHUNK_BYTES;
            piece.in_message = lane.received + 1;
            piece.out_message = lane.sent + 1;
            piece.source = elements<From>(task, lane, move.source_space, move.source + k);
            piece.addend = elements<From>(task, lane, move.addend_space, move.addend + k);
            piece.target = elements<To>(task, lane, move.target_space, move.target + k);
            if (move.flow & AGAIN) piece.source.users = piece.addend.users = false;
            good = moved<From, To, COMPUTES>(task, lane, operands, move.flow, piece) && good;
            if constexpr (!std::is_same_v<To, Nothing>)
                if (move.flow & SEND) deliver(piece.out, Slots::template bytes<To, C::PACK>(chunk.count), Slots::FLAGGED);
            yield();
        }
        if (!good) {
            report(task, A_MESSAGE, lane.entry->recv_rank, move.chunk, lane.received + 1, lane.received);
            lane.failed = 1;
        }
    }

    template <class From, class To>
    struct Piece {
        Chunk chunk;
        const char *in;
        char *out;
        uint64_t in_message, out_message;
        Elements<From> source, addend;
        Elements<To> target;
    };

    template <class T>
    static TREADLE_DEVICE Elements<T> elements(const Task &task, const Lane &lane, int space, int number) {
        if (space == ON_STAGE) {
            char *stage = lane.stages + number * C::STAGE_BYTES;
            return {reinterpret_cast<T *>(stage) + lane.iteration * Chunks::LONGEST, false, true};
        }
        if (space == IN_OUTPUT && C::OUTPUT_AT >= 0)
            return {reinterpret_cast<T *>(task.arenas[lane.rank] + C::OUTPUT_AT) + Chunks::of(lane.iteration, number).local, false, false, true};
        if (space == IN_INPUT && C::INPUT >= 0) return users<T, C::INPUT, C::INPUT_SLICED, C::INPUT_SCATTERED>(task, lane, number);
        if (space == IN_OUTPUT && C::OUTPUT >= 0)
            return users<T, C::OUTPUT, C::OUTPUT_SLICED, C::OUTPUT_SCATTERED>(task, lane, number);
        return {nullptr, false, false};
    }

    template <class T, int BUFFER, bool SLICED, bool SCATTERED>
    static TREADLE_DEVICE Elements<T> users(const Task &task, const Lane &lane, int number) {
        const Chunk chunk = Chunks::of(lane.iteration, number);
        if constexpr (SCATTERED)
            return {nullptr, true, false, false, buffer<const Scattered>(task, lane.rank, BUFFER), chunk.global};
        else
            return {buffer<T>(task, lane.rank, BUFFER) + (SLICED ? chunk.local : chunk.global), true, false, SLICED};
    }

    template <class From, class To, bool COMPUTES>
    static TREADLE_DEVICE bool moved(const Task &task, const Lane &lane, const Operands &operands, int flow, const Piece<From, To> &piece) {
        constexpr int N = C::PACK;
        const int64_t count = piece.chunk.count, step = int64_t(threads()) * N, packed = count / N * N;
        bool good = true;
        if constexpr (Slots::LINES) {
            good = lines<From, To, COMPUTES, N>(task, operands, flow, piece, 0, packed);
            if (N > 1 && good && packed < count) good = lines<From, To, COMPUTES, 1>(task, operands, flow, piece, packed, count);
        } else {
            int64_t i = int64_t(thread()) * N;
            for (; i + (UNROLL - 1) * step + N <= packed; i += UNROLL * step)
                good = packs<From, To, COMPUTES, N, UNROLL>(task, operands, flow, piece, i, step) && good;
            for (; i + N <= packed; i += step) good = packs<From, To, COMPUTES, N, 1>(task, operands, flow, piece, i, step) && good;
            for (i = packed + thread(); i < count; i += threads())
                good = packs<From, To, COMPUTES, 1, 1>(task, operands, flow, piece, i, 1) && good;
        }
#ifdef TREADLE_COUNT
        if (flow & SEND && thread() == 0) {
            Counts &counts = *static_cast<Counts *>(block_context());
            const bool near = lane.entry->send_rank / C::RANKS == lane.rank / C::RANKS;
            __atomic_fetch_add(near ? &counts.sent : &counts.sent_on, count, __ATOMIC_RELAXED);
        }
#endif
        return good;
    }

    // U packs of N elements, all loads before the first store.
    template <class From, class To, bool COMPUTES, int N, int U>
    static TREADLE_DEVICE bool packs(const Task &task, const Operands &operands, int flow, const Piece<From, To> &piece,
                                     int64_t first, int64_t step) {
        Pack<From, N> value[U] = {};
        bool good = true;
        TREADLE_UNROLL
        for (int u = 0; u < U; ++u) {
            const int64_t i = first + u * step;
            if (flow & RECEIVE)
                good = Slots::template receive<From, C::PACK, N>(task, piece.in, i, piece.chunk.count, piece.in_message, value[u]) && good;
            else if (flow & READ)
                value[u] = loaded<N>(piece.source, piece.chunk, i);
        }
        TREADLE_UNROLL
        for (int u = 0; u < U; ++u) join(flow, piece, first + u * step, value[u]);
        TREADLE_UNROLL
        for (int u = 0; u < U; ++u) {
            const int64_t i = first + u * step;
            if constexpr (std::is_same_v<To, Nothing>) {
                computed<N>(operands, piece.chunk, i, value[u]);
            } else {
                const Pack<To, N> result = finished<COMPUTES>(operands, flow, piece, i, value[u]);
                if (flow & SEND) Slots::template send<To, C::PACK, N>(piece.out, i, piece.chunk.count, piece.out_message, result);
            }
        }
        return good;
    }

    // Elements [begin, end) in packs of N, by the threads that move their lines.
    template <class From, class To, bool COMPUTES, int N>
    static TREADLE_DEVICE bool lines(const Task &task, const Operands &operands, int flow, const Piece<From, To> &piece,
                                     int64_t begin, int64_t end) {
        constexpr int OWN = Slots::OWN, TOGETHER = WARP / LINE_THREADS;
        const int64_t packs = (end - begin) / N, groups = (packs + Slots::PACKS - 1) / Slots::PACKS;
        for (int64_t first = thread() / WARP * TOGETHER; first < groups; first += (threads() + WARP - 1) / WARP * TOGETHER) {
            const int64_t group = first + thread() % WARP / LINE_THREADS;
            Pack<From, N> value[OWN] = {};
            if (flow & RECEIVE) {
                const int64_t line = Slots::template lines<From, C::PACK>(begin / C::PACK) + group * Slots::template HEIGHT<From, N>;
                if (!Slots::template receive<From, N>(task, piece.in, line, group < groups, piece.in_message, value)) return false;
            }
            int64_t at[OWN];
            bool there[OWN];
            TREADLE_UNROLL
            for (int own = 0; own < OWN; ++own) {
                const int64_t pack = group * Slots::PACKS + Slots::number(own);
                at[own] = begin + pack * N;
                there[own] = Slots::number(own) < Slots::PACKS && pack < packs;
                if (there[own] && flow & READ && !(flow & RECEIVE)) value[own] = loaded<N>(piece.source, piece.chunk, at[own]);
            }
            TREADLE_UNROLL
            for (int own = 0; own < OWN; ++own)
                if (there[own]) join(flow, piece, at[own], value[own]);
            if constexpr (std::is_same_v<To, Nothing>) {
                TREADLE_UNROLL
                for (int own = 0; own < OWN; ++own)
                    if (there[own]) computed<N>(operands, piece.chunk, at[own], value[own]);
            } else {
                Pack<To, N> result[OWN] = {};
                TREADLE_UNROLL
                for (int own = 0; own < OWN; ++own)
                    if (there[own]) result[own] = finished<COMPUTES>(operands, flow, piece, at[own], value[own]);
                const int64_t line = Slots::template lines<To, C::PACK>(begin / C::PACK) + group * Slots::template HEIGHT<To, N>;
                if (flow & SEND) Slots::template send<To, N>(piece.out, line, group < groups, piece.out_message, result);
            }
        }
        return true;
    }

    template <class From, class To, int N>
    static TREADLE_DEVICE void join([[maybe_unused]] int flow, const Piece<From, To> &piece, int64_t i, Pack<From, N> &value) {
        if constexpr (C::REDUCES && std::is_same_v<From, In>)
            if (flow & REDUCE) value = C::Join::join(value, loaded<N>(piece.addend, piece.chunk, i));
    }

    // What a value becomes, kept where the move says.
    template <bool COMPUTES, class From, class To, int N>
    static TREADLE_DEVICE Pack<To, N> finished(const Operands &operands, int flow, const Piece<From, To> &piece, int64_t i,
                                               const Pack<From, N> &value) {
        Pack<To, N> result;
        if constexpr (COMPUTES)
            result = computed<N>(operands, piece.chunk, i, value);
        else
            result = value;
        if (flow & WRITE && piece.target.there()) piece.target.template store<N>(i, place(piece.target, piece.chunk, i), result);
        return result;
    }

    template <int N, class Value>
    static TREADLE_DEVICE auto computed(const Operands &operands, const Chunk &chunk, int64_t i, const Value &value) {
        const int64_t global = chunk.global + Chunks::at(chunk, i), local = chunk.local + Chunks::in_slice(chunk, i);
        if constexpr (C::TAKES)
            return C::Finish::template apply<N>(operands, global, local, value);
        else
            return C::Finish::template apply<N>(operands, global, local);
    }

    template <int N, class T>
    static TREADLE_DEVICE Pack<T, N> loaded(const Elements<T> &from, const Chunk &chunk, int64_t i) {
        return from.template load<N>(i, place(from, chunk, i));
    }

    template <class T>
    static TREADLE_DEVICE int64_t place(const Elements<T> &of, const Chunk &chunk, int64_t i) {
        return of.slice ? Chunks::in_slice(chunk, i) : Chunks::at(chunk, i);
    }
};

}  // namespace treadle
