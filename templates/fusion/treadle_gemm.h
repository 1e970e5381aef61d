// Matrix products, tile by tile: result[rows, columns] = left[rows, depth] * right[depth, columns], all dense and row by
// row. A tile is made by one threadblock from panels in shared memory; sums are fp32 for 16-bit floats, and run over
// the depth in ascending order whatever the tile. Tensor cores are used for 16-bit floats where there are any.
#pragma once
#include "treadle_expression.h"
#include "treadle_overlap.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#include <mma.h>
#define TREADLE_TENSOR_CORES 1
#else
#define TREADLE_TENSOR_CORES 0
#endif

namespace treadle {

#ifdef __CUDACC__
constexpr int GEMM_THREADS = MAX_THREADS;
#else
constexpr int GEMM_THREADS = LINE_THREADS;
#endif

// One rank's operands.
template <class T>
struct Matrices {
    const T *left, *right;
    T *result;
    int64_t rows, columns, depth;
};

TREADLE_DEVICE float multiply_add(float sum, float a, float b) { return sum + a * b; }
TREADLE_DEVICE double multiply_add(double sum, double a, double b) { return sum + a * b; }
template <class T>
TREADLE_DEVICE T multiply_add(T total, T a, T b) {
    return sum(total, product(a, b));
}

// Elements [row, row + ROWS) x [column, column + COLUMNS) of a matrix into `panel`, zero outside it. Neighbouring threads
// read neighbouring elements, 16 bytes at once where all of them are inside and aligned. A panel counts as traffic when
// it is `fresh`: other tiles of the kernel load it again.
template <int ROWS, int COLUMNS, int PITCH, class T>
TREADLE_DEVICE void load_panel(T *panel, const T *matrix, int64_t rows, int64_t columns, int64_t row, int64_t column,
                               [[maybe_unused]] bool fresh = false) {
    constexpr int WIDE = 16 / sizeof(T);
    static_assert(COLUMNS % WIDE == 0);
    for (int at = thread() * WIDE; at < ROWS * COLUMNS; at += threads() * WIDE) {
        const int r = at / COLUMNS, c = at % COLUMNS;
        T *to = panel + r * PITCH + c;
        const T *from = matrix + (row + r) * columns + column + c;
#ifdef TREADLE_COUNT
        if (fresh && row + r < rows)
            count(&Counts::loaded, &Counts::loaded_bytes, int(larger(0, smaller(WIDE, columns - column - c))), sizeof(T));
#endif
        if (row + r < rows && column + c + WIDE <= columns && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
            const Word<16> word = *reinterpret_cast<const Word<16> *>(from);
            memcpy(to, &word, sizeof word);
        } else {
            for (int i = 0; i < WIDE; ++i)
                to[i] = row + r < rows && column + c + i < columns ? from[i] : convert<T>(0);
        }
    }
}

// Each thread holds the sums of a few elements that lie a grid apart, so that neighbours read and write neighbours.
template <class T, int ROWS, int COLUMNS>
struct ScalarTile {
    using Sum = Computed<T>;
    static constexpr int WIDE = 16 / sizeof(T);
    static constexpr int DEPTH = 16;
    static constexpr int GRID_COLUMNS = COLUMNS < 32 ? COLUMNS : 32;
    static constexpr int GRID_ROWS = ROWS < 16 ? ROWS : 16;
    static constexpr int DOWN = ROWS / GRID_ROWS, ACROSS = COLUMNS / GRID_COLUMNS;
    static constexpr int CELLS = GRID_ROWS * GRID_COLUMNS;  // sets of elements of one thread
    static constexpr int HELD = (CELLS + GEMM_THREADS - 1) / GEMM_THREADS;
    static_assert(ROWS % GRID_ROWS == 0 && COLUMNS % GRID_COLUMNS == 0 && COLUMNS % WIDE == 0);

    struct Shared {
        alignas(16) T left[ROWS][DEPTH + WIDE];
        alignas(16) T right[DEPTH][COLUMNS];
    };

    TREADLE_DEVICE static void make(Shared &shared, const Matrices<T> &of, int64_t row, int64_t column) {
        for (int first = 0; first < CELLS; first += HELD * threads()) {
            Sum sums[HELD][DOWN][ACROSS] = {};
            for (int64_t depth = 0; depth < of.depth; depth += DEPTH) {
                load_panel<ROWS, DEPTH, DEPTH + WIDE>(&shared.left[0][0], of.left, of.rows, of.depth, row, depth,
                                                      first == 0 && column == 0);
                load_panel<DEPTH, COLUMNS, COLUMNS>(&shared.right[0][0], of.right, of.depth, of.columns, depth, column,
                                                    first == 0 && row == 0);
                barrier();
                TREADLE_UNROLL
                for (int held = 0; held < HELD; ++held) multiply(shared, first + held * threads() + thread(), sums[held]);
                barrier();
            }
            TREADLE_UNROLL
            for (int held = 0; held < HELD; ++held) store(of, row, column, first + held * threads() + thread(), sums[held]);
        }
    }

  private:
    TREADLE_DEVICE static void multiply(const Shared &shared, int cell, Sum (&sums)[DOWN][ACROSS]) {
        if (cell >= CELLS) return;
        const int r = cell / GRID_COLUMNS, c = cell % GRID_COLUMNS;
        TREADLE_UNROLL
        for (int k = 0; k < DEPTH; ++k) {
            Sum left[DOWN], right[ACROSS];
            TREADLE_UNROLL
            for (int i = 0; i < DOWN; ++i) left[i] = widen(shared.left[r + i * GRID_ROWS][k]);
            TREADLE_UNROLL
            for (int j = 0; j < ACROSS; ++j) right[j] = widen(shared.right[k][c + j * GRID_COLUMNS]);
            TREADLE_UNROLL
            for (int i = 0; i < DOWN; ++i)
                TREADLE_UNROLL
                for (int j = 0; j < ACROSS; ++j) sums[i][j] = multiply_add(sums[i][j], left[i], right[j]);
        }
    }

    TREADLE_DEVICE static void store(const Matrices<T> &of, int64_t row, int64_t column, int cell,
                                     const Sum (&sums)[DOWN][ACROSS]) {
        if (cell >= CELLS) return;
        TREADLE_UNROLL
        for (int i = 0; i < DOWN; ++i)
            TREADLE_UNROLL
            for (int j = 0; j < ACROSS; ++j) {
                const int64_t r = row + cell / GRID_COLUMNS + i * GRID_ROWS, c = column + cell % GRID_COLUMNS + j * GRID_COLUMNS;
                if (r >= of.rows || c >= of.columns) continue;
                of.result[r * of.columns + c] = convert<T>(sums[i][j]);
#ifdef TREADLE_COUNT
                count(&Counts::stored, &Counts::stored_bytes, 1, sizeof(T));
#endif
            }
    }
};

#if TREADLE_TENSOR_CORES
// Each warp holds squares of 32 x 32 sums, as four fragments; they reach the result through shared memory.
template <class T, int ROWS, int COLUMNS>
struct TensorTile {
    static constexpr int SIDE = 16, SQUARE = 2 * SIDE, DEPTH = 32, PAD = 8;
    static constexpr int SQUARES = ROWS / SQUARE * (COLUMNS / SQUARE);
    static constexpr int WARPS = MAX_THREADS / WARP;
    static constexpr int HELD = (SQUARES + WARPS - 1) / WARPS;
    static_assert(ROWS % SQUARE == 0 && COLUMNS % SQUARE == 0);

    union Shared {
        struct {
            alignas(16) T left[ROWS][DEPTH + PAD];
            alignas(16) T right[DEPTH][COLUMNS + PAD];
        };
        alignas(32) float staged[WARPS][SIDE][SIDE];
    };
    using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, SIDE, SIDE, SIDE, float>;

    TREADLE_DEVICE static void make(Shared &shared, const Matrices<T> &of, int64_t row, int64_t column) {
        const int warp = thread() / WARP, warps = threads() / WARP;
        for (int first = 0; first < SQUARES; first += HELD * warps) {
            Sums sums[HELD][2][2];
            TREADLE_UNROLL
            for (int held = 0; held < HELD; ++held)
                TREADLE_UNROLL
                for (int i = 0; i < 4; ++i) nvcuda::wmma::fill_fragment(sums[held][i / 2][i % 2], 0.0f);
            for (int64_t depth = 0; depth < of.depth; depth += DEPTH) {
                load_panel<ROWS, DEPTH, DEPTH + PAD>(&shared.left[0][0], of.left, of.rows, of.depth, row, depth);
                load_panel<DEPTH, COLUMNS, COLUMNS + PAD>(&shared.right[0][0], of.right, of.depth, of.columns, depth, column);
                barrier();
                TREADLE_UNROLL
                for (int held = 0; held < HELD; ++held) multiply(shared, first + held * warps + warp, sums[held]);
                barrier();
            }
            TREADLE_UNROLL
            for (int held = 0; held < HELD; ++held) store(shared, of, row, column, first + held * warps + warp, sums[held]);
            barrier();
        }
    }

  private:
    TREADLE_DEVICE static void multiply(const Shared &shared, int square, Sums (&sums)[2][2]) {
        using namespace nvcuda::wmma;
        if (square >= SQUARES) return;
        const int r = square / (COLUMNS / SQUARE) * SQUARE, c = square % (COLUMNS / SQUARE) * SQUARE;
        TREADLE_UNROLL
        for (int k = 0; k < DEPTH; k += SIDE) {
            fragment<matrix_a, SIDE, SIDE, SIDE, T, row_major> left[2];
            fragment<matrix_b, SIDE, SIDE, SIDE, T, row_major> right[2];
            TREADLE_UNROLL
            for (int i = 0; i < 2; ++i) {
                load_matrix_sync(left[i], &shared.left[r + i * SIDE][k], DEPTH + PAD);
                load_matrix_sync(right[i], &shared.right[k][c + i * SIDE], COLUMNS + PAD);
            }
            TREADLE_UNROLL
            for (int i = 0; i < 4; ++i) mma_sync(sums[i / 2][i % 2], left[i / 2], right[i % 2], sums[i / 2][i % 2]);
        }
    }

    TREADLE_DEVICE static void store(Shared &shared, const Matrices<T> &of, int64_t row, int64_t column, int square,
                                     const Sums (&sums)[2][2]) {
        if (square >= SQUARES) return;
        const int lane = thread() % WARP;
        auto &staged = shared.staged[thread() / WARP];
        TREADLE_UNROLL
        for (int part = 0; part < 4; ++part) {
            __syncwarp();
            nvcuda::wmma::store_matrix_sync(&staged[0][0], sums[part / 2][part % 2], SIDE, nvcuda::wmma::mem_row_major);
            __syncwarp();
            const int64_t r0 = row + square / (COLUMNS / SQUARE) * SQUARE + part / 2 * SIDE;
            const int64_t c0 = column + square % (COLUMNS / SQUARE) * SQUARE + part % 2 * SIDE;
            for (int at = lane; at < SIDE * SIDE; at += WARP) {
                const int64_t r = r0 + at / SIDE, c = c0 + at % SIDE;
                if (r < of.rows && c < of.columns)
                    of.result[r * of.columns + c] = convert<T>(staged[at / SIDE][at % SIDE]);
            }
        }
    }
};
#endif

// A product in tiles of ROWS x COLUMNS.
template <class T, int ROWS, int COLUMNS>
struct Gemm {
    using Type = T;
#if TREADLE_TENSOR_CORES
    static constexpr bool TENSOR = sizeof(T) == 2 && ROWS % 32 == 0 && COLUMNS % 32 == 0;
    template <bool, class = void>
    struct Choice {
        using type = ScalarTile<T, ROWS, COLUMNS>;
    };
    template <class Dummy>
    struct Choice<true, Dummy> {
        using type = TensorTile<T, ROWS, COLUMNS>;
    };
    using Tile = typename Choice<TENSOR>::type;
#else
    using Tile = ScalarTile<T, ROWS, COLUMNS>;
#endif
    using Shared = typename Tile::Shared;

    // Tiles are numbered row by row.
    TREADLE_DEVICE static int64_t across(const Matrices<T> &of) { return (of.columns + COLUMNS - 1) / COLUMNS; }
    TREADLE_DEVICE static int64_t tiles(const Matrices<T> &of) { return (of.rows + ROWS - 1) / ROWS * across(of); }
    TREADLE_DEVICE static void make(Shared &shared, const Matrices<T> &of, int64_t tile) {
        Tile::make(shared, of, tile / across(of) * ROWS, tile % across(of) * COLUMNS);
    }
};

// Every tile of a rank's product, shared out among its blocks.
template <class Product>
TREADLE_DEVICE void gemm(const Task &task, typename Product::Shared &shared, const Matrices<typename Product::Type> &of) {
    for (int64_t tile = block_of(task); tile < Product::tiles(of); tile += task.blocks) Product::make(shared, of, tile);
}

template <class Product>
struct Turns {
    typename Product::Shared tile;
    int64_t turn;
};

// The same in an order that follows other kernels: a row of tiles begins when its rows of the left operand are ready,
// and a finished tile signals what it feeds.
template <class Product, class Order, class Ready, class Done>
TREADLE_DEVICE void gemm(const Task &task, Turns<Product> &shared, const Matrices<typename Product::Type> &of) {
    const int rank = rank_of(task), place = rank % Order::RANKS;
    for (;;) {
        if (thread() == 0) shared.turn = take_turn<Order>(task, rank);
        barrier();
        if (shared.turn >= Order::count(place)) return;
        const int64_t tile = Order::unit(place, shared.turn);
        if (thread() == 0) Ready::wait(task, rank, tile / Product::across(of));
        barrier();
        Product::make(shared.tile, of, tile);
        barrier();
        if (thread() == 0) Done::signal(task, rank, tile);
    }
}

}  // namespace treadle
